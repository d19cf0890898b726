"""A record's figures in each state of the clock: at full clock, and power-capped if that differs (docs/measuring.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from opwise.measure.stats import tied
from opwise.record import CAPPED, FULL, STATES, Interval, Record

FIRST = ("fastest", "tie")  # what `standing` says of what nothing beats
LABELS = {FULL: "full clock", CAPPED: "power-capped"}
SHORT = {FULL: "full clock", CAPPED: "capped"}  # for a cell of a table


@dataclass(frozen=True)
class Reading:
    """Cold kernel time in one of STATES, with the record's other fields for it."""

    state: str
    cold: Interval
    versus: tuple[float, float, float] | None
    limit_us: float | None
    tflop_per_s: float | None


def readings(r: Record) -> list[Reading]:
    """The measured readings in the order of STATES: two if the power cap changes the time, none without a time."""
    found = []
    if r.kernel_cold_us is not None:
        found.append(Reading(FULL, r.kernel_cold_us, r.versus_best, r.limit_us, r.tflop_per_s))
    if r.kernel_capped_us is not None:
        found.append(Reading(CAPPED, r.kernel_capped_us, r.capped_versus_best, r.capped_limit_us, r.capped_tflop_per_s))
    return found


def ranked(r: Record) -> bool:
    """Returns whether its rank is known in any state."""
    return any(x.versus is not None for x in readings(r))


def differ(records: Iterable[Record]) -> bool:
    """Returns whether any of them is timed in both states."""
    return any(len(readings(r)) == len(STATES) for r in records)


def mark(versus: tuple[float, float, float] | None) -> str:
    """`fastest`, `tie` (within 1 % of it, or an interval that holds 1), or the factor by which it is slower; "" without a ratio."""
    if versus is None:
        return ""
    ratio, low, high = versus
    if ratio == low == high == 1.0:
        return "fastest"
    return "tie" if ratio < 1 or tied(ratio, low, high) else f"{ratio:.2f}x"


def standing(r: Record) -> str:
    """`mark` of its one state. For two states `fastest` or `tie` if it is either in both, else the mark of each; two factors as in
    `both`."""
    found = readings(r)
    marks = {x.state: mark(x.versus) for x in found if x.versus is not None}
    kinds = set(marks.values())
    if len(found) < len(STATES) or not marks:
        return "".join(kinds)
    if len(marks) == len(found) and kinds <= set(FIRST):
        return "fastest" if "fastest" in kinds else "tie"
    if len(marks) == len(found) and not kinds & set(FIRST):
        return " / ".join(marks.values())
    return ", ".join(f"{text} {SHORT[state]}" for state, text in marks.items())


def is_first(r: Record) -> bool:
    """Returns whether it is fastest or tied, in both states if it has both."""
    return standing(r) in FIRST


def both(full: float | None, capped: float | None, form: str) -> str:
    """`full / capped`; only the first if there is no second, and a dash for a first that was not measured."""
    texts = ["-" if full is None else form.format(full)] + ([] if capped is None else [form.format(capped)])
    return "" if texts == ["-"] else " / ".join(texts)


def order_us(group: Iterable[Record]) -> list[Record]:
    """The records, fastest first, by the geometric mean of the states that all timed ones have; those without a time last, in input
    order."""
    rows = list(group)
    states = [s for s in STATES if all(r.kernel_us(s) for r in rows if r.timed)]

    def mean(r: Record) -> float:
        times = [interval.median for s in states if (interval := r.kernel_us(s)) is not None]
        return math.prod(times) ** (1 / len(times)) if times else math.inf

    return sorted(rows, key=mean)


@dataclass(frozen=True)
class Wins:
    """The number of its run's ranked workloads where a backend is the fastest or ties; `by_state` if the states differ."""

    backend: str
    count: int
    workloads: int
    by_state: str = ""


def wins(records: Iterable[Record]) -> list[Wins]:
    """A line per backend, in input order. A workload timed in one state only counts in both."""
    found = [r for r in records if ranked(r)]
    workloads = len({r.workload for r in found})
    lines = []
    for backend in dict.fromkeys(r.backend for r in found):
        own = [r for r in found if r.backend == backend]
        in_state = {s: len({r.workload for r in own if mark(_versus(r, s)) in FIRST}) for s in STATES}
        told = ", ".join(f"{LABELS[s]} {n}" for s, n in in_state.items())
        by_state = f" in both states ({told})" if differ(found) else ""
        lines.append(Wins(backend, len({r.workload for r in own if is_first(r)}), workloads, by_state))
    return lines


def _versus(r: Record, state: str) -> tuple[float, float, float] | None:
    of_state = {x.state: x.versus for x in readings(r)}
    return of_state.get(state) if len(of_state) == len(STATES) else next(iter(of_state.values()))
