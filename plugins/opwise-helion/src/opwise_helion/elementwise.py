"""The builds of square and gelu: a block of elements a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opwise.backends.protocol import Bind, Variant
from torch import Tensor

from opwise_helion.planning import Way, built, called, in_float32

Kernel = Callable[[Tensor, Tensor], None]
# Elements a program, warps a program. The unnamed variant takes the first: within 2 % of the fastest on an H100.
WAYS = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (8192, 8))


def config(block: int, warps: int) -> dict[str, Any]:
    return {"block_sizes": [block], "num_warps": warps}


def flat(x: Tensor) -> Tensor:
    return x.view(-1)


def build(way: Way, x: Tensor, out: Tensor) -> Bind:
    return built(way, (x, out), views=(flat(x), flat(out)))


def build_plain(way: Way, x: Tensor, out: Tensor) -> Bind:
    return called(way, (x, out), view=flat)


def variants(kernel: Kernel) -> dict[str, Variant]:
    ways = {f"block{block}x{warps}" if i else "": (block, warps) for i, (block, warps) in enumerate(WAYS)}
    found = {
        name: Variant(in_float32(partial(build, Way(kernel, config(*way)))), "{} elements and {} warps a program".format(*way))
        for name, way in ways.items()
    }
    first = config(*WAYS[0])
    found["sized"] = Variant(in_float32(partial(build, Way(kernel, first, static=False))), "as the unnamed one, the size an argument")
    found["plain"] = Variant(in_float32(partial(build_plain, Way(kernel, first))), "as the unnamed one, by Helion's own launcher")
    return found
