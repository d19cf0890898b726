"""`opwise anatomy`: its rows, its picture, and what of it a machine without a GPU can tell."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import support
from invoking import invoke
from rich.console import Console
from rich.table import Table
from support import needs

from opwise.commands import anatomy as command
from opwise.ops.spec import Workload
from opwise.profiling import anatomy, anatomy_plot
from opwise.profiling.anatomy import Anatomy, first_parts
from opwise.record import Interval, Record
from opwise.runner import Event, Job, WorkerLost
from opwise.runner.jobs import Entry
from opwise.runner.survey import Survey

DEVICE = str(support.DEVICE)


PARTS = {"import_s": 0.5, "compile_s": 2.0, "first_launch_s": 0.25}
TIMES = {"launch_us": 5.0, "call_us": 12.0, "kernel_cold_us": 18.0, "kernel_warm_us": 17.0}
ROWS = [
    Anatomy("triton_jit/softmax", "ok", "", None, PARTS, PARTS | {"compile_s": 0.1}, 1.5, 2.0, 5.0, 12.0, 18.4, 17.9, 17.8),
    Anatomy("numba_cuda/softmax", "needs a GPU", "", "greenlets", {"import_s": 1.75}, {"import_s": 1.5}),
]


def test_an_anatomy_sums_its_parts() -> None:
    assert ROWS[0].first_cold_s == 2.75
    assert ROWS[0].lookup_us == pytest.approx(3.5)
    assert (ROWS[1].first_cold_s, ROWS[1].lookup_us) == (None, None)
    assert json.loads(json.dumps(ROWS[0].as_dict()))["first_cached_s"] == pytest.approx(0.85)


def test_stacked_bars_hold_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    needs("matplotlib", "plotly")
    first, call, kernel = anatomy_plot.panels(ROWS)
    assert first.bars == ("triton_jit, empty", "triton_jit, full", "numba_cuda, empty", "numba_cuda, full")
    assert first.parts["compile"] == {"triton_jit, empty": 2.0, "triton_jit, full": 0.1}
    assert {part: values["triton_jit"] for part, values in call.parts.items()} == {
        "allocate": 1.5, "wrap": 2.0, "launch": 5.0, "look-up": pytest.approx(3.5)}  # fmt: skip
    eager = replace(ROWS[0], implementation="torch_eager/softmax", own_call=True)
    parts = anatomy_plot.panels([*ROWS, eager])[1].parts
    assert parts["the library's own call"] == {"torch_eager": 12.0}
    assert eager.lookup_us is None
    assert [part for part, values in parts.items() if "torch_eager" in values] == ["the library's own call"]
    assert kernel.bars == ("triton_jit, cold", "triton_jit, warm")
    both = anatomy_plot.panels([replace(ROWS[0], kernel_capped_us=20.0)])[2]
    assert both.bars == ("triton_jit, cold", "triton_jit, capped", "triton_jit, warm")
    for name in ("a.svg", "a.png", "a.html"):
        anatomy_plot.write(ROWS, tmp_path / "new" / name, "softmax")
    assert ElementTree.parse(tmp_path / "new" / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<script src=" not in (tmp_path / "new" / "a.html").read_text()
    with pytest.raises(ValueError, match="nothing was measured"):
        anatomy_plot.write([Anatomy("x/softmax", "unavailable")], tmp_path / "b.svg", "softmax")


def test_the_parts_of_a_first_call_are_measured_where_it_can_run() -> None:
    turns: list[tuple[str, str]] = []
    found = first_parts(lambda name, phase: turns.append((name, phase)), "torch_eager", "softmax/4x8/float32", DEVICE, True)
    assert turns == [("torch_eager/softmax", "build")]
    assert set(found) == set(PARTS)
    assert all(0 <= seconds < 60 for seconds in found.values())
    assert set(first_parts(lambda *_: None, "triton_jit", "softmax/4x8/float32", DEVICE, False)) == {"import_s"}


def text(shown: Table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def survey(*entries: Entry) -> Survey:
    return Survey("cpu", {"device": "cpu"}, {entry.backend: entry for entry in entries})


def test_without_a_gpu_the_anatomy_has_a_row_a_backend_and_says_what_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [Entry(backend, stand_in="interpreter", variants={"softmax": {"": ""}}) for backend in support.BACKENDS]
    entries[1] = Entry(entries[1].backend, reason="no compiler", remedy="install one")
    monkeypatch.setattr(command, "surveyed", lambda device, files: survey(*entries))
    arguments = ("anatomy", "softmax", "softmax/64x64/float32", "--device", "cpu", "--no-first-call")
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["implementation"] for row in rows] == [f"{backend}/softmax" for backend in support.BACKENDS]
    assert [row["status"] for row in rows].count("needs a GPU") == len(entries) - 1
    assert (rows[1]["status"], rows[1]["reason"]) == ("unavailable", "no compiler: install one")
    assert all(row["kernel_cold_us"] is None for row in rows)
    assert "needs a GPU" in invoke(*arguments).output


def test_on_a_gpu_the_run_s_records_and_the_steps_make_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload("softmax", (4, 8), "float32")
    times = {name: Interval(us, us, us, 40) for name, us in TIMES.items()}

    def ran(jobs: list[Job], device: str, **_: object) -> Iterator[Event]:
        assert jobs[0].implementations == ("triton_jit/softmax", "cupy_raw/softmax")
        yield Event(jobs[0], turn=("triton_jit/softmax", "cold"))
        wrong = Record.of("cupy_raw/softmax", workload, status="wrong", reason="first at (0, 1)")
        yield Event(jobs[0], records=(Record.of("triton_jit/softmax", workload, status="ok", limit_us=9.0, **times), wrong))

    monkeypatch.setattr(anatomy, "run_jobs", ran)
    monkeypatch.setattr(anatomy, "_steps", lambda found, names, workload: {n.split("/")[0]: {"allocate": 1.0, "wrap": 2.0} for n in names})
    entries = {name: Entry(name, variants={"softmax": {"": ""}}) for name in ("triton_jit", "cupy_raw")}
    told: list[str] = []
    right, wrong = anatomy.anatomies(Survey("cuda:0", {"device": "H200"}, entries), workload, False, told.append)
    assert (right.allocate_us, right.wrap_us, right.lookup_us, right.kernel_cold_us, right.limit_us) == (1.0, 2.0, 4.0, 18.0, 9.0)
    assert (wrong.status, wrong.reason, wrong.wrap_us) == ("wrong", "first at (0, 1)", None)
    assert "triton_jit cold" in told
    assert "│ 0.5" in text(command.table([right]))
    assert "capped us" not in text(command.table([right]))
    assert "capped us" in text(command.table([replace(right, kernel_capped_us=20.0)]))


def test_a_stand_in_is_imported_and_not_timed_and_a_lost_worker_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(device: str, setup: object, kind: str, payload: tuple[object, ...]) -> tuple[object, object]:
        _, backend, _, _, launched = payload
        if backend == "cupy_raw":
            raise WorkerLost("the worker was killed", ("", ""))
        parts = PARTS if launched else {"import_s": 1.0}
        return parts, parts

    monkeypatch.setattr(anatomy, "cold_then_cached", measured)
    stand_ins = {"torch_eager": "cpu", "triton_jit": "interpreter", "cupy_raw": "cpu"}
    entries = [Entry(name, stand_in=stand_in, variants={"softmax": {"": ""}}) for name, stand_in in stand_ins.items()]
    eager, triton, cupy = anatomy.anatomies(survey(*entries), Workload("softmax", (4, 8), "float32"))
    assert (eager.status, eager.first_cold_s) == ("needs a GPU", 2.75)
    assert (triton.cached, triton.first_cached_s) == ({"import_s": 1.0}, None)
    assert (cupy.status, cupy.reason) == ("failed", "the worker was killed")
