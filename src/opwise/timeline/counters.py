"""Series over time, written into a trace as Chrome counters, which a viewer draws above the kernels.

Two, as in Holistic Trace Analysis (`generate_trace_with_counters`), under its names. "Queue Length": operations enqueued on a stream that
have not begun (queues.py). "Memcpy BW": GB/s of the copies and fills of a kind that run at a moment, summed; the rate is the trace's own,
else bytes over time. A copy of no length counts as 1 us, as in HTA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from opwise.timeline.queues import queues
from opwise.timeline.trace import Activity, Trace

QUEUE, BANDWIDTH = "Queue Length", "Memcpy BW"
LEAST_NS = 1000
Steps = tuple[tuple[int, float], ...]


def bandwidths(activities: Iterable[Activity]) -> dict[tuple[str, str], Steps]:
    """(GPU, "Memcpy HtoD") -> (ns, GB/s from then on). Copies with neither a rate nor bytes are left out."""
    changes: dict[tuple[str, str], list[tuple[int, int, float]]] = {}
    for a in activities:
        if a.kind != "kernel" and (rate := _rate(a)) is not None:
            series = changes.setdefault((a.device, short_kind(a.name)), [])
            series += [(a.start, 1, rate), (a.start + (a.ns or LEAST_NS), -1, rate)]
    return {key: _steps(series) for key, series in sorted(changes.items())}


def short_kind(name: str) -> str:
    """ "Memcpy HtoD (Pinned -> Device)" as "Memcpy HtoD"."""
    return name.partition(" (")[0]


def _rate(copy: Activity) -> float | None:
    if copy.gb_per_s is not None:
        return copy.gb_per_s
    return copy.bytes / copy.ns if copy.bytes is not None and copy.ns else None


def _steps(changes: Sequence[tuple[int, int, float]]) -> Steps:
    found: list[tuple[int, float]] = []
    level, running = 0.0, 0
    for at, sign, rate in sorted(changes):
        running += sign
        level = level + sign * rate if running else 0.0  # where nothing runs no rounding is left
        if found and found[-1][0] == at:
            found[-1] = (at, level)
        else:
            found.append((at, level))
    return tuple(found)


def events(activities: Sequence[Activity]) -> Iterator[dict[str, Any]]:
    """Counter events (`"ph": "C"`), one viewer row per stream and per kind of copy."""
    for queue in queues(activities):
        for at, length in queue.steps:
            yield _event(QUEUE, queue.device, at, QUEUE, length) | {"id": queue.stream}
    for (device, name), steps in bandwidths(activities).items():
        for at, rate in steps:
            yield _event(name, device, at, BANDWIDTH, rate)


def with_counters(found: Any, trace: Trace) -> dict[str, Any]:
    """The trace's document with the counters of `trace`, which was read from it, appended to its events."""
    whole = found if isinstance(found, dict) else {"traceEvents": found}
    return {**whole, "traceEvents": [*whole["traceEvents"], *events(trace.activities)]}


def _event(name: str, device: str, at: int, what: str, value: float) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": int(device) if device.isdigit() else device, "ts": Decimal(at) / 1000, "args": {what: value}}
