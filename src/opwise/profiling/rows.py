"""Figures of a trace: one row per kernel, stage of a call, and operator. Times are medians, in us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwise.measure.stats import median
from opwise.profiling import trace as reading
from opwise.profiling.capture import ALLOCATE, CALL, COLD, COMPILE, FIRST, LAUNCH, WARM, WRAP, Trace
from opwise.profiling.trace import Activity, Range

HEATS = {"cold": COLD, "warm": WARM}
STAGES = (COMPILE, FIRST, ALLOCATE, WRAP, LAUNCH, CALL)


@dataclass(frozen=True)
class KernelRow:
    """A kernel, memset or copy of the implementation's launches, under one configuration.

    `heat`: launches from a "cold" or a "warm" L2. `count`: how often it ran in `launches` launches. `device_us`: its median GPU time, by
    CUPTI. `api_us`: CPU time of the driver's or runtime's call, under the profiler. None: not in the trace."""

    name: str
    heat: str
    count: int
    launches: int
    device_us: float
    low_us: float
    high_us: float
    api_us: float | None
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    registers: int | None
    shared_bytes: int | None
    occupancy_percent: float | None
    stream: int | None

    @property
    def each_launch(self) -> float:
        return self.count / self.launches


@dataclass(frozen=True)
class LaunchRow:
    """A whole launch on the GPU, from the start of its first kernel to the end of its last; median, least and most of `count`."""

    heat: str
    count: int
    device_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class StageRow:
    """A stage of a call: CPU time of its labelled range, median of `count`, under the profiler and so longer than without."""

    stage: str
    count: int
    cpu_us: float


@dataclass(frozen=True)
class OperatorRow:
    """A torch operator within the calls: how often per call, CPU time per call with and without the operators it calls."""

    name: str
    each_call: float
    cpu_us: float
    self_us: float


def kernels(trace: Trace) -> tuple[list[KernelRow], list[LaunchRow]]:
    """The kernels of the labelled launches, cold before warm, each group in the order in which they ran; and the launches as wholes."""
    spans = reading.ranges(trace)
    done = reading.activities(trace, spans)
    rows: list[KernelRow] = []
    launches: list[LaunchRow] = []
    for heat, label in HEATS.items():
        wanted = {i for i, span in enumerate(spans) if span.label == label}
        found = [a for a in done if a.within in wanted]
        if found:
            rows += _rows(found, heat, len(wanted))
            launches.append(_launch(found, heat))
    return rows, launches


def _rows(found: Sequence[Activity], heat: str, launches: int) -> list[KernelRow]:
    groups: dict[tuple[Any, ...], list[Activity]] = {}
    for activity in found:
        groups.setdefault((activity.name, *_configuration(activity.facts)), []).append(activity)
    return [_row(heat, launches, key, group) for key, group in groups.items()]


def _configuration(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    grid, block = facts.get("grid"), facts.get("block")
    registers, shared = facts.get("registers per thread"), facts.get("shared memory")
    return tuple(grid) if grid else None, tuple(block) if block else None, registers, shared, facts.get("stream")


def _row(heat: str, launches: int, key: tuple[Any, ...], group: Sequence[Activity]) -> KernelRow:
    name, grid, block, registers, shared, stream = key
    times = [a.us for a in group]
    calls = [a.api_us for a in group if a.api_us is not None]
    occupancy = [a.facts["est. achieved occupancy %"] for a in group if "est. achieved occupancy %" in a.facts]
    return KernelRow(
        name, heat, len(group), launches, median(times), min(times), max(times), median(calls) if calls else None, grid, block, registers,
        shared, float(median(occupancy)) if occupancy else None, stream,
    )  # fmt: skip


def _launch(found: Sequence[Activity], heat: str) -> LaunchRow:
    first: dict[int | None, float] = {}
    last: dict[int | None, float] = {}
    for a in found:
        first[a.within] = min(first.get(a.within, a.start), a.start)
        last[a.within] = max(last.get(a.within, a.end), a.end)
    spans = [last[i] - first[i] for i in first]
    return LaunchRow(heat, len(spans), median(spans), min(spans), max(spans))


def stages(trace: Trace) -> list[StageRow]:
    """The stages that the trace has, in the order of a first call. Wraps and launches are those within calls."""
    spans = reading.ranges(trace)
    calls = [span for span in spans if span.label == CALL]
    rows = []
    for name in STAGES:
        found = [s.us for s in spans if s.label == name and (name in (COMPILE, FIRST) or _within(s, calls))]
        if found:
            rows.append(StageRow(name, len(found), median(found)))
    return rows


def _within(span: Range, calls: Sequence[Range]) -> bool:
    return any(call.start <= span.start and span.end <= call.end for call in calls)


def operators(trace: Trace) -> list[OperatorRow]:
    """torch's operators within the calls, by own time, the longest first. Empty if a call runs none: not all backends launch through
    torch."""
    calls = reading.ranges(trace, CALL)
    totals: dict[str, list[float]] = {}
    for event, _, own in reading.self_times(reading.events(trace, "cpu_op")):
        if _within(Range("", event["ts"], event["ts"] + event["dur"]), calls):
            count, whole, self_us = totals.get(event["name"], [0.0, 0.0, 0.0])
            totals[event["name"]] = [count + 1, whole + event["dur"], self_us + own]
    rows = [OperatorRow(name, *(x / len(calls) for x in of_name)) for name, of_name in totals.items()]
    return sorted(rows, key=lambda row: -row.self_us)
