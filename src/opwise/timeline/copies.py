"""Memory copies and fills: number, bytes, rate, and the share hidden by kernels.

Rates are the trace's bytes over the time on the GPU, 1 GB = 10^9 bytes, like CUPTI's `memory bandwidth (GB/s)`, which Holistic Trace
Analysis shows (`get_memory_bw_summary`); here large copies weigh more than small ones, in proportion to their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opwise.timeline.idle import union
from opwise.timeline.trace import Activity


@dataclass(frozen=True)
class Copies:
    """All copies of one kind (`Memcpy HtoD (Pinned -> Device)`, `Memset (Device)`) on one GPU. Times in us; None if bytes are unknown.

    `alone_us`: the time in which no kernel ran on that GPU beside them."""

    kind: str
    device: str
    count: int
    bytes: int | None
    us: float
    gb_per_s: float | None
    alone_us: float


def copies(activities: Sequence[Activity]) -> list[Copies]:
    """One row a kind and GPU, the longest first; `activities` in the order they started."""
    groups: dict[tuple[str, str], list[Activity]] = {}
    for activity in activities:
        if activity.kind != "kernel":
            groups.setdefault((activity.name, activity.device), []).append(activity)
    return sorted((_row(name, device, group, activities) for (name, device), group in groups.items()), key=lambda row: -row.us)


def _row(name: str, device: str, group: Sequence[Activity], activities: Sequence[Activity]) -> Copies:
    ns = sum(a.ns for a in group)
    size = sum(a.bytes or 0 for a in group) if all(a.bytes is not None for a in group) else None
    kernels = [a for a in activities if a.kind == "kernel" and a.device == device]
    both = sorted([*kernels, *group], key=lambda a: a.start)
    alone = union(both) - union(kernels)
    return Copies(name, device, len(group), size, ns / 1e3, size / ns if size is not None and ns else None, alone / 1e3)
