"""The two states of the clock in which a cold kernel time is taken (record.STATES), and how their times are combined.

Times of different states are never compared. Code that compares records asks `common` for the states in which all of them are known, and
uses the geometric mean of each record's times in those."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from opwise.record import CAPPED, FULL, STATES, Record

BOTH = "both"
CLOCKS: Mapping[str, str] = {
    BOTH: "the geometric mean of the two states' kernel times",
    FULL: "launches with rests between them, the SM clock at its highest",
    CAPPED: "launches back to back, the clock as the power cap leaves it",
}
TOLD: Mapping[str, str] = {FULL: "at full clock", CAPPED: "power-capped"}

Triple = tuple[float, float, float]  # median, low, high


def states_of(clock: str) -> tuple[str, ...]:
    """The states that one of CLOCKS names."""
    return STATES if clock == BOTH else (clock,)


def common(records: Iterable[Record], clock: str = BOTH) -> tuple[str, ...]:
    """The states that `clock` names in which all of these timed records have a time. All have one in the capped state."""
    found = list(records)
    return tuple(state for state in states_of(clock) if all(r.kernel_us(state) is not None for r in found))


def kernel(record: Record, states: Sequence[str]) -> Triple:
    """Cold kernel time in us over these states; the record must have a time in each."""
    return mean([(t.median, t.low, t.high) for state in states if (t := record.kernel_us(state)) is not None])


def mean(times: Sequence[Triple]) -> Triple:
    """The geometric mean of the medians and of the interval ends. Raises ValueError for no times."""
    if not times:
        raise ValueError("no time is given: a mean is of one state's time or of two")
    if len(set(times)) == 1:  # the cap changes nothing
        return times[0]
    median, low, high = (math.prod(column) ** (1 / len(times)) for column in zip(*times, strict=True))
    return median, low, high


def alike(one: Record, other: Record, state: str) -> bool:
    """Returns whether the paired ratios of two records of one job refer to the same record's launches. If the cap changes only one of them,
    its ratio is to the fastest under the cap, the other's to the fastest at full clock; a job of schema 1 had one state for all."""
    changed = [r for r in (one, other) if r.kernel_capped_us is not None]
    return state == FULL or len(changed) != 1 or changed[0].kernel_cold_us is None


def paired(one: Record, other: Record, states: Sequence[str]) -> Triple | None:
    """Ratio of their times from the rounds of one job, over these states; None if a paired ratio is missing."""
    ratios = []
    for state in states:
        x, y = one.versus(state), other.versus(state)
        if x is None or y is None or not alike(one, other, state) or not all(0 < v < math.inf for v in (*x, *y)):
            return None
        ratios.append((x[0] / y[0], x[1] / y[2], x[2] / y[1]))
    return mean(ratios) if ratios else None
