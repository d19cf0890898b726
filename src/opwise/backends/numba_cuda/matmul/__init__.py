"""matmul (m, k) x (k, n) -> (m, n), accumulated in float32; each factor is row-major or the transpose of a row-major matrix.

configurations.py lists the configurations that support a product, gemm/choice.py picks one, and this file builds its kernel (kernels/).
float16, bfloat16 and TF32 use tensor cores; float32 uses FMAs. Unaligned rows (not 16-byte) use mma_sync and fma with narrower copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import choose, choose_invariant
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import Machine
from opwise.backends.numba_cuda.common.dtypes import name_of as dtype_of
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.matmul.configurations import (
    ANY_TRANSPOSED,
    FMA_64X64,
    FMA_128X128,
    FMA_TMA,
    HOPPER_NT,
    MMA_64X64,
    MMA_128X128,
    MMA_128X256,
    SPLIT_K,
    TF32,
    WGMMA,
    AnyTile,
    FmaTile,
    HopperTile,
    offered,
    whole_rows,
)
from opwise.backends.numba_cuda.matmul.kernels import fma_tma, split_k, wgmma, wgmma_tf32
from opwise.backends.numba_cuda.matmul.kernels.fma import fma_kernel
from opwise.backends.numba_cuda.matmul.kernels.mma_sync import mma_kernel
from opwise.backends.numba_cuda.matmul.plain import PLAIN, build_plain
from opwise.backends.numba_cuda.matmul.tensor_maps import mapped
from opwise.backends.numba_on_cpu import gpu_of
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.tuned import SHIPPED, Choices, look
from opwise.ops.spec import tf32_allowed

__all__ = ["PLAIN", "TABLE", "VARIANTS", "build", "build_mma", "kernels", "offered"]
TABLE = "numba_cuda/matmul"
MODULES: Mapping[str, Any] = {"wgmma": wgmma, "split_k": split_k, "wgmma_tf32": wgmma_tf32, "fma_tma": fma_tma}


def build(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    return build_chosen(a, b, out, gpu_of(a.device), look(TABLE, a.device))


def build_invariant(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    """Batch-invariant: each row of the result is bitwise independent of m."""
    return build_chosen(a, b, out, gpu_of(a.device), look(TABLE, a.device), invariant=True)


def build_mma(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    """The kernels of sm_80, on newer GPUs too: the capability is capped at 8.0 and only the shipped tuned table is used."""
    machine = gpu_of(a.device)
    return build_chosen(a, b, out, replace(machine, capability=min(machine.capability, (8, 0))), SHIPPED)


def build_chosen(a: Tensor, b: Tensor, out: Tensor, machine: Machine, choices: Choices, *, invariant: bool = False) -> Bind:
    product = Product.of(a, b, out, "tfloat32" if a.dtype == torch.float32 and tf32_allowed() else dtype_of(a))
    found = offered(product, machine)
    asked = gpu.of(a.device), choices
    taken = choose_invariant(product, lambda other: offered(other, machine), *asked) if invariant else choose(product, found, *asked)
    way = found[taken.name]
    return build_tma(product, way, machine, (a, b, out)) if isinstance(way, HopperTile) else build_any_gpu(product, way, a.device)


def build_tma(product: Product, tile: HopperTile, machine: Machine, operands: tuple[Tensor, Tensor, Tensor]) -> Bind:
    """Binds a kernel of sm_90. The operands that its `matrices` describes are passed as tensor maps, the others as addresses."""
    m, k, n = product[:3]
    module = MODULES[tile.kernel]
    ctas = min(tile.tiles(m, n), machine.sms) if tile.persistent else tile.tiles(m, n) * tile.split
    kernel, matrices = module.kernel(product.kind, tile), module.matrices(tile, m, k, n)
    by_map = len(matrices)
    maps = mapped(matrices, [x.data_ptr() for x in operands[:by_map]])

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        operands = a, b, out
        described = maps([x.data_ptr() for x in operands[:by_map]])
        made: Launch = kernel.bind((ctas, 1), *described, *operands[by_map:], m, n, k, device=a.device, keep=operands)
        return made

    return bind


def build_any_gpu(product: Product, tile: AnyTile, device: torch.device) -> Bind:
    m, k, n = product[:3]
    kernel = any_gpu_kernel(product.kind, tile, whole_rows(product))
    made: Bind = kernel.fixed((tile.tiles(m, n) * tile.split, 1), m, n, k, device=device)
    return made


def any_gpu_kernel(kind: str, tile: AnyTile, whole: bool) -> Kernel:
    """whole: the result of `whole_rows`, true where 16-byte copies and vector stores are aligned."""
    return fma_kernel(tile, whole) if isinstance(tile, FmaTile) else mma_kernel(kind, tile, whole)


def sm90_kernel(kind: str, tile: HopperTile) -> Kernel:
    found: Kernel = MODULES[tile.kernel].kernel(kind, tile)
    return found


def kernels() -> Mapping[str, Kernel]:
    """The kernels that are compiled without a GPU: one for each code path. Other tiles differ from these in constants only."""
    from opwise.backends.numba_cuda.matmul.extra import FMA_16X128, FMA_32X32, MMA_16X64, MMA_32X32, MMA_32X64

    specimens: list[tuple[str, AnyTile, bool]] = [
        (kind, tile, tile != MMA_64X64) for kind in ("float16", "bfloat16", "tfloat32") for tile in (MMA_128X256, MMA_128X128, MMA_64X64)
    ]
    specimens += [
        ("float32", FMA_128X128, True), ("float32", FMA_64X64, False), ("float32", replace(FMA_128X128, split=2), True),
        ("float32", replace(FMA_32X32, split=16), False), ("float32", replace(FMA_16X128, split=8), True), ("float32", FMA_32X32, True),
        ("tfloat32", replace(MMA_16X64, split=8), True), ("tfloat32", replace(MMA_64X64, split=4), False),
        ("bfloat16", replace(MMA_32X64, split=16), False), ("bfloat16", MMA_32X32, True),
    ]  # fmt: skip
    kinds = "tfloat32", "bfloat16"  # transposed factors: one dtype for the small tiles, one for the large, in each layout
    specimens += [("float32" if isinstance(tile, FmaTile) else kinds[tile.rows < 128], tile, tile.rows == 128) for tile in ANY_TRANSPOSED]
    found = {
        f"{kind} {tile.name} {'aligned' if whole else 'unaligned'}": any_gpu_kernel(kind, tile, whole) for kind, tile, whole in specimens
    }
    few = "64x64_s16", "64x128_s1", "128x128_s4"  # the largest split, no split, two consumer warpgroups
    sm90 = [(kind, tile) for kind in ("float16", "bfloat16") for tile in WGMMA]
    sm90 += [("bfloat16", tile) for tile in SPLIT_K if tile.name in few]
    sm90 += [("tfloat32", tile) for tile in TF32]
    sm90 += [("bfloat16", tile) for tile in HOPPER_NT if tile.kernel == "wgmma" or tile.name.removesuffix("_nt") in few]
    found |= {f"{kind} wgmma {tile.name}": sm90_kernel(kind, tile) for kind, tile in sm90}
    return found | {f"float32 {FMA_TMA.rows}x{FMA_TMA.columns} by TMA": sm90_kernel("float32", FMA_TMA)}


VARIANTS = {
    "": Variant(
        build, "wgmma on Hopper, else mma.sync, tiles through a ring of stages; fused multiply-adds for float32", takes_transposed=True
    ),
    "invariant": Variant(build_invariant, "batch-invariant: K summed in one order, whatever M is", takes_transposed=True),
    "mma": Variant(build_mma, "the kernels for any GPU from sm_80 on, on Hopper too: a ring of cp.async stages"),
    "plain": Variant(build_plain, "a thread an element, a dot product each, over device arrays"),
}
