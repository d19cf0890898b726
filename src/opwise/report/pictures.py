"""The report's figures as SVG and PNG files, drawn by matplotlib, which needs no browser."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwise.report.figures import Axis, Figure, Panel, Series, Style, spanned
from opwise.report.html import MissingExtra

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "cross": "P", "star": "*", "triangle-down": "v",
           "pentagon": "p", "hexagon": "h"}  # fmt: skip
FORMATS = ("svg", "png")
COLUMNS = 4
INCHES = (3.6, 3.0)
NOTE_CHARACTERS = 56  # of 7 points, what is as wide as a panel


def write(figures: Sequence[Figure], looks: Mapping[str, Style], folder: Path, prefix: str) -> list[Path]:
    """One file per figure and format, named <prefix>-<figure>.<format>. Raises MissingExtra, and OSError if it cannot be written."""
    try:
        matplotlib, canvas = importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtra("--plots needs matplotlib, which is not installed: pip install 'opwise[report]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 8}):  # a fixed salt: the same run gives the same file
        for figure in figures:
            if not figure.panels:
                continue
            drawn = _drawn(figure, looks, canvas)
            for kind in FORMATS:
                path = folder / f"{prefix}-{figure.name}.{kind}"
                drawn.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)
                written.append(path)
    return written


def _drawn(figure: Figure, looks: Mapping[str, Style], canvas: Any) -> Any:
    columns = min(COLUMNS, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    drawn = canvas.Figure(figsize=(INCHES[0] * columns, INCHES[1] * rows + 0.6), layout="constrained")
    drawn.suptitle(figure.title)
    for i, panel in enumerate(figure.panels):
        (ranged,) = spanned([panel])
        _panel(drawn.add_subplot(rows, columns, i + 1), ranged, looks)
    keys = {s.backend: s for panel in figure.panels for s in panel.series if s.backend}
    line = importlib.import_module("matplotlib.lines").Line2D
    handles = [line([], [], ls="", marker=MARKERS[looks[b].symbol], color=looks[b].colour, label=_literal(b)) for b in keys]
    drawn.legend(handles=handles, loc="outside lower center", ncols=min(6, 3 * columns))
    return drawn


def _panel(axes: Any, panel: Panel, looks: Mapping[str, Style]) -> None:
    axes.set_title(_literal("\n".join([panel.title, *_lines(panel.note)])), fontsize=7 if panel.note else 9)
    for side, axis in (("x", panel.x), ("y", panel.y)):
        _axis(axes, side, axis)
    for s in panel.series:
        _series(axes, s, looks)
    axes.grid(visible=True, alpha=0.25)
    axes.set_axisbelow(True)


def _lines(note: str) -> list[str]:
    """A note in lines that fit above a panel, broken between its parts and not within one."""
    parts = note.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in textwrap.wrap(parts, NOTE_CHARACTERS, break_long_words=False)]


def _axis(axes: Any, side: str, axis: Axis) -> None:
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
    if axis.span:
        getattr(axes, f"set_{side}lim")(*axis.span)
    if axis.ticks:
        crowded = side == "x" and len(axis.ticks) > 3
        getattr(axes, f"set_{side}ticks")([p for p, _ in axis.ticks], [_literal(t) for _, t in axis.ticks], rotation=30 if crowded else 0)
    getattr(axes, f"set_{side}label")(axis.title)


def _series(axes: Any, s: Series, looks: Mapping[str, Style]) -> None:
    x, y = [p.x for p in s.points], [p.y for p in s.points]
    if not s.backend:
        axes.plot(x, y, color="black", lw=0.9, ls=":" if s.hollow else "--", zorder=1)
        return
    look = looks[s.backend]
    spread = None
    if any(p.low is not None for p in s.points):
        spread = [
            [p.y - (p.y if p.low is None else p.low) for p in s.points],
            [(p.y if p.high is None else p.high) - p.y for p in s.points],
        ]
    axes.errorbar(x, y, yerr=spread, color=look.colour, marker=MARKERS[look.symbol], ms=7 if s.large else 4, lw=0.7, elinewidth=0.7,
                  ls=("-" if not s.hollow else ":") if s.joined else "", mfc="none" if s.hollow else look.colour)  # fmt: skip


def _literal(text: str) -> str:
    """Between two dollars matplotlib reads mathematics."""
    return text.replace("$", r"\$")
