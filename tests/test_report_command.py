"""`opwise report` without a browser: sizes, plots as files, and how it refuses."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from reporting import CELL, ROOFS, ROOT, TWO_STATES, of_schema_1, report, written
from rich.console import Console
from support import needs

from opwise.record import Interval, Record
from opwise.report import bits, tables
from opwise.report.bits import prices
from opwise.report.energy import energies
from opwise.report.figures import Series
from opwise.report.plots import figures
from opwise.run_files import append

needs("jinja2", "plotly", "matplotlib")


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


def test_what_was_found_out_bit_by_bit_is_in_the_table_of_cells_and_is_not_where_nobody_asked(tmp_path: Path) -> None:
    run = tmp_path / "r" / "20260101T000000Z-smoke-abc.jsonl"
    append(run, [replace(CELL, repeatable=True, batch_invariant=False, differs="a row alone", bits="ab").to_json()])
    assert "<td>yes</td><td>no</td><td>a row alone</td>" in written(tmp_path, run).read_text()
    unasked = tmp_path / "r" / "20260102T000000Z-smoke-abc.jsonl"
    append(unasked, [CELL.to_json()])
    assert "batch-invariant" not in written(tmp_path / "unasked", unasked).read_text()


def drawn(*records: Record) -> dict[str, dict[str, Series]]:
    """Figure -> the series of its only panel, by name."""
    made = {f.name: f.panels for f in figures(records, ROOFS) if f.panels}
    return {name: {s.name: s for s in panels[0].series} for name, panels in made.items()}


def test_figures_have_both_states_and_a_winner_is_one_in_both() -> None:
    found = drawn(*TWO_STATES)
    winners = {name: (s.large, s.hollow) for name, s in found["winners"].items()}
    assert winners == {
        "triton_jit, tie": (True, True),
        "torch_eager, first full clock": (False, False),
        "torch_inline, first power-capped": (False, True),
    }
    assert "at 204 us, 1.153 (1.152 to 1.154) of the fastest, paired, full clock; at 208 us, power-capped" in (
        found["winners"]["torch_inline, first power-capped"].points[0].text
    )
    roofline = found["roofline"]
    assert [(s.hollow, s.points[0].y) for name, s in roofline.items() if "tensor" in name] == [(False, 800.0), (True, 650.0)]
    full, capped = roofline["torch_eager"], roofline["torch_eager, power-capped"]
    assert (full.hollow, capped.hollow) == (False, True)
    assert full.points[0].x == pytest.approx(capped.points[0].x)
    assert full.points[0].y / capped.points[0].y == pytest.approx(216 / 177)
    assert "SOL 0.93" in capped.points[0].text
    assert [(s.hollow, s.points[0].y) for name, s in found["times"].items() if "limit" in name] == [(False, 173.0), (True, 200.0)]
    shares = {name: s.points[0].y for name, s in found["shares"].items()}
    assert shares["torch_eager"] == pytest.approx(173 / 177)
    assert shares["torch_eager, power-capped"] == pytest.approx(200 / 216)


def test_figures_of_the_power_capped_state_alone() -> None:
    found = drawn(*map(of_schema_1, TWO_STATES))
    assert {"torch_eager, fastest", "triton_jit, tie"} == set(found["winners"])
    assert found["roofline"]["torch_eager, power-capped"].points[0].x == pytest.approx(4096 / 3), "from the op: it has no GB/s"
    assert not [name for name in found["times"] if "limit" in name]
    assert "shares" not in found, "a share needs a limit of that state"


@pytest.mark.parametrize(
    ("records", "capped", "wins"),
    [
        (TWO_STATES, True, "<b>0</b> of 1 fastest or tied in both states (full clock 1, power-capped 0): torch_eager"),
        (tuple(map(of_schema_1, TWO_STATES)), True, "<b>1</b> of 1 fastest or tied: torch_eager"),
        ((CELL,), False, "<b>1</b> of 1 fastest or tied: triton_jit"),
    ],
)
def test_the_page_has_columns_for_the_states_that_there_are(tmp_path: Path, records: tuple[Record, ...], capped: bool, wins: str) -> None:
    run = tmp_path / "r" / "20260101T000000Z-core-abc.jsonl"
    append(run, [r.to_json() for r in records])
    html = written(tmp_path, run).read_text()
    assert wins in html
    assert ('<th scope="col">capped SOL</th>' in html) == capped
    assert ("power-capped: SM clock" in html) == capped
    heads, row = html.split('<table class="cells">')[1].split("<tbody>")
    assert heads.count("<th ") == row.split("</tr>")[0].count("<td")


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


def test_what_batch_invariance_costs_is_told_by_its_backend_s_own_time(tmp_path: Path) -> None:
    found_out = {"repeatable": True, "bits": "ab", "layout": ""}
    own = [replace(r, **found_out, batch_invariant=False, differs="a row alone") for r in TWO_STATES if r.backend != "torch_eager"]
    variants = [replace(r, variant="invariant", batch_invariant=True, differs="", kernel_cold_us=times(r.kernel_cold_us, 1.2)) for r in own]
    records = [*own, *variants]
    (panel,) = prices(records).panels
    assert [(s.name, [round(p.y, 6) for p in s.points]) for s in panel.series] == [(f"{r.backend}:invariant", [1.2]) for r in own]
    counts, *costs = bits.summary(records)
    assert f"repeatable in {len(records)} of {len(records)} cells; batch-invariant: {own[0].backend} 0 of 1" in counts
    assert costs[0] == (f"  {own[0].backend}/matmul:invariant takes 1.200 at full clock and 1.000 power-capped of its backend's time "
                        "(geometric mean of 1 workloads), more than 1.10 at 1")  # fmt: skip
    assert bits.summary(TWO_STATES) == []
    run = tmp_path / "r" / "20260101T000000Z-core-abc.jsonl"
    append(run, [r.to_json() for r in records])
    assert "What batch invariance costs" in written(tmp_path, run).read_text()


def times(interval: Interval | None, factor: float) -> Interval:
    assert interval is not None
    return replace(interval, median=factor * interval.median, low=factor * interval.low, high=factor * interval.high)


def test_energy_is_in_the_tables_and_against_time_and_is_not_where_nobody_asked(tmp_path: Path) -> None:
    asked = [replace(r, joules=0.1, capped_joules=0.09, idle_w=88.0) for r in TWO_STATES[:2]]
    asked.append(replace(TWO_STATES[2], joules=0.11, idle_w=88.0))
    energy = energies(asked)
    (panel,) = energy.panels
    assert (panel.x.title, panel.y.title, panel.x.log, panel.y.log) == ("us", "mJ", True, True)
    points = {s.name: [(p.x, p.y) for p in s.points] for s in panel.series}
    assert points == {
        "numba_cuda, power-capped": [(221.0, 90.0)], "numba_cuda": [(214.0, 100.0)], "torch_inline, power-capped": [(208.0, 90.0)],
        "torch_inline": [(204.0, 100.0)], "torch_eager": [(177.0, 110.0)],
    }  # fmt: skip
    assert "467 W, 0.7276 pJ/flop" in panel.series[1].points[0].text
    run = tmp_path / "r" / "20260101T000000Z-core-abc.jsonl"
    append(run, [r.to_json() for r in (*asked, TWO_STATES[3])])
    html = written(tmp_path, run).read_text()
    assert "<td>100</td><td>0.7276 pJ/flop</td><td>90</td><td>88</td><td></td>" in html
    assert "Time against energy" in html
    heads, row = html.split('<table class="cells">')[1].split("<tbody>")
    assert heads.count("<th ") == row.split("</tr>")[0].count("<td")
    shown = Console(width=300, record=True, file=StringIO())
    tables.show(asked, shown)
    text = shown.export_text()
    assert [word for word in ("mJ a launch", "pJ/flop", "capped mJ", "idle W", "0.7276") if word not in text] == []
    unasked = tmp_path / "r" / "20260102T000000Z-core-abc.jsonl"
    append(unasked, [r.to_json() for r in TWO_STATES])
    assert "energy" not in written(tmp_path / "unasked", unasked).read_text().split("</script>")[-1]
    tables.show(TWO_STATES, shown)
    assert "mJ" not in shown.export_text()
