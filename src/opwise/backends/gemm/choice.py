"""Which configuration a product gets: the forced one; else the fastest in a table of measured times (the user's or the shipped); else the
one with the least predicted time. Tables hold times of row-major A and B. A product with a transposed factor moves the same bytes and
does the same work, so it gets the configuration that is fastest for row-major factors, among those that exist for its own layout.

`choose_invariant` takes only configurations that sum K in one order for every m: a row of the product has the same bits in any batch."""

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
ROWS = (64, 256, 1024, 4096)  # values of m over which choose_invariant compares predicted times


@dataclass(frozen=True)
class Choice:
    """A configuration's name, and why it was chosen: "forced", "tuned here" (the user's table), "measured" (the shipped table) or
    "predicted". Both tables hold times of row-major factors."""

    name: str
    by: str


def choose(product: Product, offered: Mapping[str, C], gpu: Gpu, choices: Choices = SHIPPED) -> Choice:
    """Ties go to the first one offered. Raises ValueError if `offered` is empty, tuned.NoSuchConfiguration if it lacks the forced one."""
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
    """As choose, among the configurations of one `summation`. That is the one with the least product of predicted times over m in ROWS, of
    those that exist for each of these m and for m = 1; it depends on k, n, dtype, alignment and layout alone. Raises UnsupportedWorkload if
    there is none, as for a transposed A: the alignment of its rows depends on m."""
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
    """Predicted us by configuration name, in the order of `offered`."""
    return {name: predicted_us(configuration.work(product), gpu) for name, configuration in offered.items()}
