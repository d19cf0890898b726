"""Draws the picture as a page that needs no network, or as SVG or PNG."""

from __future__ import annotations

import html
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opwise.report.html import MissingExtra
from opwise.timeline.picture import COLOURS, Panel

FORMATS = (".html", ".svg", ".png")
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # streams, in the queue's panel
ROW_PX, LEAST_PX, QUEUE_PX, MARGIN_PX = 42, 60, 130, 75
INCHES_A_PX = 1 / 96
# The report's policy: whatever a name in a trace says, the page may not fetch anything.
POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
img-src data: blob:">"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{policy}
<title>{title}</title>
<style>body {{ font: 14px sans-serif; margin: 1rem }} p {{ max-width: 60rem }}</style>
</head>
<body>
<h1>{title}</h1>
<p>What is drawn over time opens on a few activities in the middle: drag to look closer, double-click for all, click in the legend to hide
and show. docs/timeline.md says what is what.</p>
<div id="picture"></div>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>
const {{data, layout}} = JSON.parse(document.getElementById("data").textContent);
Plotly.newPlot("picture", data, layout, {{responsive: true, displaylogo: false, doubleClick: "autosize"}});
</script>
</body>
</html>
"""


def write(panels: Sequence[Panel], path: Path, title: str) -> None:
    """By the file's ending: .html by Plotly, .svg and .png by matplotlib. Raises MissingExtra, ValueError, OSError."""
    drawn("--plot", path, lambda: page(panels, title), lambda: _image(panels, path, title))


def drawn(option: str, path: Path, page: Callable[[], str], image: Callable[[], object]) -> None:
    """By the file's ending, the text of `page` or the output of `image`. Raises ValueError for another ending, and what these raise."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{option} {path} ends in {path.suffix or 'nothing'!r}: {', '.join(FORMATS)} are taken")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(page(), encoding="utf-8")
    else:
        image()


def heights(panels: Sequence[Panel]) -> list[int]:
    """Pixels of each panel."""
    return [QUEUE_PX if panel.steps or not panel.rows else max(LEAST_PX, ROW_PX * len(panel.rows)) for panel in panels]


# -- Plotly ------------------------------------------------------------------------------------------------------------------


def page(panels: Sequence[Panel], title: str) -> str:
    """Raises MissingExtra."""
    plotly = library("plotly.offline", "plotly").get_plotlyjs()
    data = json.dumps({"data": _traces(panels), "layout": _layout(panels)}, separators=(",", ":"), allow_nan=False)
    return PAGE.format(policy=POLICY, title=html.escape(title), data=data.replace("<", "\\u003c"), plotly=plotly)


def _traces(panels: Sequence[Panel]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    named: set[str] = set()
    for i, panel in enumerate(panels):
        axes = {"xaxis": f"x{i + 1}", "yaxis": f"y{i + 1}"}
        for name, bars in panel.bars.items():
            if not bars:
                continue
            found.append(
                {"type": "bar", "orientation": "h", "name": name, "legendgroup": name, "showlegend": name not in named, **axes,
                 "base": [round(b.start, 3) for b in bars], "x": [round(b.length, 3) for b in bars],
                 "y": [html.escape(b.row) for b in bars],
                 "text": [html.escape(b.text) for b in bars], "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
                 "marker": {"color": COLOURS[name], "line": {"width": 0}}}
            )  # fmt: skip
            named.add(name)
        for j, (name, steps) in enumerate(panel.steps.items()):
            found.append(
                {"type": "scatter", "mode": "lines", "name": html.escape(name),
                 "line": {"shape": "hv", "width": 1.5, "color": LINES[j % len(LINES)]},
                 "showlegend": len(panel.steps) > 1, **axes, "x": [round(x, 3) for x, _ in steps], "y": [y for _, y in steps]}
            )  # fmt: skip
    return found


def _layout(panels: Sequence[Panel]) -> Mapping[str, Any]:
    sizes = heights(panels)
    total = sum(sizes) + MARGIN_PX * len(panels)
    margin = {"t": 10, "b": 10, "l": 130, "r": 20}
    legend = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
    notes: list[Mapping[str, Any]] = []
    layout: dict[str, Any] = {"barmode": "overlay", "bargap": 0.25, "height": total, "margin": margin, "hovermode": "closest",
                              "annotations": notes, "legend": legend}  # fmt: skip
    top = total
    first: dict[int, int] = {}
    for i, (panel, size) in enumerate(zip(panels, sizes, strict=True), start=1):
        top -= 25
        bottom = top - size
        leader = first.setdefault(panel.group, i)
        layout[f"xaxis{i}"] = {"anchor": f"y{i}", "title": {"text": panel.x, "standoff": 4}, "range": list(panel.window), "zeroline": False,
                               **({"matches": f"x{leader}"} if leader != i else {})}  # fmt: skip
        layout[f"yaxis{i}"] = {"anchor": f"x{i}", "domain": [max(0, bottom / total), top / total]}
        if panel.rows:
            names = [html.escape(row) for row in reversed(panel.rows)]
            layout[f"yaxis{i}"] |= {"type": "category", "categoryarray": names, "categoryorder": "array", "fixedrange": True}
        else:
            most = max((y for steps in panel.steps.values() for _, y in steps), default=1.0)
            layout[f"yaxis{i}"] |= {"rangemode": "tozero", "nticks": 5, **({"dtick": 1} if most <= 5 else {})}  # operations are whole
        notes.append({"text": f"<b>{html.escape(panel.title)}</b>", "xref": "paper", "yref": "paper", "x": 0, "y": top / total,
                      "xanchor": "left", "yanchor": "bottom", "showarrow": False})  # fmt: skip
        top = bottom - (MARGIN_PX - 25)
    return layout


# -- matplotlib --------------------------------------------------------------------------------------------------------------


def _image(panels: Sequence[Panel], path: Path, title: str) -> None:
    matplotlib, canvas = library("matplotlib", "matplotlib"), importlib.import_module("matplotlib.figure")
    patches = importlib.import_module("matplotlib.patches")
    sizes = heights(panels)
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 8}):  # a fixed salt: the same trace gives the same file
        figure = canvas.Figure(figsize=(11, (sum(sizes) + MARGIN_PX * len(panels)) * INCHES_A_PX + 0.6), layout="constrained")
        figure.suptitle(literal(title))
        grid = figure.subplots(len(panels), 1, height_ratios=sizes, squeeze=False)
        for axes, panel in zip(grid[:, 0], panels, strict=True):
            _panel(axes, panel)
        used = [name for name in COLOURS if any(panel.bars.get(name) for panel in panels)]
        handles = [patches.Patch(color=COLOURS[name], label=name) for name in used]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) or 1)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Any, panel: Panel) -> None:
    low, high = panel.window
    axes.set_title(literal(panel.title), fontsize=9, loc="left")
    axes.set_xlim(low, high)
    axes.set_xlabel(panel.x)
    for name, bars in panel.bars.items():
        seen = [b for b in bars if b.start <= high and b.start + b.length >= low]  # a picture cannot be moved along
        places = [len(panel.rows) - 1 - panel.rows.index(b.row) for b in seen]
        axes.barh(places, [b.length for b in seen], left=[b.start for b in seen], height=0.7, color=COLOURS[name])
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), [literal(row) for row in reversed(panel.rows)])
        axes.set_ylim(-0.6, len(panel.rows) - 0.4)
    else:
        for j, (name, steps) in enumerate(panel.steps.items()):
            axes.step([x for x, _ in steps], [y for _, y in steps], where="post", lw=1, color=LINES[j % len(LINES)], label=literal(name))
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        if len(panel.steps) > 1:
            axes.legend(fontsize=7)


def literal(text: str) -> str:
    """Escapes dollars, between which matplotlib reads mathematics."""
    return text.replace("$", r"\$")


def library(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"--plot needs {package}, which is not installed: pip install 'opwise[report]'") from error
