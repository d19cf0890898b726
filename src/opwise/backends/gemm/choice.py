"""Which configuration a product gets: the one that is forced, else the one measured to be the quickest, here or by what ships, else the one
predicted to be. Tables hold times of row-major factors. A product of transposed ones moves the same bytes and does the same work: it gets
the configuration that is measured to be the quickest of row-major factors, of those that there are for its layout too.

`choose_invariant` takes among those that sum K in one order whatever m is, so that a row of the product has the same bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from opwise.backends.gemm.cost import Configuration, Product, predicted_us
from opwise.backends.gemm.gpu import Gpu
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import SHIPPED, Choices

C = TypeVar("C", bound=Configuration)
ROWS = (64, 256, 1024, 4096)  # for which an order of summation is chosen


@dataclass(frozen=True)
class Choice:
    """A configuration's name, and by what it was chosen: "forced", "tuned here" (by the user's table) or "measured" (by times that ship),
    both of row-major factors, or "predicted"."""

    name: str
    by: str


def choose(product: Product, offered: Mapping[str, C], gpu: Gpu, choices: Choices = SHIPPED) -> Choice:
    """Of equals, the first. Raises ValueError where nothing is offered, tuned.NoSuchConfiguration where what is forced is not."""
    known = {name: name for name in offered}
    if product.layout != "NN" and not choices.forced:
        known = {replace(configuration, layout="NN").name: name for name, configuration in offered.items()}
    asked = product.kind, product[:3], known
    if name := choices.pick(*asked):
        return Choice(known[name], "forced" if choices.forced else "tuned here" if choices.tuned(*asked) else "measured")
    if not offered:
        raise ValueError(f"matmul: no configuration takes {product}")
    times = predictions(product, offered, gpu)
    return Choice(min(times, key=times.__getitem__), "predicted")


def choose_invariant(product: Product, offered: Callable[[Product], Mapping[str, C]], gpu: Gpu, choices: Choices = SHIPPED) -> Choice:
    """As choose, of configurations of one `summation`: that which is predicted to cost the least over ROWS, of those that there are for one
    row too. It depends on k, n, dtype, alignment and layout alone. Raises UnsupportedWorkload where there is none, as of a transposed A,
    whose rows begin elsewhere for each m."""
    batches = [offered(product._replace(m=m)) for m in (1, *ROWS)]
    orders = set.intersection(*({c.summation(product) for c in found.values()} for found in batches)) - {""}
    if not orders:
        raise UnsupportedWorkload(
            f"matmul:invariant: no kernel sums K of {product} alike for every number of rows: use the unnamed variant"
        )

    def cost(order: str) -> float:
        least = [
            min(predicted_us(c.work(product._replace(m=m)), gpu) for c in found.values() if c.summation(product) == order)
            for m, found in zip(ROWS, batches[1:], strict=True)
        ]
        return math.prod(least)

    order = min(sorted(orders), key=cost)
    return choose(product, {name: c for name, c in offered(product).items() if c.summation(product) == order}, gpu, choices)


def predictions(product: Product, offered: Mapping[str, C], gpu: Gpu) -> dict[str, float]:
    """us by configuration, in the order in which they are offered."""
    return {name: predicted_us(configuration.work(product), gpu) for name, configuration in offered.items()}
