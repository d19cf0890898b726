"""The whole analysis of one trace, and as plain data for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from opwise.timeline import idle, launches
from opwise.timeline.copies import Copies, copies
from opwise.timeline.idle import Breakdown, breakdown
from opwise.timeline.kinds import MOST_KERNELS, KernelTimes, Kinds, kernel_times, kinds
from opwise.timeline.launches import DEFAULTS, Cutoffs, Launch, Launches
from opwise.timeline.operators import Operator, operators
from opwise.timeline.queues import Queue, queues
from opwise.timeline.trace import Activity, Trace


@dataclass(frozen=True)
class Part:
    """One GPU, or one of its streams (`stream` is then not ""), and its breakdown."""

    device: str
    stream: str
    breakdown: Breakdown


@dataclass(frozen=True)
class Timeline:
    """`calls`: the number of calls in the trace, 0 if unknown. `name`: of the trace. `kinds`: None without GPU activity."""

    name: str
    trace: Trace
    calls: int
    kernel_wait_us: float
    cutoffs: Cutoffs
    devices: tuple[Part, ...]
    streams: tuple[Part, ...]
    launches: tuple[Launch, ...]
    all_launches: Launches | None
    by_kernel: tuple[Launches, ...]
    queues: tuple[Queue, ...]
    copies: tuple[Copies, ...]
    operators: tuple[Operator, ...]
    kinds: Kinds | None
    kernel_times: tuple[KernelTimes, ...]

    @classmethod
    def of(
        cls, trace: Trace, name: str = "", calls: int = 0, kernel_wait_us: float = idle.KERNEL_WAIT_US, cutoffs: Cutoffs = DEFAULTS,
        most_kernels: int = MOST_KERNELS,
    ) -> Timeline:  # fmt: skip
        wait = round(kernel_wait_us * 1e3)
        by_device = grouped(trace.activities, streams=False)
        by_stream = grouped(trace.activities, streams=True)
        found = launches.launches(trace.activities)
        return cls(
            name or trace.name,
            trace,
            calls,
            kernel_wait_us,
            cutoffs,
            tuple(Part(device, "", breakdown(group, wait)) for (device, _), group in by_device.items()),
            tuple(Part(device, stream, breakdown(group, wait)) for (device, stream), group in by_stream.items()),
            tuple(found),
            Launches.of(found, cutoffs) if found else None,
            tuple(launches.by_kernel(found, cutoffs)),
            tuple(queues(trace.activities)),
            tuple(copies(trace.activities)),
            tuple(operators(trace.operators)),
            kinds(trace.activities) if trace.activities else None,
            tuple(kernel_times(trace.activities, most_kernels)),
        )

    @property
    def has_gpu(self) -> bool:
        return bool(self.trace.activities)


def grouped(activities: Sequence[Activity], streams: bool) -> dict[tuple[str, str], list[Activity]]:
    """The activities of each (device, stream), or of each (device, ""), in their order; keys in order of first use."""
    groups: dict[tuple[str, str], list[Activity]] = {}
    for activity in activities:
        groups.setdefault((activity.device, activity.stream if streams else ""), []).append(activity)
    return dict(sorted(groups.items()))


def as_data(timeline: Timeline) -> dict[str, Any]:
    """JSON-compatible values. Times are us, moments from the trace's first activity on."""
    trace = timeline.trace
    start = min((launch.call.start for launch in timeline.launches), default=trace.activities[0].start if trace.activities else 0)
    return {
        "kind": "timeline",
        "name": timeline.name,
        "calls": timeline.calls or None,
        "rank": trace.rank,
        "kernel_wait_us": timeline.kernel_wait_us,
        "cutoffs": asdict(timeline.cutoffs),
        "devices": [{"name": trace.devices.get(part.device, ""), **_part(part)} for part in timeline.devices],
        "streams": [{"stream": part.stream, **_part(part)} for part in timeline.streams],
        "unlinked": len(trace.unlinked),
        "skipped": trace.skipped,
        "notes": list(trace.notes),
        "kinds": kinds_data(timeline.kinds) if timeline.kinds else None,
        "kernel_times": [asdict(row) for row in timeline.kernel_times],
        "launches": _launches(timeline.all_launches) if timeline.all_launches else None,
        "kernels": [_launches(row) for row in timeline.by_kernel],
        "queues": [_queue(queue, start) for queue in timeline.queues],
        "copies": [asdict(row) for row in timeline.copies],
        "operators": [asdict(row) for row in timeline.operators],
    }


def kinds_data(found: Kinds) -> Mapping[str, Any]:
    together = [{"kinds": list(key), "us": ns / 1e3} for key, ns in found.together.items()]
    return {"span_us": found.span / 1e3, "idle_us": found.idle / 1e3, "together": together, "overlap": found.overlap}


def _part(part: Part) -> Mapping[str, Any]:
    found = part.breakdown
    host = found.host_wait
    return {
        "device": part.device,
        "span_us": found.span / 1e3,
        "busy_us": found.busy / 1e3,
        "kernels_us": found.kernels / 1e3,
        "copies_us": found.copies / 1e3,
        "idle_us": found.idle / 1e3,
        **{f"{cause.replace(' ', '_')}_us": found.waited(cause) / 1e3 for cause in idle.CAUSES},
        "host_wait_before_call_us": host.before_call / 1e3,
        "host_wait_in_call_us": host.in_call / 1e3,
        "host_wait_after_call_us": host.after_call / 1e3,
        "activities": found.activities,
        "unlinked": found.unlinked,
    }


def _launches(row: Launches) -> Mapping[str, Any]:
    spreads = {f"{what}_us": asdict(getattr(row, what)) for what in ("cpu", "gpu", "delay")}
    names = {"kernel": row.kernel, "by": row.by} if row.kernel else {}
    counts = {"short_kernels": row.short_kernels, "runtime_outliers": row.runtime_outliers, "delay_outliers": row.delay_outliers}
    return {**names, "count": row.count, **spreads, **counts}


def _queue(queue: Queue, start: int) -> Mapping[str, Any]:
    steps = [[(at - start) / 1e3, length] for at, length in queue.steps]
    return {**{name: getattr(queue, name) for name in ("device", "stream", "most", "mean", "empty", "full")}, "steps_us": steps}
