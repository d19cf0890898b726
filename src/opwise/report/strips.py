"""Figures with a strip of points for each implementation: costs of launches, calls and first calls, and error sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from opwise.record import Interval, Record
from opwise.report.figures import Axis, Figure, Panel, Point, Series, named, ticks
from opwise.report.groups import by_op

LEAST_S = 5e-4  # records keep whole milliseconds, and a logarithmic axis has no 0


def costs(records: Sequence[Record]) -> Figure:
    caption = "CPU time, one point a workload with its interval: full markers one launch, hollow ones a whole call, output allocated."
    kinds: tuple[tuple[str, Callable[[Record], Interval | None]], ...] = (("launch", lambda r: r.launch_us), ("call", lambda r: r.call_us))
    panels = []
    for op, group in by_op([r for r in records if r.launch_us or r.call_us]):
        names = list(dict.fromkeys(named(r) for r in group))
        series = []
        for place, (kind, get) in enumerate(kinds):
            for name in names:
                found = [(r, interval) for r in group if named(r) == name and (interval := get(r)) is not None]
                points = [
                    Point(
                        names.index(name) + _beside(place, 2, i, len(found)),
                        v.median,
                        str(r.workload),
                        v.low,
                        v.high,
                    )
                    for i, (r, v) in enumerate(found)
                ]
                if points:
                    variant = bool(found[0][0].variant)
                    series.append(Series(f"{name}, {kind}", found[0][0].backend, tuple(points), hollow=bool(place), variant=variant))
        panels.append(Panel(op, Axis("", ticks=ticks(names)), Axis("us", log=True), tuple(series)))
    return Figure("costs", "Launch and call cost", caption, tuple(panels), "The run holds no launch or call costs.")


def first_calls(records: Sequence[Record]) -> Figure:
    caption = "Seconds to the end of the first call in a fresh process: full with empty compiler caches, hollow with full ones."
    panels = []
    for op, group in by_op([r for r in records if r.compile_cold_s is not None]):
        first = list({named(r): r for r in group}.values())
        series = []
        for i, r in enumerate(first):
            for kind, seconds, shift in (("empty caches", r.compile_cold_s, -0.15), ("full caches", r.compile_cached_s, 0.15)):
                if seconds is not None:
                    point = Point(i + shift, max(seconds, LEAST_S), str(r.workload))
                    series.append(Series(f"{named(r)}, {kind}", r.backend, (point,), hollow=shift > 0, large=True))
        panels.append(Panel(op, Axis("", ticks=ticks([named(r) for r in first])), Axis("s", log=True), tuple(series)))
    return Figure("first-calls", "First call", caption, tuple(panels), "Not measured in this run: opwise run --first-call measures it.")


def errors(records: Sequence[Record]) -> Figure:
    caption = "The largest error over its bound, one point a workload: above the line is wrong. What is not a number stands in the table."
    panels = []
    for op, group in by_op([r for r in records if r.error_ratio is not None and math.isfinite(r.error_ratio)]):
        names = list(dict.fromkeys(named(r) for r in group))
        series = [Series("bound", "", (Point(-0.5, 1.0), Point(len(names) - 0.5, 1.0)), joined=True)]
        for name in names:
            found = [r for r in group if named(r) == name]
            points = [
                Point(
                    names.index(name) + _beside(0, 1, i, len(found)),
                    r.error_ratio or 0.0,
                    f"{r.workload}, {r.status}",
                )
                for i, r in enumerate(found)
            ]
            variant = bool(found[0].variant)
            series.append(Series(name, found[0].backend, tuple(points), hollow=variant, variant=variant))
        wrong = any((r.error_ratio or 0.0) > 10 for r in group)  # one wrong kernel would press all others onto the axis
        if wrong:
            series = [_positive(s) for s in series]
        panels.append(Panel(op, Axis("", ticks=ticks(names)), Axis("error / bound", log=wrong), tuple(series)))
    return Figure("errors", "Errors", caption, tuple(panels), "No cell of this run was checked.")


def _positive(series: Series) -> Series:
    """For a logarithmic axis, which has no 0: an exact result stands at a thousandth of its bound."""
    points = tuple(Point(p.x, max(p.y, 1e-3), p.text) for p in series.points)
    return replace(series, points=points)


def _beside(place: int, places: int, i: int, n: int) -> float:
    """An offset from a tick: `places` strips side by side, the i-th of n points in one of them."""
    width = 0.8 / places
    return -0.4 + place * width + width * (i + 0.5) / max(n, 1)
