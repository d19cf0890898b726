"""mean in Helion: each program sums a tile, a second launch the tiles' sums; of few elements one program is enough.

Reads n elements. The order of every sum is fixed by n alone, so ten runs are bit-equal.
"""

from __future__ import annotations

from functools import partial

import helion.language as hl
import torch
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.scratch import launched_with, lender
from torch import Tensor

from opwise_helion.elementwise import flat
from opwise_helion.planning import Way, built, in_float32


def sums_kernel(x, sums):
    for tile in hl.tile(x.size(0)):
        sums[tile.id] = torch.sum(x[tile].to(torch.float32))


def mean_kernel(x, out, COUNT: hl.constexpr):
    lanes = hl.register_block_size(x.size(0))
    for _ in hl.grid(1):
        total = hl.zeros([lanes], torch.float32)
        for tile in hl.tile(x.size(0), block_size=lanes):
            total += x[tile].to(torch.float32)
        out[0] = (torch.sum(total) / COUNT).to(out.dtype)


# Elements a program of the first launch, and its warps. The unnamed variant takes the first, the fastest of them on an H100.
WAYS = ((16384, 16), (16384, 8), (8192, 8), (4096, 8), (4096, 4))
ALONE = 16384  # elements that one program sums without a second launch
LAST = Way(mean_kernel, {"block_sizes": [1024], "num_warps": 4})


def first_of(tile: int, warps: int) -> Way:
    return Way(sums_kernel, {"block_sizes": [tile], "num_warps": warps})


def build(tile: int, warps: int, x: Tensor, out: Tensor) -> Bind:
    n, device = x.numel(), x.device
    if n <= ALONE:
        return built(LAST, (x, out), n, views=(flat(x), flat(out)))
    blocks = -(-n // tile)
    lend = lender(4 * blocks, device, zeroed=0)  # which holds no counter that others would have to find at 0
    sample = lend().memory.tensor[:blocks]
    first = built(first_of(tile, warps), (x, sample), views=(flat(x), sample))
    second = built(LAST, (sample, out), n, views=(sample, flat(out)))

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        sums, result = first(x, scratch.memory.tensor), second(scratch.memory.tensor, out)

        def launch(keep: object = scratch) -> None:
            sums()
            result()

        return launched_with(scratch, launch) if device.type == "cuda" else launch

    return bind


VARIANTS = {
    "tile{}x{}".format(*way) if i else "": Variant(
        in_float32(partial(build, *way)), "{} elements and {} warps a program, two launches".format(*way)
    )
    for i, way in enumerate(WAYS)
}
