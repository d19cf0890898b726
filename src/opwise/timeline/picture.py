"""The data of the picture of one or two timelines: `page` passes it to Plotly, `image` to matplotlib.

First the shares of the GPU's time, a bar per trace. Then for each trace its rows over time: the launch calls of each CPU thread, and each
stream's kernels, copies and gaps, coloured by the cause; below it the queue's length, on the same time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opwise.timeline import idle
from opwise.timeline.analysis import Timeline
from opwise.timeline.trace import short

# Okabe and Ito's palette, as in the report.
COLOURS = {"launch call": "#009E73", "kernel": "#0072B2", "copy or fill": "#E69F00", idle.HOST: "#D55E00", idle.KERNEL: "#56B4E9",
           idle.OTHER: "#8A8A8A"}  # fmt: skip
MOST_DRAWN = 4000  # activities of one trace: a page of more opens slowly, and nobody looks at all of them
NAME = 160  # characters of a kernel's name: torch's can be a thousand, times the activities drawn
FIRST_SEEN = 12  # activities in the window that a picture opens on, in the middle of what was recorded


@dataclass(frozen=True)
class Bar:
    """From `start`, `length` long; `text`: further information for the reader."""

    row: str
    start: float
    length: float
    text: str


@dataclass(frozen=True)
class Panel:
    """Bars by kind, or the steps of a line (`x`, constant from there on). `window`: the part of the x axis shown first."""

    title: str
    x: str
    bars: dict[str, list[Bar]]
    steps: dict[str, list[tuple[float, float]]]
    rows: tuple[str, ...]
    window: tuple[float, float]
    group: int  # panels of one group share their x axis


def panels(timelines: Sequence[Timeline]) -> list[Panel]:
    """Panels of timelines with GPU activity."""
    found = [shares(timelines)]
    for i, timeline in enumerate(timelines):
        found += [activity(timeline, i + 1), queue(timeline, i + 1)]
    return found


def shares(timelines: Sequence[Timeline]) -> Panel:
    """Shares of the span of all GPUs of a trace: busy, and idle by cause. Two are told apart by A and B at the start of their names."""
    bars: dict[str, list[Bar]] = {name: [] for name in ("kernel", "copy or fill", *idle.CAUSES)}
    rows = ("GPU",) if len(timelines) == 1 else tuple(t.name.partition(":")[0] for t in timelines)  # A and B: names are long
    for row, timeline in zip(rows, timelines, strict=True):
        parts = [part.breakdown for part in timeline.devices]
        span = sum(p.span for p in parts)
        kernels = sum(p.kernels for p in parts)
        lengths = {"kernel": kernels, "copy or fill": sum(p.busy for p in parts) - kernels,
                   **{cause: sum(p.waited(cause) for p in parts) for cause in idle.CAUSES}}  # fmt: skip
        at = 0.0
        for name, ns in lengths.items():
            share = 100 * ns / span if span else 0.0
            bars[name].append(Bar(row, at, share, f"{name}: {share:.1f} %, {ns / 1e3:.3f} us"))
            at += share
    return Panel("the GPU's time (copies: those that no kernel hid)", "% of the span", bars, {}, rows, (0.0, 100.0), 0)


def activity(timeline: Timeline, group: int) -> Panel:
    trace = timeline.trace
    drawn = trace.activities[:MOST_DRAWN]
    zero, end = origin(timeline), max(a.end for a in drawn)
    bars: dict[str, list[Bar]] = {name: [] for name in COLOURS}
    threads = list(dict.fromkeys(launch.call.thread for launch in timeline.launches))
    names = {thread: f"CPU thread {thread[1]}" if len(threads) > 1 else "CPU" for thread in threads}
    for launch in timeline.launches:
        call = launch.call
        if call.start <= end:
            text = f"{call.name}: {launch.cpu / 1e3:.3f} us, launches {launch.kernel}, which begins {launch.delay / 1e3:.3f} us later"
            bars["launch call"].append(Bar(names[call.thread], (call.start - zero) / 1e3, launch.cpu / 1e3, text))
    several = len(timeline.devices) > 1
    rows = {(p.device, p.stream): f"{f'GPU {p.device} ' if several else ''}stream {p.stream}" for p in timeline.streams}
    for a in drawn:
        text = f"{a.name[:NAME]}: {a.ns / 1e3:.3f} us{'' if a.launch else ', no launch in the trace'}"
        name = "kernel" if a.kind == "kernel" else "copy or fill"
        bars[name].append(Bar(rows[a.device, a.stream], (a.start - zero) / 1e3, a.ns / 1e3, text))
    for part in timeline.streams:
        for gap in part.breakdown.gaps:
            if gap.end <= end:
                text = f"{gap.cause}: {gap.ns / 1e3:.3f} us before {short(gap.next.name)}"
                bars[gap.cause].append(Bar(rows[part.device, part.stream], (gap.start - zero) / 1e3, gap.ns / 1e3, text))
    left = len(trace.activities) - len(drawn)
    title = f"{timeline.name}{f': the first {len(drawn)} of {len(trace.activities)} activities' if left else ''}"
    return Panel(title, "us", bars, {}, (*names.values(), *rows.values()), window(timeline), group)


def queue(timeline: Timeline, group: int) -> Panel:
    zero = origin(timeline)
    last = max(a.end for a in timeline.trace.activities[:MOST_DRAWN])
    several = len(timeline.devices) > 1
    steps = {
        f"{f'GPU {q.device} ' if several else ''}stream {q.stream}": [((at - zero) / 1e3, float(n)) for at, n in q.steps if at <= last]
        for q in timeline.queues
    }
    return Panel("operations in the queue", "us", {}, steps, (), window(timeline), group)


def origin(timeline: Timeline) -> int:
    """ns at the picture's 0: the first launch, or the first activity if that is earlier or no launch is known."""
    return min([timeline.trace.activities[0].start, *(launch.call.start for launch in timeline.launches[:1])])


def window(timeline: Timeline) -> tuple[float, float]:
    """us: the launches and the activities in the middle, so that single ones are visible; everything if there are few."""
    drawn = timeline.trace.activities[:MOST_DRAWN]
    zero = origin(timeline)
    first = max(0, (len(drawn) - FIRST_SEEN) // 2)
    seen = drawn[first : first + FIRST_SEEN]
    start, end = seen[0].start, max(a.end for a in seen)
    if len(drawn) <= FIRST_SEEN:
        start = min([start, *(a.launch.start for a in seen if a.launch)])
        end = max([end, *(a.launch.end for a in seen if a.launch)])
    room = 0.02 * max(end - start, 1)
    low, high = (start - room - zero) / 1e3, (end + room - zero) / 1e3
    return low, high if math.isfinite(high) and high > low else low + 1.0
