"""CPU time of a call by Python frame, operator and driver call: collapsed stacks, and pictures of them.

Collapsed stacks are lines of `outermost;…;innermost nanoseconds`, each stack's own time, for speedscope.app and flamegraph.pl. They are
made from the trace's nested ranges. torch's own `export_stacks` has operators only, and a call of Triton's or CuPy's runs none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opwise.profiling import trace as reading
from opwise.profiling.capture import CALL, PREFIX, Trace
from opwise.report.html import MissingExtra

PAGE, PICTURES, TEXT = ".html", (".svg", ".png"), (".txt", ".folded", ".collapsed")
FORMATS = (PAGE, *PICTURES, *TEXT)
LEAST_SHARE, CHARACTERS = 1e-3, 200  # of a picture's width: narrower frames are left out; and how many characters it holds in a line
FRAMES = ("python_function", "cpu_op", "user_annotation", *reading.API)
OF_THE_LABELS = ("torch/autograd/profiler.py", "): label", "_cupti_monitor.py", "): is_scripting")  # what marking the ranges costs


def collapsed(trace: Trace) -> dict[str, int]:
    """Stack -> its own time in ns, over all calls. Needs a trace with stacks; without frames only labels and operators are left."""
    found: dict[str, int] = {}
    for thread in {(e["pid"], e["tid"]) for e in reading.events(trace, "user_annotation") if e["name"] == PREFIX + CALL}:
        here = [e for e in reading.events(trace, *FRAMES) if (e["pid"], e["tid"]) == thread]
        for event, parents, own in reading.self_times(here):
            names = [e["name"] for e in (*parents, event)]
            if PREFIX + CALL not in names or own <= 0.0:
                continue
            names = names[names.index(PREFIX + CALL) :]
            if any(part in name for name in names for part in OF_THE_LABELS):
                continue
            stack = ";".join(name.replace(";", ":").replace("\n", " ") for name in names)
            found[stack] = found.get(stack, 0) + round(own * 1e3)
    return {stack: ns for stack, ns in found.items() if ns}


def write(stacks: Mapping[str, int], path: Path, title: str) -> None:
    """By the name's ending: .html a page, .svg and .png a picture, the endings TEXT collapsed stacks.

    Raises ValueError for another ending, OSError, and MissingExtra if a page lacks plotly or a picture matplotlib."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix or 'nothing'!r}: {', '.join(FORMATS)} are taken")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == PAGE:
        path.write_text(page(stacks, title), encoding="utf-8")
    elif path.suffix in PICTURES:
        picture(stacks, path, title)
    else:
        path.write_text("".join(f"{stack} {ns}\n" for stack, ns in sorted(stacks.items())), encoding="utf-8")


def page(stacks: Mapping[str, int], title: str) -> str:
    """One HTML page that needs no network: the flame graph as an icicle; a click on a frame enlarges it."""
    go = plotly()

    frames = tree(stacks)
    figure = go.Figure(
        go.Icicle(
            ids=list(frames),
            labels=[path.rpartition(";")[2] for path in frames],
            parents=[path.rpartition(";")[0] for path in frames],
            values=[ns / 1e3 for ns in frames.values()],
            branchvalues="total",
            tiling={"orientation": "v"},
            hovertemplate="%{label}<br>%{value:.1f} us, %{percentRoot:.1%} of the calls<extra></extra>",
        )
    )
    figure.update_layout(title=title, margin={"t": 48, "l": 8, "r": 8, "b": 8})
    html: Any = figure.to_html(include_plotlyjs=True, full_html=True)
    return str(html)


def plotly() -> Any:
    """plotly.graph_objects. Raises MissingExtra with the remedy."""
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError as error:
        raise MissingExtra("a page needs plotly, which is not installed: pip install 'opwise[report]'") from error


def picture(stacks: Mapping[str, int], path: Path, title: str) -> None:
    """The flame graph as a static image: the root at the bottom, each frame as wide as its share of the time."""
    matplotlib, figures = drawer(), importlib.import_module("matplotlib.figure")
    frames = tree(stacks)
    total, free = sum(ns for frame, ns in frames.items() if ";" not in frame) or 1, dict[str, float]()
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 7}):
        depth = max((frame.count(";") for frame in frames), default=0)
        figure = figures.Figure(figsize=(12, 0.8 + 0.2 * (depth + 1)), layout="constrained")
        axes = figure.add_subplot()
        for i, (frame, ns) in enumerate(frames.items()):
            parent, _, name = frame.rpartition(";")
            left, share = free.get(parent, 0.0), ns / total
            free[parent], free[frame] = left + share, left
            if share >= LEAST_SHARE:
                row = frame.count(";")
                axes.barh(row, share, left=left, height=0.95, color=matplotlib.colormaps["YlOrRd"](0.15 + 0.08 * (i % 6)))
                room = int(share * CHARACTERS)
                axes.text(left, row, f" {name[:room]}".replace("$", r"\$") if room > 2 else "", va="center", clip_on=True)
        axes.set(title=title, xlabel="share of the calls' time", xlim=(0, 1), yticks=[])
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def drawer() -> Any:
    """matplotlib. Raises MissingExtra with the remedy."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise MissingExtra("a picture needs matplotlib, which is not installed: pip install 'opwise[report]'") from error


def tree(stacks: Mapping[str, int]) -> dict[str, int]:
    """Every frame by its path from the root -> ns of itself and of its callees, parents before children."""
    totals: dict[str, int] = {}
    for stack, ns in stacks.items():
        names = stack.split(";")
        for depth in range(1, len(names) + 1):
            path = ";".join(names[:depth])
            totals[path] = totals.get(path, 0) + ns
    return dict(sorted(totals.items(), key=lambda item: item[0].count(";")))
