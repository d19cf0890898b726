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

GROUP = 8
ZERO = ct.PaddingMode.ZERO


@ct.kernel
def matmul_kernel(a, b, out, M: ct.Constant[int], N: ct.Constant[int], K: ct.Constant[int],
                  TF32: ct.Constant[bool]):  # fmt: skip
    high, wide = ct.num_tiles(out, 0, (M, N)), ct.num_tiles(out, 1, (M, N))
    group, at = ct.bid(0) // (GROUP * wide), ct.bid(0) % (GROUP * wide)
    rows = min(GROUP, high - group * GROUP)
    row, column = group * GROUP + at % rows, at // rows
    total = ct.zeros((M, N), ct.float32)
    for k in range(ct.num_tiles(a, 1, (M, K))):
        left = ct.load(a, (row, k), (M, K), padding_mode=ZERO)
        right = ct.load(b, (k, column), (K, N), padding_mode=ZERO)
        if TF32:
            left, right = left.astype(ct.tfloat32), right.astype(ct.tfloat32)
        total = ct.mma(left, right, total)
    ct.store(out, (row, column), total.astype(out.dtype))


# M x N x K of a tile, the largest first. Which of them is quickest for which product a GPU has still to say: the unnamed variant takes the
# largest that gives every multiprocessor a tile. On sm_90 tileiras spills registers of larger ones.
HALF = ((128, 128, 64), (64, 256, 64), (64, 128, 64), (64, 64, 64))
TFLOAT = ((128, 128, 32), (64, 128, 32), (64, 64, 32))
SINGLE = ((128, 64, 8), (64, 64, 16), (64, 32, 16), (32, 32, 16))
Tile = tuple[int, int, int]


def tiles_of(dtype: torch.dtype, tf32: bool, on_16: bool) -> tuple[Tile, ...]:
    """Rows off 16 bytes are read element by element, which large tiles have not the registers for."""
    tiles = HALF if dtype != torch.float32 else TFLOAT if tf32 else SINGLE
    return tiles if on_16 else tiles[-1:]


def build(which: int | None, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    (left, of_a), (right, of_b), (target, of_out) = matrix(a), matrix(b), matrix(out)
    on_16 = left.aligned and right.aligned and target.aligned
    tf32 = a.dtype == torch.float32 and tf32_allowed()
    known = {tile: -(-out.shape[0] // tile[0]) * -(-out.shape[1] // tile[1]) for tile in tiles_of(a.dtype, tf32, on_16)}
    fills = (tile for tile in known if known[tile] >= processors(a.device))
    tile = next(fills, list(known)[-1]) if which is None else list(known)[min(which, len(known) - 1)]
    arrays = (replace(array, aligned=on_16) for array in (left, right, target))
    return built(Specimen("matmul", matmul_kernel, (*arrays, *tile, tf32)), known[tile], a.device, of_a, of_b, of_out)


VARIANTS = {"": Variant(partial(build, None), "the largest tile that fills the GPU", takes_transposed=True),
            **{f"tile{i}": Variant(partial(build, i), f"the tile that is {i} steps below the largest", takes_transposed=True)
               for i in range(len(HALF))}}  # fmt: skip


def specimens() -> Iterator[Specimen]:
    for dtype, tf32 in ((torch.float32, True), *((dtype, False) for dtype in DTYPES)):
        for aligned, a, b in product((True, False), repeat=3):
            array = Array(dtype, 2, aligned)
            arrays = replace(array, transposed=a), replace(array, transposed=b), array
            yield from (Specimen("matmul", matmul_kernel, (*arrays, *tile, tf32)) for tile in tiles_of(dtype, tf32, aligned))
