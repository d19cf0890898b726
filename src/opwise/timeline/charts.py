"""Charts of a trace, or of the ranks of a job: time by kind, kernels' durations, and distributions of launches.

They are those of Holistic Trace Analysis: a pie of the kinds, bars of the span's parts and of the overlap, bars of each kind's longest
kernels (mean, with least and greatest), histograms of calls of short kernels, and of outlying calls and delays."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwise.timeline import launches
from opwise.timeline.analysis import Timeline
from opwise.timeline.drawing import LINES, POLICY, drawn, library, literal
from opwise.timeline.kinds import COMPUTATION, KINDS, OTHERS, added
from opwise.timeline.launches import Cutoffs, Launch
from opwise.timeline.trace import short

NAME = 48  # characters of a kernel's short name beside its bars
HEIGHT_PX = 320


@dataclass(frozen=True)
class Chart:
    """One of three: a pie (`shares`: name -> value), bars (`bars`: group -> name -> value, least, greatest), a histogram (`samples`: group
    -> values)."""

    title: str
    unit: str
    shares: Mapping[str, float] = field(default_factory=dict)
    bars: Mapping[str, Mapping[str, tuple[float, float, float]]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)


def charts(timelines: Mapping[str, Timeline]) -> list[Chart]:
    """Charts of timelines with GPU activity, by the names in the legend: "rank 0". Empty charts are left out."""
    kinds = {name: t.kinds for name, t in timelines.items() if t.kinds}
    whole = added(kinds.values())
    parts: dict[str, Callable[[str], int]] = {
        "idle": lambda n: kinds[n].idle, "compute": lambda n: kinds[n].ran(COMPUTATION),
        "other": lambda n: kinds[n].busy - kinds[n].ran(COMPUTATION),
    }  # fmt: skip
    spans = {part: {name: _alone(100 * of(name) / kinds[name].span) for name in kinds if kinds[name].span} for part, of in parts.items()}
    overlaps = {name: _alone(100 * k.overlap) for name, k in kinds.items() if k.overlap is not None}
    found = [
        Chart("kinds", "% of busy", {" beside ".join(key): 100 * ns / whole.busy for key, ns in whole.together.items()}),
        Chart("the span: idle, compute, other operations", "%", bars=spans),
        Chart("communication beside computation", "% of communication", bars={"overlap": overlaps} if overlaps else {}),
    ]
    for kind in KINDS:
        rows = {name: [k for k in t.kernel_times if k.kind == kind and k.name != OTHERS] for name, t in timelines.items()}
        bars = {name: {k.name: (k.mean, k.least, k.greatest) for k in reversed(each)} for name, each in rows.items() if each}
        found.append(Chart(f"{kind}: mean duration, least to greatest", "us", bars=bars))
    found += [
        _histogram(timelines, "calls of short kernels", launches.short_kernels, lambda launch: launch.cpu),
        _histogram(timelines, "calls that are outliers", launches.runtime_outliers, lambda launch: launch.cpu),
        _histogram(timelines, "delays that are outliers", launches.delay_outliers, lambda launch: launch.delay),
    ]
    return [chart for chart in found if chart.shares or chart.bars or chart.samples]


def _alone(value: float) -> tuple[float, float, float]:
    return value, value, value


def _histogram(timelines: Mapping[str, Timeline], title: str, of: Callable[[Sequence[Launch], Cutoffs], Sequence[Launch]],
               ns: Callable[[Launch], int]) -> Chart:  # fmt: skip
    samples = {name: [ns(launch) / 1e3 for launch in of(t.launches, t.cutoffs)] for name, t in timelines.items()}
    return Chart(title, "us", samples={name: each for name, each in samples.items() if each})


def write(found: Sequence[Chart], path: Path, title: str) -> None:
    """By the file's ending: .html by Plotly, .svg and .png by matplotlib. Raises MissingExtra, ValueError, OSError."""
    drawn("--charts", path, lambda: _page(found, title), lambda: _image(found, path, title))


def _groups(found: Sequence[Chart]) -> dict[str, str]:
    """Group -> its colour, the same in every chart."""
    names = dict.fromkeys(name for chart in found for name in (*chart.bars, *chart.samples))
    return {name: LINES[i % len(LINES)] for i, name in enumerate(names)}


def _errors(bars: Mapping[str, tuple[float, float, float]]) -> tuple[list[float], list[float], list[float]]:
    """Values, and how far each reaches below and above."""
    return [v for v, *_ in bars.values()], [v - least for v, least, _ in bars.values()], [most - v for v, _, most in bars.values()]


def _page(found: Sequence[Chart], title: str) -> str:
    go, subplots = library("plotly.graph_objects", "plotly"), library("plotly.subplots", "plotly")
    specs = [[{"type": "domain" if chart.shares else "xy"}] for chart in found]
    headings = [html.escape(f"{chart.title}, {chart.unit}") for chart in found]
    figure, colours = (
        subplots.make_subplots(rows=len(found), cols=1, vertical_spacing=0.25 / len(found), specs=specs, subplot_titles=headings),
        _groups(found),
    )
    named: set[str | None] = set()
    for row, chart in enumerate(found, start=1):
        traces = [go.Pie(labels=list(chart.shares), values=list(chart.shares.values()), textposition="inside")] if chart.shares else []
        for name, bars in chart.bars.items():
            values, below, above = _errors(bars)
            error = {"array": above, "arrayminus": below, "symmetric": False}
            traces.append(go.Bar(y=list(map(html.escape, bars)), x=values, orientation="h", error_x=error, marker_color=colours[name],
                                 name=html.escape(name)))  # fmt: skip
        for name, samples in chart.samples.items():
            traces.append(go.Histogram(x=list(samples), name=html.escape(name), marker_color=colours[name], opacity=0.7))
        for trace in traces:  # a group is in the legend once
            trace.update(legendgroup=trace.name, showlegend=trace.name is None or trace.name not in named)
            named.add(trace.name)
            figure.add_trace(trace, row=row, col=1)
        if chart.bars:  # whole names tell two kernels apart, short ones are shown
            labels = {html.escape(label): html.escape(short(label)[:NAME]) for bars in chart.bars.values() for label in bars}
            figure.update_yaxes(tickvals=list(labels), ticktext=list(labels.values()), row=row, col=1)
    figure.update_layout(title=html.escape(title), height=HEIGHT_PX * len(found), barmode="group")
    figure.update_yaxes(automargin=True)
    return str(figure.to_html(include_plotlyjs=True, full_html=True)).replace("<head>", f"<head>{POLICY}", 1)


def _image(found: Sequence[Chart], path: Path, title: str) -> None:
    matplotlib, figures, colours = library("matplotlib", "matplotlib"), library("matplotlib.figure", "matplotlib"), _groups(found)
    with matplotlib.rc_context({"svg.hashsalt": "opwise", "font.size": 8}):
        figure = figures.Figure(figsize=(10, 3.2 * len(found)), layout="constrained")
        figure.suptitle(literal(title))
        for axes, chart in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found, strict=True):
            _drawn(axes, chart, colours)
        figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)


def _drawn(axes: Any, chart: Chart, colours: Mapping[str, str]) -> None:
    axes.set_title(literal(f"{chart.title}, {chart.unit}"), fontsize=9, loc="left")
    if chart.shares:
        wedges, _ = axes.pie(list(chart.shares.values()))
        labels = [f"{name} {share:.1f} %" for name, share in chart.shares.items()]
        axes.legend(wedges, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    places = {label: i for i, label in enumerate(dict.fromkeys(label for bars in chart.bars.values() for label in bars))}
    thick = 0.8 / max(len(chart.bars), 1)
    for i, (name, bars) in enumerate(chart.bars.items()):
        values, *errors = _errors(bars)
        at = [places[label] + i * thick for label in bars]
        axes.barh(at, values, height=thick, xerr=errors, color=colours[name], label=literal(name))
    if chart.bars:
        axes.set_yticks([i + 0.4 - thick / 2 for i in places.values()], [literal(short(label)[:NAME]) for label in places])
    if chart.samples:
        names = list(chart.samples)
        axes.hist(list(chart.samples.values()), bins=60, color=[colours[name] for name in names], label=list(map(literal, names)))
    if chart.bars or chart.samples:
        axes.legend(frameon=False)
