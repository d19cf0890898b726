"""softmax over rows in cuTile: rows of up to HELD columns as a tile, read once; longer ones in tiles, read twice.

exp is 2^(log2(e) (x - max)): the difference is rounded first, or rows far from zero would lose all digits. A nan is dropped by the maximum
and comes back through the sum. No TMA: with it tileiras gives each thread 255 registers on sm_90, and two blocks an SM hide no latency.
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

LOG2_E, PADDING = math.log2(math.e), ct.PaddingMode.NEG_INF


def loaded(x, row, tile, ROWS, COLUMNS):
    return ct.load(x, (row, tile), (ROWS, COLUMNS), padding_mode=PADDING, allow_tma=False).astype(ct.float32)


def power(difference):
    return ct.exp2(difference * LOG2_E, flush_to_zero=True)


@ct.kernel
def held_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    value = loaded(x, ct.bid(0), 0, ROWS, COLUMNS)
    value = power(value - ct.max(value, 1, keepdims=True))
    ct.store(out, (ct.bid(0), 0), (value * (1 / ct.sum(value, 1, keepdims=True))).astype(out.dtype), allow_tma=False)


@ct.kernel
def long_kernel(x, out, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row, tiles = ct.bid(0), ct.num_tiles(x, 1, (ROWS, COLUMNS))
    peak, total = ct.full((ROWS, 1), -math.inf, ct.float32), ct.zeros((ROWS, 1), ct.float32)
    for tile in range(tiles):
        value = loaded(x, row, tile, ROWS, COLUMNS)
        higher = ct.maximum(peak, ct.max(value, 1, keepdims=True))
        shift = ct.where(higher == -math.inf, 0.0, higher)  # nothing but -inf so far: -inf - -inf would be nan for good
        total = total * power(peak - shift) + ct.sum(power(value - shift), 1, keepdims=True)
        peak = higher
    scale = 1 / total
    for tile in range(tiles):
        value = power(loaded(x, row, tile, ROWS, COLUMNS) - peak)
        ct.store(out, (row, tile), (value * scale).astype(out.dtype), allow_tma=False)


TILES = (2048, 4096, 8192)  # elements, of as many rows as that makes. By H100: 2048 of rows that are held, of longer ones 16 KiB
LEAST, HELD = 32, 32768  # columns of a tile: a power of two; of twice as many, registers spill
WIDE = 8192  # elements a tile from which 8 warps hold it in place of 4
HELD_ROWS, LONG_ROWS = ((kernel, kernel.replace_hints(num_worker_warps=8)) for kernel in (held_kernel, long_kernel))


def specimen(array: Array, columns: int, tile: int | None) -> Specimen:
    wide = max(LEAST, 1 << (columns - 1).bit_length())
    tile = tile if tile and array.aligned else TILES[0] if wide <= HELD else 16384 // array.dtype.itemsize
    name, kernel, shape = ("softmax", HELD_ROWS, (max(1, tile // wide), wide)) if wide <= HELD else ("softmax_long", LONG_ROWS, (1, tile))
    return Specimen(name, kernel[math.prod(shape) >= WIDE], (array, array, *shape))


def build(tile: int | None, x: Tensor, out: Tensor) -> Bind:
    (array, sizes), (target, _) = matrix(x), matrix(out)
    taken = specimen(replace(array, aligned=array.aligned and target.aligned), x.shape[1], tile)
    return built(taken, -(-x.shape[0] // taken.parameters[2]), x.device, sizes, sizes)


WAYS = {"": None, **{f"tile{tile}": tile for tile in TILES}}
VARIANTS = {name: Variant(partial(build, tile), f"{tile or '2048 or more'} elements a block") for name, tile in WAYS.items()}


def specimens() -> Iterator[Specimen]:
    arrays = [Array(dtype, 2, aligned) for dtype in DTYPES for aligned in (True, False)]
    yield from {specimen(array, 2**k, tile): None for array in arrays for tile in WAYS.values() for k in range(5, 17)}  # 2^16 is above HELD
