"""mean in cuTile: each block sums its tiles, a second launch of the same kernel the blocks' sums; of few tiles one block is enough.

Reads n elements. A block stores its sum over `count`: 1 where another launch is to come. n and the GPU alone fix the order of every sum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import cuda.tile as ct
import torch
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.scratch import launched_with, lender
from torch import Tensor

from opwise_cutile.launching import built, flat, processors
from opwise_cutile.tileiras import DTYPES, INT64, Array, Specimen


@ct.kernel
def mean_kernel(x, out, count: ct.ScalarInt64, TILE: ct.Constant[int], TMA: ct.Constant[bool]):
    block, blocks, tiles = ct.bid(0), ct.num_blocks(0), x.shape[0] // TILE
    whole = x.slice(0, 0, ct.assume_divisible_by(tiles * TILE, TILE))  # no bound cuts an access of 16 bytes
    total = ct.zeros((TILE,), ct.float32)
    for tile in range(block, tiles, blocks):
        total += ct.load(whole, (tile,), (TILE,), allow_tma=TMA).astype(ct.float32)
    if tiles * TILE < x.shape[0] and block == tiles % blocks:
        total += ct.load(x, (tiles,), (TILE,), padding_mode=ct.PaddingMode.ZERO, allow_tma=TMA).astype(ct.float32)
    ct.store(out, (block,), (ct.sum(total, 0, keepdims=True) / ct.astype(count, ct.float32)).astype(out.dtype))


# Elements a tile, blocks an SM, whether a tile comes through TMA. By H100: the first of 16 bits, the second of float32.
WAYS = ((8192, 1, True), (4096, 4, False), (2048, 8, False))
# Elements a tile of the blocks' sums; tiles that a block adds alone; values that an accumulator takes one after the other at most.
LAST, ALONE, CHAIN = 1024, 4, 128


def way_of(array: Array, way: tuple[int, int, bool] | None) -> tuple[int, int, bool]:
    return WAYS[1] if array.wide or not array.aligned else way or WAYS[array.dtype == torch.float32]


def specimen(array: Array, out: torch.dtype, tile: int, tma: bool) -> Specimen:
    return Specimen("mean", mean_kernel, (array, Array(out, 1, aligned=False), INT64, tile, tma))


def build(way: tuple[int, int, bool] | None, x: Tensor, out: Tensor) -> Bind:
    array, sizes = flat(x)
    (tile, at_once, tma), n, device = way_of(array, way), x.numel(), x.device
    tiles = -(-n // tile)
    if tiles <= ALONE:
        return built(specimen(array, out.dtype, tile, tma), 1, device, sizes, (1, 1), numbers=(n,))
    blocks = min(tiles, max(at_once * processors(device), -(-tiles // CHAIN)))
    lend = lender(4 * blocks, device, zeroed=0)
    first = built(specimen(array, torch.float32, tile, tma), blocks, device, sizes, (blocks, 1), numbers=(1,))
    second = built(specimen(Array(torch.float32, 1), out.dtype, LAST, False), 1, device, (blocks, 1), (1, 1), numbers=(n,))

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        sums, result = first(x, scratch.memory.tensor), second(scratch.memory.tensor, out)

        def launch() -> None:
            sums()
            result()

        return launched_with(scratch, launch)

    return bind


NAMES = {"": None, **{f"tile{way[0]}": way for way in WAYS}}
SUMMARY = "tiles of {}, two launches"
VARIANTS = {name: Variant(partial(build, way), SUMMARY.format(way[0] if way else "8192 or 4096")) for name, way in NAMES.items()}


def specimens() -> Iterator[Specimen]:
    for dtype in DTYPES:
        yield specimen(Array(torch.float32, 1), dtype, LAST, False)
        arrays = [Array(dtype, 1, *facts) for facts in ((True, False), (False, False), (True, True), (False, True))]
        for array, (tile, _, tma) in {(array, way_of(array, way)): None for array in arrays for way in (None, *WAYS)}:
            yield from (specimen(array, out, tile, tma) for out in {torch.float32: None} | ({} if array.wide else {dtype: None}))
