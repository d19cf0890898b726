"""square in cuTile: reads n, writes n elements, one multiplication in float32 and one rounding each."""

from __future__ import annotations

from functools import partial

import cuda.tile as ct

from opwise_cutile import elementwise


@ct.kernel
def square_kernel(x, out, TILE: ct.Constant[int]):
    tile = ct.bid(0)
    whole = ct.assume_divisible_by(x.shape[0] // TILE * TILE, TILE)  # so far no bound cuts an access of 16 bytes, whatever n is
    if tile < whole // TILE:
        value = ct.load(x.slice(0, 0, whole), (tile,), (TILE,), check_bounds=False).astype(ct.float32)
        ct.store(out.slice(0, 0, whole), (tile,), (value * value).astype(out.dtype), check_bounds=False)
    else:
        value = ct.load(x, (tile,), (TILE,)).astype(ct.float32)
        ct.store(out, (tile,), (value * value).astype(out.dtype))


VARIANTS = elementwise.variants("square", square_kernel)
specimens = partial(elementwise.specimens, "square", square_kernel)
