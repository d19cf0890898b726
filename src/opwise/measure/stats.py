"""Medians, their bootstrap intervals, and rules based on them. Seeded: the same samples give the same interval.

The bootstrap is exact in distribution and needs no resampling. A resample's i-th order statistic is the sample's order statistic at rank
ceil(n U_(i)), where U_(i) is the i-th of n uniform numbers, which follows Beta(i, n + 1 - i): one draw replaces one resample of any length
(Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982, section 10.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

RESAMPLES = 4000  # the ends of a 95 % interval are then the 100th draw from each side: their own error is a small part of the width
CONFIDENCE = 0.95
SEED = 20201113  # any fixed number: an interval must not change when a stored run is evaluated again
CLOSE = 0.005  # stop when the interval is within 0.5 % of the median
TICK_US = 0.032  # the step in which CUDA events count on an H200: an interval of one step cannot get narrower
TIE = 0.01  # rules: faster or slower needs a gap of at least 1 %


def median(samples: Sequence[float]) -> float:
    """Raises ValueError for no samples, which is an error of the caller."""
    if len(samples) == 0:
        raise ValueError("median: given no samples, at least one is taken: a cell without samples has no time")
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): the percentile bootstrap 95 % interval of the median, in the samples' unit. One sample is its own interval."""
    middle = median(samples)
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    rng = np.random.default_rng(SEED)
    first = (n + 1) // 2  # the rank of the median, or of the lower of the two middle ones
    lower = rng.beta(first, n + 1 - first, RESAMPLES)
    medians = ordered[_ranks(lower, n)]
    if n % 2 == 0:  # given the lower middle one, the next is the least of n - first uniform numbers above it
        upper = lower + (1.0 - lower) * rng.beta(1, n - first, RESAMPLES)
        medians = (medians + ordered[_ranks(upper, n)]) / 2
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1.0 - tail))
    return middle, min(float(low), middle), max(float(high), middle)


def _ranks(u: Any, n: int) -> Any:
    return np.clip(np.ceil(u * n).astype(np.int64) - 1, 0, n - 1)


def settled(middle: float, low: float, high: float, tick: float = 0.0) -> bool:
    """Returns whether both ends of the interval are within 0.5 % of the median, or within one `tick` of the clock that took the samples."""
    return math.isfinite(middle) and max(high - middle, middle - low) <= max(CLOSE * abs(middle), 1.01 * tick)


def paired(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high) of a/b, round by round, which cancels drift slower than a round. Raises ValueError if the numbers of rounds
    differ."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"paired ratio: given {len(a)} and {len(b)} rounds, as many of each are taken: time both in one call")
    return median_interval([x / y for x, y in zip(a, b, strict=True)])


def tied(ratio: float, low: float, high: float) -> bool:
    """Returns whether neither is faster: the gap is under 1 %, or the interval of the ratio holds 1."""
    return abs(ratio - 1.0) < TIE or low <= 1.0 <= high
