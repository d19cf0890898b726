"""matmul on sm_90 and later through tensor descriptors (TMA): one thread asks for a tile, out-of-range elements arrive as zeros, no mask.

TF32 wants both factors along k in shared memory, and b is row-major. But wgmma also takes its first factor from registers, in any order:
so the transposed product is computed, out' = b' a', with b' through registers and a' where it lies.

float32 multiplies by FMA. TMA spares it the registers that addresses take, so that a step can be twice as long, where Triton makes use
of them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit import matmul_warpgroup
from opwise.backends.triton_jit.launch import INTERPRETING as IN_INTERPRETER
from opwise.backends.triton_jit.launch import built, processors
from opwise.backends.triton_jit.matmul_config import GROUP, Config, quickest
from opwise.backends.triton_jit.matmul_maps import ROUNDS, round_maps
from opwise.backends.triton_jit.portable import INTERPRETING, device_function
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


@device_function
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The program's tile: down a group of GROUP tile rows first, then along."""
    return tile_at(tl.program_id(0), M, N, BM, BN, GROUP)


@device_function
def tile_at(program, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    tiles_m = tl.cdiv(M, BM)
    a_group = GROUP * tl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + program % a_group % height, program % a_group // height


@device_function
def in_registers(x):  # type: ignore[no-untyped-def]
    """x, by an instruction that does nothing, but needs x. Between a load and a transposition it keeps Triton from transposing in shared
    memory; of a product's sums it makes Triton wait for the product."""
    if INTERPRETING:
        return x
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def descriptor_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: tensor descriptors with blocks BM x BK, BK x BN, BM x BN of 16-bit elements, or of float32, which is not cut to TF32."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM, tile_n * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total, input_precision="ieee")
    out.store([row, column], total.to(out.dtype))


@triton.jit
def resident_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                    GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The same for as many programs as run at once, each of which goes on to the next tile that no other takes. Flattened to one loop, the
    next tile's first steps are fetched while the last one's result is stored, which is most of the time where K is short."""
    for program in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_at(program, M, N, BM, BN, GROUP)
        row, column = tile_m * BM, tile_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K, BK):
            total = tl.dot(a.load([row, start]), b.load([start, column]), total, input_precision="ieee")
        out.store([row, column], total.to(out.dtype))


@triton.jit
def tf32_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                GROUP: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: as above, of float32; a's and b's maps round to TF32.

    Each step ends with a wait for its products. Without it Triton leaves three wgmma in flight, and the next step loads b into the very
    registers that they read from: ptxas takes those for free once the instruction is issued.
    """
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM, tile_n * BN
    total = tl.zeros((BN, BM), tl.float32)
    for start in range(0, K, BK):
        a_tile = a.load([row, start])
        left = tl.trans(in_registers(b.load([start, column])))
        total = in_registers(tl.dot(left, tl.trans(a_tile), total, input_precision="tf32"))
    out.store([row, column], tl.trans(total))


# What a tile takes is fitted to an H200's times of 1024 to 8192 cubed, and of thin and narrow products: docs/lab.md has them.
HALF_CONFIGS = (
    Config(128, 256, 64, 8, 3, 1, 3.1, 12.0),
    Config(128, 128, 64, 4, 3, 2, 1.4, 6.1),
    Config(128, 128, 64, 4, 2, 3, 0.9, 7.4),  # three share a multiprocessor: one's result is written while others multiply. Short K
    Config(128, 128, 64, 8, 4, 1, 2.6, 6.0),
    Config(64, 128, 128, 4, 4, 1, 3.2, 3.0),
    Config(64, 64, 128, 4, 6, 1, 3.5, 1.55),
)
# Fitted to 47.1 us at 8192 x 128 x 8192 and 201.4 at 4096 cubed; to take the first row's place once it is measured in this form.
RESIDENT = Config(128, 256, 64, 8, 3, 1, 1.4, 12.0, resident=True)
TF32_CONFIGS = (Config(256, 128, 32, 8, 3, 1, 6.0, 29.0), Config(64, 128, 64, 8, 3, 1, 8.0, 8.2))
# Not in use before they are measured: to be put in the place of the rows above.
PIPELINED = (Config(256, 128, 32, 8, 3, 1, 6.0, 22.0, pipelined=True), Config(128, 128, 32, 4, 3, 2, 6.0, 12.0, pipelined=True))
# Compiled by Triton 3.7.1 every such kernel spills (1672 bytes a thread), by 3.6.0 none: there float32 goes on through pointers.
FMA_CONFIGS = () if ROUNDS else (Config(128, 128, 32, 8, 3),)
FEWEST_ROWS = 17  # fewer make a product bound by reading b, which narrow tiles without TMA read faster
LEAST_HALF = 2**28  # multiply-adds of a 16-bit product, the least that was measured; smaller ones go on through pointers


def fit(a: Tensor, b: Tensor, out: Tensor) -> bool:
    """TMA takes addresses and row lengths in multiples of 16 bytes and 32-bit coordinates."""
    if IN_INTERPRETER or torch.cuda.get_device_capability(a.device) < (9, 0):
        return False
    rows_fit = all(x.shape[1] * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0 for x in (a, b, out))
    return rows_fit and max(*a.shape, *b.shape) < 2**31 - 256


def build(a: Tensor, b: Tensor, out: Tensor, precision: str) -> Bind | None:
    """precision: of float32 factors, "tf32" or "ieee". None where other kernels do better."""
    m, k, n = *a.shape, b.shape[1]
    if m < FEWEST_ROWS or (a.element_size() == 2 and m * n * k < LEAST_HALF):
        return None
    if a.element_size() == 2:
        half = quickest(HALF_CONFIGS, m, n, k, a)
        return bound(a, b, out, resident_kernel if half.resident else descriptor_kernel, half)
    # wgmma is sm_90's own, and float32's tile was measured there: nothing here has been fitted to later GPUs.
    if torch.cuda.get_device_capability(a.device)[0] != 9:
        return None
    if precision == "tf32":
        tf32 = quickest(TF32_CONFIGS, m, n, k, a)
        return matmul_warpgroup.build(a, b, out, tf32) if tf32.pipelined else bound(a, b, out, tf32_kernel, tf32)
    # A product that does not fill the GPU with the one tile that was measured goes through pointers.
    config = next((c for c in FMA_CONFIGS if c.tiles(m, n) >= processors(a.device)), None)
    return bound(a, b, out, descriptor_kernel, config) if config else None


def bound(a: Tensor, b: Tensor, out: Tensor, kernel: Any, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    rounds = kernel is tf32_kernel

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        blocks = ([config.BM, config.BK], [config.BK, config.BN], [config.BM, config.BN])
        more: tuple[dict[str, Any], ...] = ({"round_f32_to_tf32": True},) * 2 + ({},) if rounds and ROUNDS else ({},) * 3
        return tuple(
            TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, **options)
            for x, block, options in zip((a, b, out), blocks, more, strict=True)
        )

    programs = config.tiles(m, n)
    if config.resident:
        programs = min(programs, config.together * processors(a.device))
    grid, samples = (programs, 1, 1), (*described(a, b, out), m, n, k)
    fixed = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, **config.options}
    if rounds and not ROUNDS and not IN_INTERPRETER:
        round_maps(kernel.warmup(*samples, grid=grid, **fixed), 3)  # the very kernel that `built` then finds compiled, and loads
    ready = built(kernel, grid, *samples, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def specimens(dtype: str) -> dict[str, Specimen]:
    kernel, configs = {"tfloat32": (tf32_kernel, TF32_CONFIGS), "float32": (descriptor_kernel, FMA_CONFIGS)}.get(
        dtype, (descriptor_kernel, (*HALF_CONFIGS, RESIDENT))
    )
    found = {
        f"{dtype}, {c}/{c.warps}/{c.stages}, {'resident' if c.resident else 'descriptors'}": _specimen(
            resident_kernel if c.resident else kernel, dtype, c
        )
        for c in configs
        if not c.pipelined
    }
    piped = (c for c in (*configs, *PIPELINED) if c.pipelined) if dtype == "tfloat32" else ()
    return found | {f"{dtype}, {c}/{c.warps}/{c.stages}, pipelined": matmul_warpgroup.specimen(c) for c in piped}


def _specimen(kernel: Any, dtype: str, config: Config) -> Specimen:
    element = POINTERS[dtype].removeprefix("*")
    blocks = {"a": (config.BM, config.BK), "b": (config.BK, config.BN), "out": (config.BM, config.BN)}
    types = {name: f"tensordesc<{element}[{rows}, {columns}]>" for name, (rows, columns) in blocks.items()}
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP}
    return Specimen(kernel, {**types, "M": "i32", "N": "i32", "K": "i32"}, constants, config.options)
