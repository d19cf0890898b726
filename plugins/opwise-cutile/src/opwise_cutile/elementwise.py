"""The launcher of square and gelu: one tile a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from opwise.backends.protocol import Bind, Variant
from torch import Tensor

from opwise_cutile.launching import built, flat
from opwise_cutile.tileiras import DTYPES, Array, Specimen

TILES = (1024, 2048, 4096, 8192)  # elements; the first is what the unnamed variant takes


def specimen(name: str, kernel: Any, array: Array, tile: int) -> Specimen:
    """The tile is a choice where most tensors are: on 16 bytes, below 2^31 elements."""
    return Specimen(name, kernel, (array, array, tile if array.aligned and not array.wide else TILES[0]))


def build(name: str, kernel: Any, tile: int, x: Tensor, out: Tensor) -> Bind:
    (array, sizes), (target, _) = flat(x), flat(out)
    taken = specimen(name, kernel, replace(array, aligned=array.aligned and target.aligned), tile)
    return built(taken, -(-x.numel() // taken.parameters[-1]), x.device, sizes, sizes)


def variants(name: str, kernel: Any) -> dict[str, Variant]:
    first, *others = (Variant(partial(build, name, kernel, tile), f"{tile} elements a block") for tile in TILES)
    return {"": first, **{f"tile{tile}": other for tile, other in zip(TILES[1:], others, strict=True)}}


def specimens(name: str, kernel: Any) -> Iterator[Specimen]:
    for dtype in DTYPES:
        yield from (specimen(name, kernel, Array(dtype, 1), tile) for tile in TILES)
        yield from (specimen(name, kernel, Array(dtype, 1, *odd), TILES[0]) for odd in ((False, False), (True, True), (False, True)))
