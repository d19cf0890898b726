"""Events with impossible times, which would give a span of years or a GPU that is always busy. They are left out, and named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opwise.timeline.trace import Activity, Call, Timed

DAY = 86_400 * 10**9
COVERED = 3  # later launches that end on the same stream while an activity runs: more than any overlap that a launch may ask for


def apart(timed: Sequence[Timed]) -> tuple[list[Timed], list[str]]:
    """The events without those that lie a day from the rest, or last one: (those, a line about each kind of the others)."""
    if not timed:
        return [], []
    middle = median_low(start for _, start, _ in timed) if max(t[1] for t in timed) - min(t[1] for t in timed) >= DAY else timed[0][1]
    kept = [t for t in timed if abs(t[1] - middle) < DAY and t[2] - t[1] < DAY]
    far = [str(t[0].get("name", "")) for t in timed if abs(t[1] - middle) >= DAY or t[2] - t[1] >= DAY]
    return kept, [f"left out, since they are a day from the others or as long: {len(far)} ({_some(far)})"] if far else []


def overlong(activities: Sequence[Activity]) -> tuple[list[Activity], list[str]]:
    """Activities in the order they started, without those that last over COVERED later launches of their own stream, which runs one after
    the other. The kernels of a CUDA graph, which may run side by side, count as one launch."""
    streams: defaultdict[tuple[str, str], list[Activity]] = defaultdict(list)
    for activity in activities:
        streams[activity.device, activity.stream].append(activity)
    wrong = {id(activity): activity for on in streams.values() for activity in _covering(on)}
    text = [f"{a.name} of {a.ns / 1e3:.3f} us" for a in wrong.values()]
    told = [f"left out, since later launches of their stream end before they do: {len(text)} ({_some(text)})"] if text else []
    return [a for a in activities if id(a) not in wrong], told


def _covering(on: Sequence[Activity]) -> Iterator[Activity]:
    for i, activity in enumerate(on):
        covered: set[Call] = set()
        for later in on[i + 1 :]:
            if later.start >= activity.end or len(covered) == COVERED:
                break
            if later.start > activity.start and later.end < activity.end and later.launch is not None and later.launch != activity.launch:
                covered.add(later.launch)
        if len(covered) == COVERED:
            yield activity


def _some(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(different[:3]) + (", …" if len(different) > 3 else "")
