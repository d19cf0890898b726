"""Products through tensor descriptors (TMA) on sm_90 and later, in plain Triton: one thread issues a tile's copy; out-of-range elements
arrive as zeros, so there are no masks."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import processors
from opwise.backends.triton_jit.common.portable import device_function
from opwise.backends.triton_jit.matmul import descriptors
from opwise.backends.triton_jit.matmul.configurations import GROUP, Config
from opwise.backends.triton_jit.matmul.descriptors import Product, dtype_of


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
def multiplied(a, b, row, column, k, total, A_T: tl.constexpr, B_T: tl.constexpr):  # type: ignore[no-untyped-def]
    """total + the products of a step. A transposed factor is loaded as stored: for 16 bits wgmma takes both major orders."""
    left = a.load([k, row]).T if A_T else a.load([row, k])
    right = b.load([column, k]).T if B_T else b.load([k, column])
    return tl.dot(left, right, total)


@triton.jit
def descriptor_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                      A_T: tl.constexpr, B_T: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: tensor descriptors with blocks BM x BK, BK x BN, BM x BN of 16 bits; A_T, B_T: of (K, M), of (N, K), turned round."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM, tile_n * BN
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        total = multiplied(a, b, row, column, start, total, A_T, B_T)
    out.store([row, column], total.to(out.dtype))


@triton.jit
def persistent_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                      A_T: tl.constexpr, B_T: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The same with persistent programs, which loop over tiles. Flattened to one loop: the next tile's first steps are fetched while this
    one is stored, which matters most for a short K."""
    for program in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_at(program, M, N, BM, BN, GROUP)
        row, column = tile_m * BM, tile_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K, BK):
            total = multiplied(a, b, row, column, start, total, A_T, B_T)
        out.store([row, column], total.to(out.dtype))


def product(config: Config, dtype: str, group: int = GROUP) -> Product:
    blocks = {**config.blocks(config.BM, config.BK, config.BN), "out": [config.BM, config.BN]}
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": group, **config.transposed}
    kernel = persistent_kernel if config.persistent else descriptor_kernel
    return Product(kernel, {x: (x, block, None) for x, block in blocks.items()}, constants, config.options)


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, n = a.shape[0], b.shape[1]
    # Consecutive programs share reads: with GROUP 1 they share rows of a, which is best if a is the larger matrix.
    group = 1 if m >= 2 * n and config.BM == config.BN == 64 else GROUP
    programs = config.tiles(m, n)
    if config.persistent:
        programs = min(programs, config.ctas_per_sm * processors(a.device))
    return descriptors.build(product(config, dtype_of(a), group), (programs, 1, 1), a, b, out)
