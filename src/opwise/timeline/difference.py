"""Two traces side by side: their figures, and the ratios of B's to A's.

If both traces say how many calls they hold, times and counts are per call, so that traces of different length can be compared; else they
are the whole traces'. Kernels are matched by their short names, as Holistic Trace Analysis's TraceDiff matches operators, and those in only
one trace are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opwise.timeline import idle
from opwise.timeline.analysis import Timeline
from opwise.timeline.trace import short


@dataclass(frozen=True)
class Row:
    """One figure of both traces; None if a trace has none. `unit` is "us", "" for a count, or "share"."""

    what: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a and self.b is not None else None


@dataclass(frozen=True)
class Kernel:
    """How often a kernel ran and its total us, in A and in B."""

    name: str
    a_count: int
    b_count: int
    a_us: float
    b_us: float


@dataclass(frozen=True)
class Difference:
    """`per_call`: the rows' times and counts are per call, else of the whole trace. Spreads (medians) are always per launch."""

    a: str
    b: str
    per_call: bool
    rows: tuple[Row, ...]
    kernels: tuple[Kernel, ...]


def difference(a: Timeline, b: Timeline) -> Difference:
    per_call = bool(a.calls and b.calls)
    first, second = (_figures(t, t.calls if per_call else 1) for t in (a, b))
    rows = tuple(Row(what, unit, value, second[what, unit]) for (what, unit), value in first.items())
    return Difference(a.name, b.name, per_call, rows, tuple(_kernels(a, b)))


def _figures(timeline: Timeline, calls: int) -> Mapping[tuple[str, str], float | None]:
    """The same keys for every timeline. Of several GPUs the times are summed."""
    parts = [part.breakdown for part in timeline.devices]
    span, busy = sum(p.span for p in parts), sum(p.busy for p in parts)
    us = 1e3 * calls
    host = [p.host_wait for p in parts]
    found: dict[tuple[str, str], float | None] = {
        ("span", "us"): span / us,
        ("busy", "us"): busy / us,
        ("busy / span", "share"): busy / span if span else None,
        ("idle", "us"): (span - busy) / us,
        **{(cause, "us"): sum(p.waited(cause) for p in parts) / us for cause in idle.CAUSES},
        ("host wait, before the launch call", "us"): sum(h.before_call for h in host) / us,
        ("host wait, in the launch call", "us"): sum(h.in_call for h in host) / us,
        ("host wait, after the launch call", "us"): sum(h.after_call for h in host) / us,
        ("GPU activities", ""): sum(p.activities for p in parts) / calls,
        ("launches", ""): len(timeline.launches) / calls,
    }
    every = timeline.all_launches
    for what, spread in (("launch call", "cpu"), ("GPU time of a launch", "gpu"), ("delay to the start", "delay")):
        found[f"{what}, median", "us"] = getattr(every, spread).median if every else None
    found["short kernels", ""] = every.short_kernels / calls if every else None
    found["longest queue", ""] = float(max((q.most for q in timeline.queues), default=0))
    return found


def _kernels(a: Timeline, b: Timeline) -> Sequence[Kernel]:
    counts: dict[str, list[float]] = {}
    for side, timeline in enumerate((a, b)):
        for activity in timeline.trace.activities:
            found = counts.setdefault(short(activity.name), [0, 0, 0.0, 0.0])
            found[side] += 1
            found[2 + side] += activity.ns / 1e3
    rows = [Kernel(name, int(c[0]), int(c[1]), c[2], c[3]) for name, c in counts.items()]
    return sorted(rows, key=lambda row: -(row.a_us + row.b_us))
