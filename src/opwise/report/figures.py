"""The data of plots: the page passes them to Plotly, `--plots` to matplotlib, and both show the same points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from opwise.backends import BACKENDS
from opwise.record import Record

# Okabe and Ito's palette, told apart by any eye; each backend has a symbol of its own too, so that nothing hangs on colour alone.
# The order leaves the two pale colours to the last, since both a white and a dark page must show them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#F0E442")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "pentagon", "hexagon")


@dataclass(frozen=True)
class Style:
    colour: str
    symbol: str


def styles(backends: Iterable[str]) -> dict[str, Style]:
    """A colour and a symbol for each backend: those of BACKENDS always get the same ones, and up to 72 are distinct."""
    order = list(dict.fromkeys([*BACKENDS, *backends]))
    return {name: Style(COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]) for i, name in enumerate(order)}


@dataclass(frozen=True)
class Point:
    """`text`: information for the reader besides the series and the value."""

    x: float
    y: float
    text: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one backend or, with `backend` "", of a limit: a dashed line, dotted if hollow."""

    name: str
    backend: str
    points: tuple[Point, ...]
    joined: bool = False
    hollow: bool = False
    large: bool = False
    variant: bool = False


@dataclass(frozen=True)
class Axis:
    title: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    span: tuple[float, float] | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""

    @property
    def points(self) -> int:
        return sum(len(s.points) for s in self.series if s.backend)


@dataclass(frozen=True)
class Figure:
    """Panels that answer one question. Without panels, `missing` says why and how to get them."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...] = field(default=())
    missing: str = ""


def spanned(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with common axes, so that two runs can be compared by eye; an axis of names spans the names of all."""
    if not panels:
        return []
    x, y = (_span([getattr(panel, side) for panel in panels], [_values(panel, side) for panel in panels]) for side in "xy")
    return [replace(panel, x=_with_span(panel.x, x), y=_with_span(panel.y, y)) for panel in panels]


def _with_span(axis: Axis, span: tuple[float, float]) -> Axis:
    return replace(axis, span=(-0.5, len(axis.ticks) - 0.5) if axis.ticks else span)


def _values(panel: Panel, side: str) -> list[float]:
    found = [getattr(p, side) for s in panel.series for p in s.points]
    if side == "y":
        found += [end for s in panel.series for p in s.points for end in (p.low, p.high) if end is not None]
    return found


def _span(axes: Sequence[Axis], values: Sequence[Sequence[float]]) -> tuple[float, float]:
    log = axes[0].log
    every = [v for group in values for v in group if math.isfinite(v) and (v > 0 or not log)]
    if not every:
        return (1.0, 10.0) if log else (0.0, 1.0)
    if log:
        low, high = math.log10(min(every)), math.log10(max(every))
        room = 0.05 * (high - low) + 0.05
        return 10 ** (low - room), 10 ** (high + room)
    return 0.0, 1.05 * max(every) or 1.0


def named(record: Record) -> str:
    """The implementation without its op, which the panel names."""
    return record.backend + (f":{record.variant}" if record.variant else "")


def ticks(names: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """An axis of names."""
    return tuple((float(i), name) for i, name in enumerate(names))
