"""Figures as compact data for page.js: Plotly already takes over a megabyte of the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opwise.report.figures import Axis, Figure, Panel, Series, Style, spanned

GLYPHS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "cross": "✚", "star": "★", "triangle-down": "▼",
          "pentagon": "⬟", "hexagon": "⬢"}  # fmt: skip


def glyph(style: Style) -> str:
    """The marker as a character, for the legend."""
    return GLYPHS[style.symbol]


def figure_rows(by_run: Sequence[Sequence[Figure]], texts: dict[str, int]) -> list[dict[str, Any]]:
    """One entry per figure: `groups` has one group per panel title, with one panel per run in it, None if that run has none.

    Points refer to their texts by number; `texts` is filled with them."""
    return [_row(of_runs, texts) for of_runs in zip(*by_run, strict=True)]


def _row(of_runs: Sequence[Figure], texts: dict[str, int]) -> dict[str, Any]:
    first = of_runs[0]
    titles = list(dict.fromkeys(panel.title for figure in of_runs for panel in figure.panels))
    groups = []
    for place, title in enumerate(titles):
        found = [next((p for p in figure.panels if p.title == title), None) for figure in of_runs]
        ranged = iter(spanned([p for p in found if p is not None]))  # one range for both runs
        groups.append([None if p is None else _panel(next(ranged), f"{first.name}-{place}-{i}", texts) for i, p in enumerate(found)])
    return {
        "name": first.name,
        "title": first.title,
        "captions": list(dict.fromkeys(f.caption for f in of_runs)),
        "groups": groups,
        "missing": ["" if f.panels else f.missing for f in of_runs],
    }


def _panel(panel: Panel, identity: str, texts: dict[str, int]) -> dict[str, Any]:
    parts = [f"{s.name} {len(s.points)} points" for s in panel.series if s.backend]
    return {
        "id": identity,
        "title": panel.title,
        "note": panel.note,
        "told": f"{panel.title}: {', '.join(parts)}",
        "x": _axis(panel.x),
        "y": _axis(panel.y),
        "series": [_series(s, texts) for s in panel.series],
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {"title": axis.title, "log": axis.log, "ticks": axis.ticks, "span": axis.span and [_short(v) for v in axis.span]}


def _series(s: Series, texts: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": s.name,
        "backend": s.backend,
        "x": [_short(p.x) for p in s.points],
        "y": [_short(p.y) for p in s.points],
    }
    made |= {name: True for name in ("joined", "hollow", "large", "variant") if getattr(s, name)}
    made["text"] = [texts.setdefault(p.text, len(texts)) for p in s.points]
    if any(p.low is not None for p in s.points):
        made["low"] = [_short(p.y - (p.y if p.low is None else p.low)) for p in s.points]
        made["high"] = [_short((p.y if p.high is None else p.high) - p.y) for p in s.points]
    return made


def _short(value: float) -> float | None:
    """Six digits are more than a plot shows; null is JSON's word for what is not a number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
