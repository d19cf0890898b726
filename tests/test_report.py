"""The report in headless Chromium, from disk and with no network; what hostile names can do in it.

OPWISE_SCREENSHOTS=docs writes the picture that docs/reading.md shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import PICTURES
from reporting import CELL, CORE, ROOT, SEED, written
from support import needs

from opwise import comparing
from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.record import read
from opwise.report.html import Run
from opwise.report.plots import figures
from opwise.report.states import readings, standing
from opwise.run_files import append, run_name

needs("jinja2", "plotly", "matplotlib")
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"


class Opened:
    """A page that was opened from disk, with all that it said and asked for."""

    def __init__(self, chromium: Any, path: Path) -> None:
        self.page = chromium.new_page(viewport={"width": 1400, "height": 1500}, color_scheme="light")
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body[data-drawn]", timeout=60_000)
        self.address = path.as_uri()

    def plots(self) -> list[dict[str, Any]]:
        """Every plot: its figure, and what Plotly drew in it: the markers and lines that are in the page's SVG."""
        return list(
            self.page.evaluate(
                "() => [...document.querySelectorAll('.plot')].map(p => ({figure: p.closest('section').id, id: p.id,"
                " traces: p.data ? p.data.length : 0, given: p.data ? p.data.reduce((n, t) => n + t.x.length, 0) : 0,"
                " markers: p.querySelectorAll('.scatterlayer .points path').length, height: p.getBoundingClientRect().height}))"
            )
        )

    def close(self) -> None:
        self.page.close()
        assert [r for r in self.requests if r != self.address and not r.startswith(("data:", "blob:"))] == [], "the page is whole"
        assert self.said == []


@pytest.fixture(scope="module")
def core(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    opened = Opened(chromium, written(tmp_path_factory.mktemp("report"), CORE))
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.xdist_group("report")
class TestOfTheRecordedRun:
    def test_every_plot_is_drawn_with_every_point(self, core: Opened) -> None:
        run = Run.read(CORE)
        wanted = {f.name: [panel.points for panel in f.panels] for f in figures(run.records, run.roofs) if f.panels}
        assert {"winners", "roofline", "times", "shares", "costs", "errors"} <= set(wanted)
        plots = core.plots()
        assert {name: [p["markers"] for p in plots if p["figure"] == name] for name in wanted} == wanted
        right = [r for r in run.records if r.status == "ok"]
        assert sum(wanted["times"]) == sum(wanted["roofline"]) == sum(len(readings(r)) for r in right) > 0, (
            "every right cell of the run, in each state"
        )
        assert all(p["traces"] and p["given"] and p["height"] > 100 for p in plots)

    def test_the_title_and_the_machine_s_facts_are_there(self, core: Opened) -> None:
        records = read(CORE)
        record = records[-1]
        assert core.page.title() == f"opwise: {record.device}"
        facts = core.page.inner_text("#facts")
        for fact in (run_name(CORE), record.device, record.driver, record.commit, record.time, *record.versions.values()):
            assert fact in facts
        assert f"{sum(r.status == 'ok' for r in records)} ok" in facts
        best = {r.workload for r in records if r.backend == "triton_jit" and standing(r) in ("fastest", "tie")}
        assert f"{len(best)} of {len({r.workload for r in records})} fastest or tied: triton_jit" in facts
        if not any(r.compile_cold_s for r in records):
            assert "--first-call" in core.page.inner_text("#first-calls"), "what is missing says what would bring it"

    def test_verdicts_name_every_op_and_backend(self, core: Opened) -> None:
        table = core.page.inner_text("#verdicts table")
        assert all(name in table for name in [*OPS, *BACKENDS])

    def test_the_picture_for_the_documents(self, core: Opened) -> None:
        if not PICTURES:
            pytest.skip("pictures are taken only where OPWISE_SCREENSHOTS says where to put them")
        core.page.set_viewport_size({"width": 1240, "height": 1410})
        core.page.wait_for_timeout(500)
        core.page.screenshot(path=str(ROOT / PICTURES / "report.png"))

    def test_the_theme_can_be_toggled_with_the_keyboard(self, core: Opened) -> None:
        def state() -> tuple[str, str, str]:
            return tuple(core.page.evaluate(
                "() => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor,"
                " document.querySelector('.plot')._fullLayout.font.color]"
            ))  # fmt: skip

        assert state() == ("light", "rgb(255, 255, 255)", "#16191d")
        core.page.focus("#theme")
        core.page.keyboard.press("Enter")
        assert state() == ("dark", "rgb(20, 23, 27)", "#e8eaed")
        core.page.keyboard.press("Enter")
        assert state()[0] == "light"

    def test_a_backend_can_be_hidden_with_the_keyboard(self, core: Opened) -> None:
        before = sum(p["markers"] for p in core.plots())
        core.page.focus(".bar input[value=numba_cuda]")
        core.page.keyboard.press("Space")
        hidden = core.page.evaluate("() => document.querySelectorAll('.plot').length && [...document.querySelectorAll('.plot')].flatMap("
                                    "p => p.data.filter(t => !t.visible).map(t => t.name.split(',')[0]))")  # fmt: skip
        assert set(hidden) == {"numba_cuda"}
        assert sum(p["markers"] for p in core.plots()) < before
        core.page.keyboard.press("Space")
        assert sum(p["markers"] for p in core.plots()) == before

    def test_every_plot_and_table_can_be_reached_and_is_told_in_words(self, core: Opened) -> None:
        unreachable = "() => [...document.querySelectorAll('.plot, .scroll')].filter(e => e.tabIndex !== 0).length"
        assert core.page.evaluate(unreachable) == 0
        assert "triton_jit" in core.page.get_attribute(".plot", "aria-label")

    def test_the_table_of_all_cells_is_filtered(self, core: Opened) -> None:
        core.page.fill("#filter", "softmax/4096x4096/float16")
        assert core.page.locator("table.cells tbody tr:visible").count() == len(BACKENDS)
        core.page.fill("#filter", "")


@pytest.mark.slow
@pytest.mark.xdist_group("report")
def test_two_runs_stand_side_by_side(chromium: Any, tmp_path: Path) -> None:
    opened = Opened(chromium, written(tmp_path, CORE, SEED))
    plots = [p for p in opened.plots() if p["figure"] == "winners"]
    assert len(plots) == 2 * len(OPS)
    places = opened.page.evaluate("() => ['winners-0-0', 'winners-0-1'].map(i => document.getElementById(i).getBoundingClientRect())")
    assert places[0]["top"] == places[1]["top"]
    assert places[0]["right"] < places[1]["left"]
    ranges = "() => ['times-0-0', 'times-0-1'].map(i => JSON.stringify(document.getElementById(i).layout.yaxis.range))"
    assert len(set(opened.page.evaluate(ranges))) == 1, "one range, so that two runs can be compared by eye"
    assert opened.page.locator("#first-calls .plot").count() == len(OPS), "the seed run has first calls"
    labels = opened.page.evaluate("() => [...document.querySelectorAll('#errors-3-1 .xtick text')].map(t => t.textContent)")
    finite = {r.implementation for r in read(SEED) if r.op == "softmax" and r.error_ratio is not None and r.error_ratio < 10}
    assert set(labels) == {name.replace("/softmax", "") for name in finite}, "no name is dropped"
    ticks = opened.page.evaluate(
        "() => [...document.querySelectorAll('#costs-0-0 .ytick text')].map(t => t.textContent.replaceAll(',', ''))"
    )
    assert "20" in ticks, "a tick says its whole value, not its leading digit"
    assert [float(t) for t in ticks] == sorted({float(t) for t in ticks})
    compared = opened.page.inner_text("#compared")
    assert "faster" in compared
    assert opened.page.locator("#compared tbody tr").count() == len(list(comparing.runs(read(CORE), read(SEED)))) > 0
    assert "Different devices" not in compared
    assert "exponentiates the unshifted input" in opened.page.inner_text("#verdicts"), "a wrong cell shows its reason"
    opened.close()


@pytest.mark.slow
@pytest.mark.xdist_group("report")
def test_hostile_names_and_reasons_are_shown_and_not_obeyed(chromium: Any, tmp_path: Path) -> None:
    run = tmp_path / "x" / "20260101T000000Z-core-<img src=x>.jsonl"
    wrong = replace(CELL, backend="cupy_raw", status="wrong", reason=HOSTILE, kernel_cold_us=None, versus_best=None)
    named = replace(
        CELL, backend=HOSTILE.replace("/", "∕"), variant="<b>$x$</b>", device="<script>alert(1)</script>", versions={"<i>": HOSTILE}
    )
    append(run, [r.to_json() for r in (wrong, CELL, named)])
    append(
        run, [json.dumps({"schema": 1, "kind": "limits", "limits": {f"copy_1{HOSTILE}_gb_per_s": 4000.0, "peak_fma_tflop_per_s": 66.0}})]
    )
    path = written(tmp_path, run)
    html = path.read_text()
    assert HOSTILE not in html
    assert "<script>window.broken" not in html
    opened = Opened(chromium, path)
    assert opened.page.evaluate("() => window.broken") is None
    assert opened.page.evaluate("() => document.querySelectorAll('img, i, b').length") == opened.page.locator(".wins b").count()
    assert HOSTILE in opened.page.inner_text("#verdicts")
    assert opened.page.title() == "opwise: <script>alert(1)</script>"
    shown = opened.page.evaluate(
        "() => { const plot = document.getElementById('roofline-0-0'), i = plot.data.findIndex(t => t.name.includes('window.broken'));"
        " Plotly.Fx.hover(plot, [{curveNumber: i, pointNumber: 0}]); return plot.querySelector('.hoverlayer').textContent; }"
    )
    assert HOSTILE.replace("/", "∕") in shown, "a label shows the name as it is"
    opened.close()
