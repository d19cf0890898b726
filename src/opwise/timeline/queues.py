"""Queue length: how many operations enqueued on a stream have not begun.

As in Holistic Trace Analysis (`get_queue_length_time_series`): plus one when the call that enqueues an operation begins, minus one when the
operation begins on the GPU; operations whose launch is not in the trace are left out. HTA's summary counts each change once; here lengths
are weighted by their duration. At 1024, by HTA, a stream's queue is full: further launches wait for the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opwise.timeline.trace import Activity

FULL = 1024  # HTA's CUDA_MAX_LAUNCH_QUEUE_PER_STREAM


@dataclass(frozen=True)
class Queue:
    """One stream's queue. `steps`: (ns, length from then on), the first at the first launch, the last of length 0.

    `mean` is weighted by time from the first launch to the last step; `empty` and `full` are shares of that time, at 0 and at FULL or
    more."""

    device: str
    stream: str
    steps: tuple[tuple[int, int], ...]
    most: int
    mean: float
    empty: float
    full: float


def queues(activities: Iterable[Activity]) -> list[Queue]:
    """One a stream that has a linked activity, in the order of devices and streams."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for a in activities:
        if a.launch is not None:
            found = changes.setdefault((a.device, a.stream), [])
            found.append((a.launch.start, 1))
            # The GPU's clock and the CPU's agree to about a us: an operation that seems to begin before its launch began with it.
            found.append((max(a.start, a.launch.start), -1))
    return [_queue(*key, changes[key]) for key in sorted(changes)]


def _queue(device: str, stream: str, changes: list[tuple[int, int]]) -> Queue:
    steps: list[tuple[int, int]] = []
    length = 0
    for at, change in sorted(changes, key=lambda c: (c[0], -c[1])):  # at one instant the launch first: never below 0
        length += change
        if steps and steps[-1][0] == at:
            steps[-1] = (at, length)
        else:
            steps.append((at, length))
    spans = [(steps[i + 1][0] - at, n) for i, (at, n) in enumerate(steps[:-1])]
    time = sum(ns for ns, _ in spans)
    most = max(n for _, n in steps)
    if not time:
        return Queue(device, stream, tuple(steps), most, 0.0, 1.0, 0.0)
    mean = sum(ns * n for ns, n in spans) / time
    empty = sum(ns for ns, n in spans if n == 0) / time
    full = sum(ns for ns, n in spans if n >= FULL) / time
    return Queue(device, stream, tuple(steps), most, mean, empty, full)
