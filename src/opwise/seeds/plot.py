"""The plot of the Triton 1.0 article, of a run's own points: GB/s of softmax over N, as an interactive page, SVG and PNG.

matplotlib and plotly are the extra `report`; both are imported on use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwise.seeds.store import SeedRun

SWEEP = "softmax-sweep"
NAME = "seeds-softmax"
LIMIT = "limit"
# Okabe and Ito's colours, told apart with any kind of sight; the limit is drawn as a dashed line.
COLORS = {"Triton": "#D55E00", "torch.softmax": "#0072B2", "five lines": "#009E73", "torch.jit.script": "#CC79A7", LIMIT: "#555555"}


class NothingToPlot(ValueError):
    """The run holds no points; the message says why."""


class ExtraMissing(RuntimeError):
    """matplotlib or plotly is not installed; the message says what to do."""


def points(run: SeedRun) -> Mapping[str, list[tuple[int, float]]]:
    """Way -> (N, GB/s). Raises NothingToPlot."""
    rows: Sequence[Mapping[str, Any]] = next((o.rows for o in run.outcomes if o.name == SWEEP), ())
    if not rows:
        reason = next((o.found for o in run.outcomes if o.name == SWEEP), f"the experiment {SWEEP} is not among those asked for")
        raise NothingToPlot(f"no points of {SWEEP} to plot: {reason}")
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        found.setdefault(str(row["way"]), []).append((int(row["columns"]), float(row["gb_per_s"])))
    return {way: sorted(each) for way, each in found.items()}


def write(run: SeedRun, folder: Path) -> list[Path]:
    """HTML, SVG and PNG. Raises NothingToPlot, ExtraMissing."""
    series = points(run)
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
        from plotly import graph_objects  # type: ignore[import-untyped]
    except ImportError as error:
        raise ExtraMissing(f"a plot needs matplotlib and plotly ({error}): pip install 'opwise[report]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    title = f"softmax of 4096 rows, float32, on {run.device}"
    return [*_drawn(pyplot, series, title, folder), _page(graph_objects, series, title, folder)]


def _drawn(pyplot: Any, series: Mapping[str, list[tuple[int, float]]], title: str, folder: Path) -> list[Path]:
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for way, each in series.items():
        style = {"linestyle": "--"} if way == LIMIT else {"marker": "o"}
        axes.plot(*zip(*each, strict=True), label=way, color=COLORS.get(way), **style)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="N, columns", ylabel="GB/s, one read and one write", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=5, frameon=False)  # below: it would hide a curve
    paths = [folder / f"{NAME}.{suffix}" for suffix in ("svg", "png")]
    for path in paths:
        figure.savefig(path, bbox_inches="tight", dpi=150)
    pyplot.close(figure)
    return paths


def _page(objects: Any, series: Mapping[str, list[tuple[int, float]]], title: str, folder: Path) -> Path:
    """Everything within the file: it opens from disk and asks no network for anything."""
    figure = objects.Figure()
    for way, each in series.items():
        x, y = zip(*each, strict=True)
        line = {"color": COLORS.get(way), "dash": "dash" if way == LIMIT else "solid"}
        figure.add_scatter(x=x, y=y, name=way, line=line, mode="lines" if way == LIMIT else "lines+markers")
    columns = sorted({n for each in series.values() for n, _ in each})
    figure.update_layout(
        title=title,
        xaxis={"type": "log", "title": "N, columns", "tickvals": columns},
        yaxis={"title": "GB/s, one read and one write", "rangemode": "tozero"},
    )
    path = folder / f"{NAME}.html"
    figure.write_html(path, include_plotlyjs=True)
    return path
