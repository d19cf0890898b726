"""A backend's times between the shapes where it was measured.

Times are interpolated in the logarithm of the op's sizes (OpSpec.sizes: rows and columns, or M, K and N, or elements), as a multiple of a
trend: the largest of the shortest time on record, its bytes at the highest rate on record and its flops at the highest rate on record, all
of the same op, dtype and GPU. The multiple, by which a backend misses the trend, changes slowly with size. Multiples are averaged in
logarithms with weights 1/distance^POWER (Shepard 1968): exact at measured points, never outside the measured range, for any number of
dimensions and points.

Sizes that are not a multiple of 16 bytes take other code paths, so such points count as OTHER_ALIGNMENT octaves further away. Some kernels
pad odd rows to a power of two; rows padded to different powers count as PADDED octaves further apart per power. The interval comes from
predicting each point from the others: 1.96 times the root mean square of those errors, weighted like the points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Sizes = tuple[int, ...]
POWER = 4.0
K_COUNTS = 2.0  # of a product's sizes K counts so many times; with both, 45 of 608 products left out in turn are over 10 % off, else 57
OTHER_ALIGNMENT = 8.0  # of 2, 4, 8 and 16 octaves one of those with the fewest bad choices when workloads of the grid are left out in turn
PADDED = 2.0  # of 0, 1, 2 and 4: of 294 softmax workloads left out in turn 29, 18, 14 and 16 are chosen for more than 10 % off the best
LONE_POINT = math.log(2.0)  # the error ascribed to a figure that has no other to be checked against
ON_HULL = 0.01  # octaves


def coordinates(sizes: Sizes, granule: int) -> list[float]:
    """log2 of the sizes, and two more dimensions: the alignment to `granule` elements, and the power of two that odd rows are padded to.
    Rows of a contiguous matrix align whatever their number."""
    aligned = all(n % granule == 0 for n in (sizes[1:] or sizes))
    logs = [math.log2(max(n, 1)) for n in sizes]
    if len(sizes) == 3:
        logs[1] *= K_COUNTS
    padded = PADDED * math.ceil(logs[-1]) if len(sizes) == 2 and not aligned else 0.0
    return [*logs, 0.0 if aligned else OTHER_ALIGNMENT, padded]


class Interpolant:
    """Positive values known at some sizes. `trend(sizes)` > 0 is divided out before and multiplied back after. `granule`: elements in 16
    bytes."""

    def __init__(
        self, known: Sequence[tuple[Sizes, float]], trend: Callable[[Sizes], float] = lambda sizes: 1.0, *, granule: int = 8
    ) -> None:
        """Raises ValueError where nothing is known."""
        if not known:
            raise ValueError("nothing can be interpolated from no figures: measure some workload of this op and dtype first")
        self.trend, self.granule = trend, granule
        self.points = np.array([coordinates(sizes, granule) for sizes, _ in known])
        self.logs = np.log([value / trend(sizes) for sizes, value in known])
        self.errors = self._left_out()

    def at(self, sizes: Sizes) -> tuple[float, float, float]:
        """(value, low, high) in the unit of the known values."""
        weights = _weights(np.linalg.norm(self.points - coordinates(sizes, self.granule), axis=1))
        value = math.exp(float(weights @ self.logs)) * self.trend(sizes)
        spread = math.exp(1.96 * math.sqrt(float(weights @ self.errors**2)))
        return value, value / spread, value * spread

    def holds(self, sizes: Sizes) -> bool:
        """Returns whether the sizes lie within the convex hull of the known ones; alignment does not count as a direction."""
        return _within(self.points[:, : len(sizes)], np.array(coordinates(sizes, self.granule)[: len(sizes)]))

    def _left_out(self) -> Any:
        """log of prediction over truth at each point, predicted from the others."""
        if len(self.points) == 1:
            return np.array([LONE_POINT])
        apart = np.linalg.norm(self.points[:, None] - self.points[None], axis=-1)
        np.fill_diagonal(apart, np.inf)
        return np.array([_weights(row) @ self.logs for row in apart]) - self.logs


def nearest(known: Sequence[Sizes], sizes: Sizes, granule: int) -> Sizes:
    """The known sizes with the largest weight for a figure at `sizes`."""
    here = np.array(coordinates(sizes, granule))
    return min(known, key=lambda at: float(np.linalg.norm(coordinates(at, granule) - here)))


def _weights(distances: Any) -> Any:
    exact = distances < 1e-9
    weights = exact.astype(float) if exact.any() else distances**-POWER
    return weights / weights.sum()


def _within(points: Any, x: Any, steps: int = 2000) -> bool:
    """Gilbert's algorithm: walk from a point of the hull towards x; either x is reached, or a plane separates it from all points."""
    nearest = points[np.argmin(np.linalg.norm(points - x, axis=1))]
    for _ in range(steps):
        towards = x - nearest
        if np.linalg.norm(towards) < ON_HULL:
            return True
        reach = (points - x) @ towards
        if reach.max() < 0:
            return False
        step = points[reach.argmax()] - nearest
        length = float(step @ step)
        if length == 0.0:
            return False
        nearest = nearest + step * min(1.0, max(0.0, float(towards @ step) / length))
    return bool(np.linalg.norm(x - nearest) < 10 * ON_HULL)


def best_case(costs: Sequence[tuple[float, float, float]], cost_of: Callable[[Sizes], tuple[float, float]]) -> Callable[[Sizes], float]:
    """The trend of kernel times, in us. costs: (us, bytes, flops) of all records; cost_of(sizes) -> (bytes, flops)."""
    least = min(us for us, _, _ in costs)
    bytes_per_us = max(moved / us for us, moved, _ in costs)
    flops_per_us = max(flops / us for us, _, flops in costs)

    def trend(sizes: Sizes) -> float:
        moved, flops = cost_of(sizes)
        return max(least, moved / bytes_per_us if bytes_per_us else 0.0, flops / flops_per_us if flops_per_us else 0.0)

    return trend
