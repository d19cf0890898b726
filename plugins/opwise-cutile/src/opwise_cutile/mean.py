"""mean in cuTile: each block sums its tiles, a second launch of the same kernel the blocks' sums; of few tiles one block is enough.

Reads n elements. What a block stores is its sum over `count`: 1 where another launch is to come. The order of every sum is fixed by n and
the GPU alone, so ten runs are bit-equal."""

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
def mean_kernel(x, out, count: ct.ScalarInt64, TILE: ct.Constant[int]):
    block, blocks, tiles = ct.bid(0), ct.num_blocks(0), x.shape[0] // TILE
    whole = x.slice(0, 0, ct.assume_divisible_by(tiles * TILE, TILE))  # no bound cuts an access of 16 bytes
    total = ct.zeros((TILE,), ct.float32)
    for tile in range(block, tiles, blocks):
        total += ct.load(whole, (tile,), (TILE,)).astype(ct.float32)
    if tiles * TILE < x.shape[0] and block == tiles % blocks:
        total += ct.load(x, (tiles,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(out, (block,), (ct.sum(total, 0, keepdims=True) / ct.astype(count, ct.float32)).astype(out.dtype))


# Elements a tile, blocks a multiprocessor. The first is what the unnamed variant takes, until a GPU has said which is quickest.
WAYS = ((4096, 4), (4096, 2), (2048, 8), (2048, 4), (8192, 2), (8192, 1))
# Elements a tile of the blocks' sums; tiles that a block adds alone; values that an accumulator takes one after the other at most.
LAST, ALONE, CHAIN = 1024, 4, 128


def tile_of(array: Array, tile: int) -> int:
    return tile if array.aligned and not array.wide else WAYS[0][0]  # a choice where most tensors are


def specimen(array: Array, out: torch.dtype, tile: int) -> Specimen:
    return Specimen("mean", mean_kernel, (array, Array(out, 1, aligned=False), INT64, tile))


def build(tile: int, at_once: int, x: Tensor, out: Tensor) -> Bind:
    array, sizes = flat(x)
    tile, n, device = tile_of(array, tile), x.numel(), x.device
    tiles = -(-n // tile)
    if tiles <= ALONE:
        return built(specimen(array, out.dtype, tile), 1, device, sizes, (1, 1), numbers=(n,))
    blocks = min(tiles, max(at_once * processors(device), -(-tiles // CHAIN)))
    lend = lender(4 * blocks, device)
    first = built(specimen(array, torch.float32, tile), blocks, device, sizes, (blocks, 1), numbers=(1,))
    second = built(specimen(Array(torch.float32, 1), out.dtype, LAST), 1, device, (blocks, 1), (1, 1), numbers=(n,))

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        sums, result = first(x, scratch.memory.tensor), second(scratch.memory.tensor, out)

        def launch() -> None:
            sums()
            result()

        return launched_with(scratch, launch)

    return bind


VARIANTS = {"tile{}x{}".format(*way) if i else "": Variant(partial(build, *way), "tiles of {}, {} blocks an SM, two launches".format(*way))
            for i, way in enumerate(WAYS)}  # fmt: skip


def specimens() -> Iterator[Specimen]:
    for dtype in DTYPES:
        yield specimen(Array(torch.float32, 1), dtype, LAST)
        arrays = [Array(dtype, 1, *facts) for facts in ((True, False), (False, False), (True, True), (False, True))]
        for array, tile in {(array, tile_of(array, tile)): None for array in arrays for tile, _ in WAYS}:
            yield from (specimen(array, out, tile) for out in {torch.float32: None} | ({} if array.wide else {dtype: None}))
