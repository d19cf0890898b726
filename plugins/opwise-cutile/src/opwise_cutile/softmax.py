"""softmax over rows in cuTile: rows of up to HELD columns as a tile, read once; longer ones in tiles, read twice.

exp is 2^(log2(e) (x - max)): the difference is rounded before it is scaled, or rows far from zero would lose all digits. A nan is
dropped by the maximum and comes back through the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import cuda.tile as ct
from opwise.backends.protocol import Bind, Variant
from torch import Tensor

from opwise_cutile.launching import built, matrix
from opwise_cutile.tileiras import DTYPES, Array, Specimen

LOG2_E = math.log2(math.e)
PADDING = ct.PaddingMode.NEG_INF


@ct.kernel
def held_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    value = ct.load(x, (ct.bid(0), 0), (ROWS, COLUMNS), padding_mode=PADDING).astype(ct.float32)
    power = ct.exp2((value - ct.max(value, 1, keepdims=True)) * LOG2_E)
    ct.store(out, (ct.bid(0), 0), (power / ct.sum(power, 1, keepdims=True)).astype(out.dtype))


@ct.kernel
def long_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row, tiles = ct.bid(0), ct.num_tiles(x, 1, (ROWS, COLUMNS))
    peak, total = ct.full((ROWS, 1), -math.inf, ct.float32), ct.zeros((ROWS, 1), ct.float32)
    for tile in range(tiles):
        value = ct.load(x, (row, tile), (ROWS, COLUMNS), padding_mode=PADDING).astype(ct.float32)
        higher = ct.maximum(peak, ct.max(value, 1, keepdims=True))
        shift = ct.where(higher == -math.inf, 0.0, higher)  # nothing but -inf so far: -inf - -inf would be nan for good
        total = total * ct.exp2((peak - shift) * LOG2_E) + ct.sum(ct.exp2((value - shift) * LOG2_E), 1, keepdims=True)
        peak = higher
    for tile in range(tiles):
        value = ct.load(x, (row, tile), (ROWS, COLUMNS), padding_mode=PADDING).astype(ct.float32)
        ct.store(out, (row, tile), (ct.exp2((value - peak) * LOG2_E) / total).astype(out.dtype))


# Elements a tile, of as many rows as that makes. The first is what the unnamed variant takes, until a GPU has said which is quickest.
TILES = (4096, 2048, 8192)
LEAST, HELD = 32, 16384  # columns of a tile: a power of two; of twice as many, registers spill


def specimen(array: Array, columns: int, tile: int) -> Specimen:
    tile = tile if array.aligned else TILES[0]
    wide = max(LEAST, 1 << (columns - 1).bit_length())
    kernel, shape = (held_kernel, (max(1, tile // wide), wide)) if wide <= HELD else (long_kernel, (1, tile))
    return Specimen("softmax" if wide <= HELD else "softmax_long", kernel, (array, array, *shape))


def build(tile: int, x: Tensor, out: Tensor) -> Bind:
    (array, sizes), (target, _) = matrix(x), matrix(out)
    taken = specimen(replace(array, aligned=array.aligned and target.aligned), x.shape[1], tile)
    return built(taken, -(-x.shape[0] // taken.parameters[2]), x.device, sizes, sizes)


VARIANTS = {f"tile{tile}" if i else "": Variant(partial(build, tile), f"{tile} elements a block; above {HELD} columns, read twice")
            for i, tile in enumerate(TILES)}  # fmt: skip


def specimens() -> Iterator[Specimen]:
    lengths = [2**k for k in range(5, 15)] + [2 * HELD]
    for dtype in DTYPES:
        for aligned in (True, False):
            yield from {specimen(Array(dtype, 2, aligned), n, tile): None for tile in TILES for n in lengths}
