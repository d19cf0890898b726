"""matmul (m, k) x (k, n), row-major, accumulated in float32: the front door.

plan.py chooses a configuration (configurations.py), this file makes its kernel (kernels/) and launches it. Tensor cores for 16 bits and
TF32, fused multiply-adds for float32. Rows that do not start at multiples of 16 bytes take slower copies of mma_sync and fma.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba.types  # noqa: F401 - as a compilation does, after which `from numba import types` is another module: keys of cubins tell which
import torch
from torch import Tensor

from opwise.backends.numba_cuda.common.dtypes import name_of as dtype_of
from opwise.backends.numba_cuda.common.launch import SIMULATED, Kernel
from opwise.backends.numba_cuda.matmul.configurations import (
    FMA_64X64,
    FMA_128X128,
    FMA_TMA,
    MMA_64X64,
    MMA_128X128,
    MMA_128X256,
    SPLIT_K,
    TF32,
    WGMMA,
    AnyTile,
    FmaTile,
    HopperTile,
    Way,
    name_of,
    tiles_of,
    whole_rows,
)
from opwise.backends.numba_cuda.matmul.kernels import fma_tma, split_k, wgmma, wgmma_tf32
from opwise.backends.numba_cuda.matmul.kernels.fma import fma_kernel
from opwise.backends.numba_cuda.matmul.kernels.mma_sync import mma_kernel
from opwise.backends.numba_cuda.matmul.plain import PLAIN, build_plain, build_stand_in
from opwise.backends.numba_cuda.matmul.plan import TABLE, offered, planned, planned_any_gpu
from opwise.backends.numba_cuda.matmul.tensor_maps import mapped
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.tuned import SHIPPED, look
from opwise.ops.spec import tf32_allowed

__all__ = ["PLAIN", "VARIANTS", "build", "build_mma", "kernels"]


def build(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    if SIMULATED:
        return build_stand_in(a, b, out)
    way = chosen(a, b, out)
    return build_tma(a, b, out, way) if isinstance(way, HopperTile) else build_any_gpu(a, b, out, way)


def build_mma(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    return build_stand_in(a, b, out) if SIMULATED else build_any_gpu(a, b, out, planned_any_gpu(*product_of(a, b, out)))


def chosen(a: Tensor, b: Tensor, out: Tensor) -> Way:
    """What a tuned table says of the product, else what the plan takes by itself."""
    m, k, n, kind, aligned, processors, capability = product_of(a, b, out)
    choices = look(TABLE, a.device)
    if choices is not SHIPPED:
        known = offered(m, k, n, kind, aligned, capability)
        if name := choices.pick(kind, kind, (m, k, n), known):
            return known[name]
    return planned(m, k, n, kind, aligned, processors, capability)


def product_of(a: Tensor, b: Tensor, out: Tensor) -> tuple[int, int, int, str, bool, int, tuple[int, int]]:
    """m, k, n, kind, do all matrices start at multiples of 16 bytes, SMs, capability."""
    kind = "tfloat32" if a.dtype == torch.float32 and tf32_allowed() else dtype_of(a)
    aligned = not any(x.data_ptr() % 16 for x in (a, b, out))
    return *a.shape, b.shape[1], kind, aligned, processors_of(a), torch.cuda.get_device_capability(a.device)


def processors_of(x: Tensor) -> int:
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count


def build_tma(a: Tensor, b: Tensor, out: Tensor, tile: HopperTile) -> Bind:
    """sm_90's own kernels: what `matrices` has is passed as tensor maps, the rest of a, b, out as addresses."""
    m, k, n, kind, _, processors, _ = product_of(a, b, out)
    kernel, grid = sm90_kernel(kind, tile), (blocks_of(tile, m, n, processors), 1)
    matrices = module_of(tile).matrices(tile, m, k, n)
    by_map = len(matrices)
    maps = mapped(matrices, [x.data_ptr() for x in (a, b, out)[:by_map]])

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        operands = a, b, out
        described = maps([x.data_ptr() for x in operands[:by_map]])
        return kernel.bind(grid, *described, *operands[by_map:], m, n, k, device=a.device, keep=operands)

    return bind


def module_of(tile: HopperTile) -> Any:
    if not tile.wgmma:
        return fma_tma if tile.simt else wgmma_tf32
    return split_k if tile.split else wgmma


def blocks_of(tile: HopperTile, m: int, n: int, processors: int) -> int:
    """A persistent kernel has a block an SM at most."""
    tiles = tile.tiles(m, n)
    if tile.simt or tile.split:
        return tiles * max(tile.split, 1)
    return min(tiles, processors)


def sm90_kernel(kind: str, tile: HopperTile) -> Kernel:
    found: Kernel = module_of(tile).kernel(kind, tile)
    return found


def build_any_gpu(a: Tensor, b: Tensor, out: Tensor, tile: AnyTile) -> Bind:
    m, k, n, kind, aligned, _, _ = product_of(a, b, out)
    kernel = any_gpu_kernel(kind, tile, whole_rows(kind, k, n, aligned))
    return kernel.fixed((tiles_of(tile, m, n) * tile.split, 1), m, n, k, device=a.device)


def any_gpu_kernel(kind: str, tile: AnyTile, whole: bool) -> Kernel:
    """whole: as by `whole_rows`."""
    return fma_kernel(tile, whole) if isinstance(tile, FmaTile) else mma_kernel(kind, tile, whole)


def kernels() -> Mapping[str, Kernel]:
    """What is compiled without a GPU: one of each kind of code; other tiles are this code with other numbers."""
    from opwise.backends.numba_cuda.matmul.extra import FMA_16X128, FMA_32X32, MMA_16X64, MMA_32X32, MMA_32X64

    specimens: list[tuple[str, AnyTile, bool]] = [
        (kind, tile, tile != MMA_64X64) for kind in ("float16", "bfloat16", "tfloat32") for tile in (MMA_128X256, MMA_128X128, MMA_64X64)
    ]
    specimens += [
        ("float32", FMA_128X128, True), ("float32", FMA_64X64, False), ("float32", FMA_128X128._replace(split=2), True),
        ("float32", FMA_32X32._replace(split=16), False), ("float32", FMA_16X128._replace(split=8), True), ("float32", FMA_32X32, True),
        ("tfloat32", MMA_16X64._replace(split=8), True), ("tfloat32", MMA_64X64._replace(split=4), False),
        ("bfloat16", MMA_32X64._replace(split=16), False), ("bfloat16", MMA_32X32, True),
    ]  # fmt: skip
    found = {
        f"{kind} {name_of(tile)} {'aligned' if whole else 'unaligned'}": any_gpu_kernel(kind, tile, whole)
        for kind, tile, whole in specimens
    }
    sm90 = [(kind, tile) for kind in ("float16", "bfloat16") for tile in WGMMA]
    sm90 += [
        ("bfloat16", tile) for tile in SPLIT_K if tile.name in ("64x64_s16", "64x128_s1", "128x128_s4")
    ]  # the most parts, none, the most sums
    sm90 += [("tfloat32", tile) for tile in TF32]
    found |= {f"{kind} wgmma {tile.name}": sm90_kernel(kind, tile) for kind, tile in sm90}
    return found | {f"float32 {FMA_TMA.rows}x{FMA_TMA.columns} by TMA": sm90_kernel("float32", FMA_TMA)}


VARIANTS = {
    "": Variant(build, "wgmma on Hopper, else mma.sync, tiles through a ring of stages; fused multiply-adds for float32"),
    "mma": Variant(build_mma, "the kernels for any GPU from sm_80 on, on Hopper too: a ring of cp.async stages"),
    "plain": Variant(build_plain, "a thread an element, a dot product each, over device arrays"),
}
