"""Busy and idle time of a GPU or of one of its streams, and the cause of each gap.

The causes are those of Holistic Trace Analysis (HTA), `get_idle_time_breakdown`, as its documentation and its source (0.6.1,
hta/analyzers/breakdown_analysis.py) define them for a gap between two consecutive activities:

    host wait    the call that launched the next activity began after the previous activity had ended: the CPU did not keep up
    kernel wait  it began before, and the gap is shorter than a threshold: the GPU's own delay between two queued kernels
    other        it began before, and the gap is longer: an event of another stream, a full copy engine, a sleeping GPU, unrecorded work

As in HTA, an activity whose launch is not in the trace makes no host wait: its gap is kernel wait or other by its length. The figures give
the number of such activities. Beyond HTA, a host wait is split where the launch call began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opwise.timeline.trace import Activity

HOST, KERNEL, OTHER = CAUSES = ("host wait", "kernel wait", "other")
# HTA's default, `consecutive_kernel_delay=30`. Its documentation calls them ns; its source compares them with the trace's ts, which is us.
KERNEL_WAIT_US = 30.0


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which nothing ran, in ns, and the activity that ended it."""

    start: int
    end: int
    cause: str
    next: Activity

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class HostWait:
    """Host wait in ns, by the CPU's position: before the launch call, in it, or after it while the GPU had not begun."""

    before_call: int
    in_call: int
    after_call: int


@dataclass(frozen=True)
class Breakdown:
    """Times in ns. `span` reaches from the first activity's start to the last one's end; busy + idle = span, the gaps' sum = idle.

    `kernels`, `copies`: the union of the kernels, of copies and fills; overlap counts in both, so their sum may exceed `busy`."""

    span: int
    busy: int
    kernels: int
    copies: int
    activities: int
    unlinked: int
    gaps: tuple[Gap, ...]

    @property
    def idle(self) -> int:
        return self.span - self.busy

    def waited(self, cause: str) -> int:
        return sum(gap.ns for gap in self.gaps if gap.cause == cause)

    @property
    def host_wait(self) -> HostWait:
        before = within = after = 0
        for gap in self.gaps:
            if gap.cause == HOST and gap.next.launch is not None:
                began, ended = min(gap.next.launch.start, gap.end), min(gap.next.launch.end, gap.end)
                before, within, after = before + began - gap.start, within + ended - began, after + gap.end - ended
        return HostWait(before, within, after)


def breakdown(activities: Sequence[Activity], kernel_wait_ns: int) -> Breakdown:
    """For one GPU's, or one stream's, activities in the order they started. Raises ValueError for none."""
    if not activities:
        raise ValueError("breakdown: given no activities, at least one is taken: what never ran was neither busy nor idle")
    gaps = []
    end = activities[0].end
    for activity in activities[1:]:
        if activity.start > end:
            gaps.append(Gap(end, activity.start, cause(end, activity, kernel_wait_ns), activity))
        end = max(end, activity.end)
    span = end - activities[0].start
    idle = sum(gap.ns for gap in gaps)
    kernels = [a for a in activities if a.kind == "kernel"]
    copies = [a for a in activities if a.kind != "kernel"]
    unlinked = sum(a.launch is None for a in activities)
    return Breakdown(span, span - idle, union(kernels), union(copies), len(activities), unlinked, tuple(gaps))


def cause(previous_end: int, following: Activity, kernel_wait_ns: int) -> str:
    """The cause of the gap between `previous_end` and the next activity, by the definitions above."""
    if following.launch is not None and following.launch.start > previous_end:
        return HOST
    return KERNEL if following.start - previous_end < kernel_wait_ns else OTHER


def union(activities: Sequence[Activity]) -> int:
    """ns in which at least one of them ran; they are in the order they started."""
    total, end = 0, None
    for activity in activities:
        if end is None or activity.start >= end:
            total, end = total + activity.ns, activity.end
        elif activity.end > end:
            total, end = total + activity.end - end, activity.end
    return total
