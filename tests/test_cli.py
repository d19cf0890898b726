"""The command as a user meets it: exit statuses, errors that help, output that machines can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from opwise import __version__
from opwise.backends import BACKENDS
from opwise.cli import app
from opwise.ops import OPS
from opwise.provenance import source
from opwise.record import Interval, Record, append, read

CELL = Record(op="softmax", backend="triton_jit", variant="", dtype="float16", shape=(583, 931), status="ok", error_ratio=0.41,
              kernel_cold_us=Interval(10.0, 9.9, 10.2, 40, "events"), versus_best=(1.0, 1.0, 1.0), sol=0.91, limit_us=9.1,
              device="NVIDIA H200", commit="abc1234", time="2026-01-01T00:00:00+00:00")  # fmt: skip


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"TERM": "dumb"}).invoke(app, list(arguments))


def stored(tmp_path: Path, *records: Record) -> Path:
    path = tmp_path / "nvidia-h200" / "20260101T000000Z-core-abc1234.jsonl"
    append(path, [r.to_json() for r in records])
    return path


@pytest.mark.parametrize("command", [(), ("run",), ("check",), ("backends",), ("show",), ("choose",)])
def test_help_has_a_line_for_every_command(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


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


def test_show_shows_an_op_that_is_not_installed_here(tmp_path: Path) -> None:
    result = invoke("show", str(stored(tmp_path, replace(CELL, op="cube"))))
    assert result.exit_code == 0, result.output
    assert "triton_jit/cube" in result.output


def test_show_markdown_marks_the_fastest_and_names_what_has_no_time(tmp_path: Path) -> None:
    path = stored(tmp_path, CELL, replace(CELL, backend="cupy_raw", status="wrong", versus_best=None, kernel_cold_us=None, sol=None))
    row = next(line for line in invoke("show", str(path), "--markdown").output.splitlines() if "583x931" in line)
    assert row == "| `softmax/583x931/float16` | 9.1 | n/a | n/a | wrong | n/a | **0.91** |"


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
