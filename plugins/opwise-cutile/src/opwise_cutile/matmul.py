"""matmul in cuTile: a tile of the product a block, accumulated in float32 by ct.mma.

16 bits and TF32 go to tensor cores; ct.mma of float32 is float32 arithmetic. Blocks go through the tiles in groups of GROUP tile rows, so
that those running at once share rows of a and columns of b in L2. A factor may be a row-major matrix's transpose, read as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import cuda.tile as ct
import torch
from opwise.backends.protocol import Bind, Variant
from opwise.ops.spec import tf32_allowed
from torch import Tensor

from opwise_cutile.launching import built, matrix, processors
from opwise_cutile.tileiras import DTYPES, Array, Specimen

GROUP, ZERO = 8, ct.PaddingMode.ZERO


def rounded(x):
    """To TF32, the nearest: on sm_90 astype alone cuts the bits off, which shrinks products by 7e-4."""
    nearest = ct.bitcast((ct.bitcast(x, ct.uint32) + 0x1000) & 0xFFFFE000, ct.float32)
    return ct.where(ct.isnan(x), x, nearest).astype(ct.tfloat32)  # or the sum may carry a nan's bits into its sign


@ct.kernel
def matmul_kernel(a, b, out, M: ct.Constant[int], N: ct.Constant[int], K: ct.Constant[int], TF32: ct.Constant[bool]):
    high, wide = ct.num_tiles(out, 0, (M, N)), ct.num_tiles(out, 1, (M, N))
    group, at = ct.bid(0) // (GROUP * wide), ct.bid(0) % (GROUP * wide)
    rows = min(GROUP, high - group * GROUP)
    row, column = group * GROUP + at % rows, at // rows
    total = ct.zeros((M, N), ct.float32)
    for k in range(ct.num_tiles(a, 1, (M, K))):
        left = ct.load(a, (row, k), (M, K), padding_mode=ZERO)
        right = ct.load(b, (k, column), (K, N), padding_mode=ZERO)
        if TF32:
            left, right = rounded(left), rounded(right)
        total = ct.mma(left, right, total)
    ct.store(out, (row, column), total.astype(out.dtype))


# M x N x K of a tile, the largest first that registers hold on sm_90.
HALF = ((128, 128, 64), (64, 256, 64), (64, 128, 64), (64, 64, 64))
TFLOAT = ((128, 128, 32), (64, 128, 32), (64, 64, 32))
SINGLE = ((128, 64, 8), (64, 64, 16), (64, 32, 16), (32, 32, 16))


def tiles_of(dtype: torch.dtype, tf32: bool, on_16: bool) -> tuple[tuple[int, int, int], ...]:
    """Rows off 16 bytes are read element by element, which large tiles have not the registers for."""
    tiles = HALF if dtype != torch.float32 else TFLOAT if tf32 else SINGLE
    return tiles if on_16 else tiles[-1:]


def build(which: int | None, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    (left, of_a), (right, of_b), (target, of_out) = matrix(a), matrix(b), matrix(out)
    on_16 = left.aligned and right.aligned and target.aligned
    tf32 = a.dtype == torch.float32 and tf32_allowed()
    known = {tile: -(-out.shape[0] // tile[0]) * -(-out.shape[1] // tile[1]) for tile in tiles_of(a.dtype, tf32, on_16)}
    fits = [tile for tile in known if 10 * known[tile] >= 9 * processors(a.device)] if which is None else list(known)[: which + 1][-1:]
    tile = (fits or list(known)[-1:])[0]
    arrays = (replace(array, aligned=on_16) for array in (left, right, target))
    return built(Specimen("matmul", matmul_kernel, (*arrays, *tile, tf32)), known[tile], a.device, of_a, of_b, of_out)


WAYS = {"": None, **{f"tile{i}": i for i in range(len(HALF))}}  # tile2 is the third largest, or the smallest where there are fewer
SUMMARY = "a tile of the product a block: the largest that gives nine of ten SMs one, or as named"
VARIANTS = {name: Variant(partial(build, which), SUMMARY, takes_transposed=True) for name, which in WAYS.items()}


def specimens() -> Iterator[Specimen]:
    for dtype, tf32 in ((torch.float32, True), *((dtype, False) for dtype in DTYPES)):
        for aligned, a, b in product((True, False), repeat=3):
            arrays = [Array(dtype, 2, aligned, transposed=transposed) for transposed in (a, b, False)]
            yield from (Specimen("matmul", matmul_kernel, (*arrays, *tile, tf32)) for tile in tiles_of(dtype, tf32, aligned))
