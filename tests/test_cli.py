"""The command as a user meets it: exit statuses, errors that help, output that machines can read."""

from __future__ import annotations

import importlib
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from invoking import invoke
from recorded_runs import stored
from reporting import CELL, TWO_STATES, of_schema_1
from typer.main import get_command

from opwise import __version__
from opwise.backends import BACKENDS
from opwise.cli import app
from opwise.ops import OPS
from opwise.provenance import source
from opwise.record import Interval, Record, read
from opwise.report.tables import standing
from opwise.runner.session import Session


@pytest.mark.parametrize("command", sorted(set(get_command(app).commands) - {"backends"}))  # type: ignore[attr-defined]
def test_help_tells_of_every_command_with_examples(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert f"opwise {command} " in " ".join(result.output.partition("Examples:")[2].split())
    assert f" {command} " in invoke("--help").output


@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("command", ["run", "check"])
def test_the_set_that_help_tells_is_taken(command: str, on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    class Planned(Exception):
        pass

    def planned(found: object, filters: object, set_name: str, **_: object) -> None:
        taken.append(set_name)
        raise Planned

    found = SimpleNamespace(device="cuda:0" if on_gpu else "cpu", facts={}, catalogue={}, own={})
    monkeypatch.setattr(Session, "planned", planned)
    monkeypatch.setattr(importlib.import_module("opwise.commands.check"), "surveyed", lambda *_: found)
    run = importlib.import_module("opwise.commands.run")
    monkeypatch.setattr(run, "ready", lambda *_, **__: nullcontext(SimpleNamespace(survey=found)))
    monkeypatch.setattr(run, "told", lambda facts: ())
    assert isinstance(invoke(command).exception, Planned)
    told = " ".join(re.sub("[│╭╮╰╯]", " ", invoke(command, "--help").output).split())
    default = "Default: core; smoke without a GPU." if command == "run" else "[default: smoke]"
    assert default in told
    assert taken == ["core" if command == "run" and on_gpu else "smoke"]


def test_version() -> None:
    assert __version__ in invoke("--version").output


def test_run_checks_stores_and_prints(tmp_path: Path) -> None:
    result = invoke("run", "square", "torch_eager", "--set", "smoke", "--device", "cpu", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*/*.jsonl")
    records = read(path)
    assert {str(r.workload) for r in records} == {str(w) for w in OPS["square"].workloads["smoke"]}
    assert {r.status for r in records} == {"ok"}
    assert {r.source for r in records} == {source("torch_eager", "square")}
    assert all(r.kernel_cold_us is None and r.stand_in == "cpu" for r in records), "a CPU's times must not look like a GPU's"
    assert str(path) in result.output.replace("\n", "")
    assert "No GPU here" in result.output


def test_json_is_one_record_a_line() -> None:
    result = invoke("check", "mean/33/float32", "torch_eager", "--device", "cpu", "--json")
    records = [Record.from_json(line) for line in result.stdout.splitlines()]
    assert [(r.implementation, r.status) for r in records] == [("torch_eager/mean", "ok")]


def test_a_known_fault_is_shown_but_fails_nothing() -> None:
    result = invoke("check", "torch_eager/softmax:unshifted", "softmax/7x130/float32", "--device", "cpu", "--json")
    (record,) = (Record.from_json(line) for line in result.stdout.splitlines())
    assert record.status == "wrong"
    assert record.reason.startswith("known fault")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["run", "sofmax"], ["sofmax", "softmax", *BACKENDS]),
        (["check", "torch_egger"], ["torch_eager"]),
        (["run", "--set", "huge"], ["huge", "smoke", "core"]),
        (["run", "--device", "cuda:99"], ["cuda:99"]),
        (["run", "--device", "gpu"], ["gpu", "cuda:0"]),
        (["show", "no-such-run"], ["no-such-run"]),
        (["runn"], ["No such command", "run"]),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_known(arguments: list[str], needles: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert all(needle in result.output for needle in needles), result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("words", [("show", "--out"), ("check", "--with")], ids=" ".join)
def test_a_ring_of_links_is_refused_as_what_cannot_be_read(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")
    result = invoke(*words, str(tmp_path / "ring"))
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert "opwise:" in result.output


def test_backends_lists_all(tmp_path: Path) -> None:
    result = invoke("backends", "--device", "cpu", "--json")
    entries = json.loads(result.stdout)
    assert [e["backend"] for e in entries] == list(BACKENDS)
    assert all(e["versions"] or (e["reason"] and e["remedy"]) for e in entries)


def test_show_reads_a_run_of_another_machine(tmp_path: Path) -> None:
    slow = replace(
        CELL, backend="cupy_raw", kernel_cold_us=Interval(20.0, 19.8, 20.1, 40, "events"), versus_best=(2.0, 1.99, 2.02), sol=0.455
    )
    near = replace(CELL, backend="numba_cuda", kernel_cold_us=Interval(10.05, 10.0, 10.1, 40, "events"), versus_best=(1.005, 1.003, 1.007))
    wrong = replace(
        CELL, backend="torch_inline", status="wrong", reason="[red]3 of 9[/red]", kernel_cold_us=None, versus_best=None, sol=None
    )
    path = stored(tmp_path, slow, CELL, near, wrong)
    result = invoke("show", str(path))
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines() if "/softmax" in line}
    assert "fastest" in lines["triton_jit/softmax"]
    assert "tie" in lines["numba_cuda/softmax"]
    assert "2.00x" in lines["cupy_raw/softmax"]
    assert "[red]3 of 9[/red]" in lines["torch_inline/softmax"], "reasons are text, not markup"
    assert "NVIDIA H200" in result.output


def shown(tmp_path: Path, *records: Record) -> tuple[list[str], dict[str, list[str]], str]:
    """The columns of the last table, each row's cells in the table's order, and all of it."""
    result = invoke("show", str(stored(tmp_path, *records)))
    assert result.exit_code == 0, result.output
    columns = [line for line in result.output.splitlines() if line.startswith("implementation")][-1].split("┃")
    rows = [[cell.strip() for cell in line.split("│")] for line in result.output.splitlines() if line.startswith("  ") and "│" in line]
    return [column.strip() for column in columns], {row[0]: row for row in rows}, result.output


def test_a_run_without_cells_is_shown_as_one(tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "20260101T000000Z-core-a.jsonl"
    path.parent.mkdir()
    path.touch()
    result = invoke("show", "--out", str(tmp_path))
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "no cells")


def test_show_has_a_column_a_state_and_says_in_which_a_product_is_the_fastest(tmp_path: Path) -> None:
    columns, rows, output = shown(tmp_path, *TWO_STATES, CELL)
    assert columns[3:9] == ["cold us", "SOL", "capped us", "capped SOL", "SM MHz", "rank"]
    assert [row[3:9] for name, row in rows.items() if name.endswith("matmul")] == [
        ["178 ±0.1%", "0.97", "209 ±0.1%", "0.96", "1980 / 1500", "tie"],
        ["177 ±0.1%", "0.98", "216 ±0.1%", "0.93", "1980 / 1500", "fastest full clock, 1.04x capped"],
        ["204 ±0.1%", "0.85", "208 ±0.1%", "0.96", "1980 / 1500", "1.15x full clock, fastest capped"],
        ["214 ±0.1%", "0.81", "221 ±0.1%", "0.90", "1980 / 1500", "1.21x / 1.06x"],
    ], "in the order of the geometric mean"
    assert "triton_jit: fastest or tied on 2 of 2 workloads in both states (full clock 2, power-capped 2)" in output
    assert "torch_eager: fastest or tied on 0 of 2 workloads in both states (full clock 1, power-capped 0)" in output
    assert output.count("capped us") == 1, "softmax has one state, and its table no columns for another"


@pytest.mark.parametrize(
    ("full", "capped", "told"),
    [
        ((1.0, 1.0, 1.0), (1.002, 1.0, 1.004), "fastest"),
        ((1.002, 1.0, 1.004), (1.003, 1.001, 1.005), "tie"),
        ((1.2, 1.1, 1.3), (1.002, 1.0, 1.004), "1.20x full clock, tie capped"),
        (None, (1.0, 1.0, 1.0), "fastest capped"),
        (None, None, ""),
    ],
)
def test_the_fastest_is_so_in_both_states(full: tuple[float, float, float], capped: tuple[float, float, float], told: str) -> None:
    assert standing(replace(TWO_STATES[0], versus_best=full, capped_versus_best=capped)) == told


def test_show_markdown_has_both_states_of_a_product_and_says_what_they_are(tmp_path: Path) -> None:
    path = stored(tmp_path, CELL, *TWO_STATES)
    row, *below = invoke("show", str(path), "--markdown").output.split("| `matmul/4096x4096x4096/float16`")[1].splitlines()
    assert row == " | 173.0 / 200.0 | 0.98 / 0.93† | 0.85 / 0.96† | n/a | 0.81 / 0.90† | **0.97 / 0.96†** |", (
        "of a commit that nobody has: stale"
    )
    assert "full clock / power-capped" in " ".join(below)
    path = stored(tmp_path / "old", CELL, *map(of_schema_1, TWO_STATES))
    row, *below = invoke("show", str(path), "--markdown").output.split("| `matmul/4096x4096x4096/float16`")[1].splitlines()
    assert row == " |  | **177 us†** | 204 us† | n/a | 214 us† | **178 us†** |", "a limit at full clock is none of a power-capped time"
    assert "no limit" in " ".join(below)
    assert "capped" not in invoke("show", str(stored(tmp_path / "one", CELL)), "--markdown").output


def test_show_markdown_marks_the_fastest_and_names_what_has_no_time(tmp_path: Path) -> None:
    path = stored(tmp_path, CELL, replace(CELL, backend="cupy_raw", status="wrong", versus_best=None, kernel_cold_us=None, sol=None))
    row = next(line for line in invoke("show", str(path), "--markdown").output.splitlines() if "583x931" in line)
    assert row == "| `softmax/583x931/float16` | 9.1 | n/a | n/a | wrong | n/a | **0.91†** |"


def test_show_warns_of_a_torn_line_and_refuses_an_unknown_schema(tmp_path: Path) -> None:
    path = stored(tmp_path, CELL)
    path.write_text(path.read_text() + '{"schema": 1, "op": "sof')
    result = invoke("show", str(path))
    assert result.exit_code == 0
    assert "torn" in result.output
    path.write_text('{"schema": 99}\n')
    result = invoke("show", str(path))
    assert result.exit_code == 2
    assert "99" in result.output
