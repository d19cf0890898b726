"""The anatomy as stacked bars: a bar per backend, in three panels, since a compile, a call and a kernel need different axes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwise.profiling.anatomy import Anatomy
from opwise.profiling.stacks import plotly
from opwise.report.html import MissingExtra

FORMATS = (".html", ".svg", ".png")
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee")  # told apart by the colour-blind too


@dataclass(frozen=True)
class Panel:
    """`parts`: part -> bar -> value; the parts of a bar are stacked. A missing part has no value."""

    title: str
    unit: str
    bars: Sequence[str]
    parts: Mapping[str, Mapping[str, float]]


def panels(rows: Sequence[Anatomy]) -> list[Panel]:
    """The panels that have data."""
    firsts: dict[str, Mapping[str, float]] = {}
    for row in rows:
        firsts |= {f"{row.backend}, {kind}": parts for kind, parts in (("empty", row.cold), ("full", row.cached)) if parts}
    names = {"import_s": "import", "compile_s": "compile", "first_launch_s": "first launch"}
    in_steps = [r for r in rows if not r.own_call]
    calls = {
        "allocate": {r.backend: r.allocate_us for r in in_steps},
        "wrap": {r.backend: r.wrap_us for r in in_steps},
        "launch": {r.backend: r.launch_us for r in in_steps},
        "look-up": {r.backend: r.lookup_us for r in in_steps},
        "the library's own call": {r.backend: r.call_us for r in rows if r.own_call},
    }
    kernels: dict[str, dict[str, float | None]] = {"kernel": {}}
    for row in rows:
        capped = {f"{row.backend}, capped": row.kernel_capped_us} if row.kernel_capped_us else {}
        kernels["kernel"] |= {f"{row.backend}, cold": row.kernel_cold_us, **capped, f"{row.backend}, warm": row.kernel_warm_us}
    found = [
        _panel(
            "first call, caches empty and full", "s", {name: {bar: p.get(key) for bar, p in firsts.items()} for key, name in names.items()}
        ),
        _panel("a call, on the CPU", "us", calls),
        _panel("its kernel, on the GPU", "us", kernels),
    ]
    return [panel for panel in found if panel.bars]


def _panel(title: str, unit: str, parts: Mapping[str, Mapping[str, float | None]]) -> Panel:
    kept = {part: {bar: value for bar, value in bars.items() if value is not None} for part, bars in parts.items()}
    bars = dict.fromkeys(bar for part in parts.values() for bar in part if any(bar in found for found in kept.values()))
    return Panel(title, unit, tuple(bars), {part: values for part, values in kept.items() if values})


def write(rows: Sequence[Anatomy], path: Path, title: str) -> None:
    """HTML that needs no network, SVG or PNG, by the name's ending. Raises MissingExtra, OSError, ValueError without data."""
    shown = panels(rows)
    if not shown:
        raise ValueError("nothing was measured that a picture could show")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(_page(shown, title), encoding="utf-8")
    else:
        _picture(shown, path, title)


def _page(shown: Sequence[Panel], title: str) -> str:
    go = plotly()
    figure = importlib.import_module("plotly.subplots").make_subplots(
        rows=len(shown), cols=1, subplot_titles=[f"{panel.title}, {panel.unit}" for panel in shown]
    )
    for i, panel in enumerate(shown, start=1):
        for colour, (part, values) in zip(COLOURS, panel.parts.items(), strict=False):
            heights = [values.get(bar) for bar in panel.bars]
            figure.add_trace(
                go.Bar(x=list(panel.bars), y=heights, name=part, marker_color=colour, legendgroup=panel.title,
                       legendgrouptitle={"text": panel.title}), row=i, col=1,
            )  # fmt: skip
    figure.update_layout(barmode="stack", title=title, height=360 * len(shown))
    html: Any = figure.to_html(include_plotlyjs=True, full_html=True)
    return str(html)


def _picture(shown: Sequence[Panel], path: Path, title: str) -> None:
    try:
        matplotlib, canvas = importlib.import_module("matplotlib"), importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingExtra("--plot needs matplotlib, which is not installed: pip install 'opwise[report]'") from error
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 8}):
        figure = canvas.Figure(figsize=(4.6 * len(shown), 4.2), layout="constrained")
        figure.suptitle(title)
        for i, panel in enumerate(shown, start=1):
            axes = figure.add_subplot(1, len(shown), i)
            below = dict.fromkeys(panel.bars, 0.0)
            for colour, (part, values) in zip(COLOURS, panel.parts.items(), strict=False):
                heights = [values.get(bar, 0.0) for bar in panel.bars]
                axes.bar(list(panel.bars), heights, bottom=list(below.values()), label=part, color=colour)
                below = {bar: below[bar] + height for bar, height in zip(panel.bars, heights, strict=True)}
            axes.set_title(f"{panel.title}, {panel.unit}")
            axes.tick_params(axis="x", rotation=60)
            axes.legend()
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
