"""`opwise report` without a browser: sizes, plots as files, and how it refuses."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from reporting import CELL, CORE, ROOT, report, written

from opwise.backends import BACKENDS
from opwise.record import append
from opwise.report import pictures
from opwise.report.figures import styles
from opwise.report.html import MOST_BYTES, Run
from opwise.report.plots import figures

for library in ("jinja2", "plotly", "matplotlib"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'opwise[report]'")


def test_two_full_runs_fit_into_six_megabytes(tmp_path: Path) -> None:
    other = shutil.copyfile(CORE, tmp_path / f"again-{CORE.name}")
    assert MOST_BYTES <= 6_000_000
    written(tmp_path, CORE, other)


def test_plots_are_written_as_svg_and_png(tmp_path: Path) -> None:
    run = tmp_path / "r" / "20260101T000000Z-core-abc.jsonl"
    append(run, [r.to_json() for r in (CELL, replace(CELL, backend="<mine> $\\x", versus_best=(1.2, 1.1, 1.3)))])
    result = report(str(run), "-o", str(tmp_path / "r.html"), "--plots", str(tmp_path / "plots"))
    assert result.exit_code == 0, result.output
    names = {"winners", "roofline", "times", "shares", "errors"}
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {f"{run.stem}-{name}.{kind}" for name in names for kind in ("svg", "png")}
    for path in (tmp_path / "plots").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path in (tmp_path / "plots").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_run_of_nothing_but_stand_ins_is_reported_without_times(tmp_path: Path) -> None:
    run = tmp_path / "r" / "20260101T000000Z-smoke-abc.jsonl"
    append(run, [replace(CELL, stand_in="cpu", kernel_cold_us=None, versus_best=None, sol=None, gb_per_s=None, tflop_per_s=None).to_json()])
    html = written(tmp_path, run).read_text()
    assert "Nothing was timed in this run" in html
    assert "ok (cpu)" in html


def test_two_devices_are_shown_as_such(tmp_path: Path) -> None:
    runs = [tmp_path / name / "20260101T000000Z-core-abc.jsonl" for name in ("h200", "h100")]
    append(runs[0], [CELL.to_json()])
    append(runs[1], [replace(CELL, device="NVIDIA H100").to_json()])
    html = written(tmp_path, *runs).read_text()
    assert "Different devices, NVIDIA H200 and NVIDIA H100: this compares machines, not kernels." in html
    assert "<title>opwise: NVIDIA H200 and NVIDIA H100</title>" in html


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [(["no-such-run"], ["no-such-run"]), (["a", "b", "c"], ["3 runs given"]), ([str(ROOT / "LICENSE")], ["no finished record"])],
)
@pytest.mark.filterwarnings("ignore:.*torn")
def test_bad_usage_exits_2(tmp_path: Path, arguments: list[str], needles: list[str]) -> None:
    result = report(*arguments, "-o", str(tmp_path / "r.html"))
    assert result.exit_code == 2, result.output
    assert all(needle in result.output.replace("\n", " ") for needle in needles), result.output


@pytest.mark.parametrize("library", ["jinja2", "plotly", "matplotlib"])
def test_a_missing_extra_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # importing it raises ImportError
    run = tmp_path / "r" / "20260101T000000Z-core-abc.jsonl"
    append(run, [CELL.to_json()])
    result = report(str(run), "-o", str(tmp_path / "r.html"), "--plots", str(tmp_path / "plots"))
    assert result.exit_code == 2
    (line,) = result.output.strip().splitlines()[-1:]
    assert library in line
    assert "pip install 'opwise[report]'" in line


def test_no_two_backends_look_alike() -> None:
    looks = styles(f"backend{i}" for i in range(60))
    assert len(set(looks.values())) == len(looks)
    assert list(looks)[: len(BACKENDS)] == list(BACKENDS)
    assert len({s.symbol for s in list(looks.values())[:9]}) == 9


def test_no_title_of_a_plot_reaches_into_its_neighbour() -> None:
    canvas = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed: pip install 'opwise[report]'")
    run = Run.read(CORE)
    looks = styles(r.backend for r in run.records)
    for figure in filter(lambda f: f.panels, figures(run.records, run.roofs)):
        drawn = pictures._drawn(figure, looks, canvas)
        drawn.draw_without_rendering()
        titles = [axes.title.get_window_extent() for axes in drawn.axes]
        for i, one in enumerate(titles):
            assert 0 <= one.x0 < one.x1 <= drawn.bbox.width, f"{figure.name}: {drawn.axes[i].get_title()!r} leaves the picture"
            assert not any(one.overlaps(other) for other in titles[:i]), f"{figure.name}: {drawn.axes[i].get_title()!r}"
