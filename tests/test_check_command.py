"""`opwise check`: the grid, the lines below it, its options, and what it says of a machine that lacks something."""

from __future__ import annotations

import importlib
import itertools
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import command
from support import in_stand_in, or_skip, small_workload, stand_in
from typer.testing import CliRunner

from opwise.backends import BACKENDS, implementations
from opwise.backends.cuda_on_cpu import NOT_RUN, STAND_IN
from opwise.cli import app
from opwise.commands import check, executors
from opwise.commands.stand_ins import STAND_INS, stand_in_lines
from opwise.ops import OPS, Workload
from opwise.record import Record
from opwise.runner import Entry, Job, session
from opwise.runner.kernels_run import kernels_run
from opwise.runner.session import Session
from opwise.runner.survey import Survey

RIGHT = Record(op="softmax", backend="cupy_raw", variant="", dtype="float16", shape=(7, 130), status="ok", error_ratio=0.25,
               device="cpu", commit="abc1234", time="2026-01-01T00:00:00+00:00", stand_in=STAND_IN,
               kernels=("softmax_float16_warp8_v2",))  # fmt: skip
WRONG = replace(RIGHT, status="wrong", error_ratio=7.0, reason="element [red]", shape=(3, 33), stand_in=None)
MISSING = replace(RIGHT, backend="torch_inline", status="unavailable", error_ratio=None, stand_in=None, kernels=(),
                  reason="the C++ compiler 'c++' was not found: install g++")  # fmt: skip
COMPILED = replace(MISSING, reason="compiled for sm_80, sm_90, sm_100, not run: no GPU here")


invoke = command("check", COLUMNS="170")


def test_a_cell_sums_up_a_pair() -> None:
    worse = replace(RIGHT, error_ratio=0.75)
    assert "ok 0.75" in check.cell([RIGHT, worse])
    assert check.cell([replace(worse, stand_in=None, kernels=())]).count("\n") == 0
    assert "wrong, 1 of 3" in check.cell([RIGHT, WRONG, worse])
    assert "compiled, not run" in check.cell([COMPILED])
    assert check.cell([MISSING]) == check.cell([]) == "n/a"


def test_every_problem_is_a_line_with_its_reason() -> None:
    lines = check.notes([RIGHT, WRONG, MISSING, replace(MISSING, shape=(9, 9))])
    assert [line for line in lines if "softmax/3x33/float16" in line and r"element \[red]" in line and "cupy_raw/softmax" in line]
    assert len([line for line in lines if "install g++" in line]) == 1, "a reason that many cells share is told once"
    (told,) = (line for line in lines if "stand-in" in line)
    assert "cupy_raw" in told
    assert NOT_RUN["softmax"][0] in told
    assert NOT_RUN["matmul"][0] not in told, "matmul was not asked for"
    assert "[yellow]compiled, not run[/]  torch_inline: compiled for sm_80" in check.notes([COMPILED])[0]
    assert check.notes([replace(RIGHT, stand_in=None)]) == []


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Sessions that the command planned, on a machine that was not looked at; they do nothing, or what `happens` does."""
    seen: list[Session] = []
    catalogue = {b: Entry(b, versions={"b": "1"}, variants={op: {"": ""} for op in OPS}) for b in BACKENDS}
    monkeypatch.setattr(check, "surveyed", lambda name, files: Survey(name, {}, catalogue))
    monkeypatch.setattr(Session, "events", lambda self: (seen.append(self), iter(()))[1])
    return seen


def test_backend_and_dtype_narrow_what_is_checked(planned: list[Session]) -> None:
    assert invoke("mean", "--backend", "torch_eager", "--backend", "triton_jit", "--dtype", "bfloat16", "--device", "cpu").exit_code == 0
    (session,) = planned
    assert {job.implementations for job in session.jobs} == {("torch_eager/mean", "triton_jit/mean")}
    assert {(job.workload.op, job.workload.dtype, job.timed) for job in session.jobs} == {("mean", "bfloat16", False)}
    for arguments, known in ((("--backend", "tritn"), BACKENDS), (("--dtype", "float8"), ("bfloat16",))):
        refused = invoke(*arguments, "--device", "cpu")
        assert refused.exit_code == 2
        assert all(name in refused.output for name in (arguments[1], *known))
    assert len(planned) == 1, "what is refused is not carried out"


@pytest.mark.parametrize(("record", "status", "says"), [
    (RIGHT, 0, "warp8_v2"), (WRONG, 1, "cupy_raw/softmax  softmax/3x33/float16: "),
    (replace(WRONG, reason="half of a UTF-16 pair: \ud800"), 1, "pair: \\ud800"),
])  # fmt: skip
def test_something_wrong_is_exit_status_1(
    planned: list[Session], monkeypatch: pytest.MonkeyPatch, record: Record, status: int, says: str
) -> None:
    monkeypatch.setattr(Session, "events", lambda self: iter(self.records.append(record) or ()))
    result = invoke("softmax", "--device", "cpu")
    assert (result.exit_code, says in result.output) == (status, True), result.output


def test_json_says_what_ran_and_what_never_does(planned: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "events", lambda self: iter(self.records.append(RIGHT) or ()))
    (line,) = invoke("softmax", "--device", "cpu", "--json").stdout.splitlines()
    told = Record.from_json(line)
    assert (told.stand_in, told.kernels, told.not_run) == (STAND_IN, RIGHT.kernels, (NOT_RUN["softmax"][0],))


def test_ctrl_c_keeps_what_was_shown(planned: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Session) -> Iterator[object]:
        self.records.append(RIGHT)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Session, "events", stopped)
    result = invoke("softmax", "--device", "cpu")
    assert result.exit_code == 130
    assert "ok 0.25" in result.output
    assert "1 finished checks" in result.output


def test_what_is_only_compiled_says_what_the_stand_in_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("cupy_raw", reason="the C++ compiler 'c++' was not found", remedy="install g++", compiles=True)
    job = Job(Workload("square", (33,), "float32"), ("cupy_raw/square",), "cpu", timed=False)
    told = threading.Event()

    def compiling(backend: str, op: str) -> tuple[str, str]:
        assert told.wait(5), "whoever waits knows for what"
        return "unavailable", "compiled for sm_80, not run: no GPU here"

    monkeypatch.setattr(session, "compile_op", compiling)
    run = Session(Survey("cpu", {}, {"cupy_raw": entry}), [job], "smoke", None)
    reasons = []
    for event in run.events():
        reasons += [r.reason for r in event.records]
        if event.turn == ("cupy_raw/square", "compile"):
            told.set()
    assert reasons == ["compiled for sm_80, not run: no GPU here. the C++ compiler 'c++' was not found: install g++"]


def test_a_file_that_is_left_out_is_an_error(planned: list[Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.touch()
    ops = {**dict.fromkeys(BACKENDS, ("softmax", "square")), "mine": ("softmax",)}
    catalogue = {
        name: Entry(name, versions={"b": "1"}, variants={op: {"": ""} for op in has}, own=name == "mine") for name, has in ops.items()
    }
    monkeypatch.setattr(check, "surveyed", lambda name, files: Survey(name, {}, catalogue, {"mine": path}))
    monkeypatch.setattr(executors, "surveyed", check.surveyed)
    of_run = CliRunner().invoke(app, ["run", "softmax", "torch_eager", "--with", str(path), "--device", "cpu", "--out", str(tmp_path)])
    assert (of_run.exit_code, "mine.py" in of_run.output and "mine/softmax" in of_run.output) == (2, True), of_run.output
    for left_out in (("softmax", "--backend", "torch_eager"), ("softmax", "--dtype", "float32", "triton_jit")):
        refused = invoke(*left_out, "--with", str(path), "--device", "cpu")
        assert refused.exit_code == 2
        assert all(said in refused.output for said in ("mine.py", "mine/softmax", "--backend mine")), refused.output
    none = invoke("square", "--backend", "mine", "--with", str(path), "--device", "cpu")
    assert (none.exit_code, "mine has softmax" in none.output) == (2, True), none.output
    assert invoke("softmax", "--backend", "mine", "--with", str(path), "--device", "cpu").exit_code == 0
    assert len(planned) == 1


def test_the_lines_of_stand_ins_name_every_gluon_kernel() -> None:
    """By the sources: whatever is Gluon and a kernel, the interpreter never runs."""
    never = " ".join(STAND_INS["interpreter"].never.values())
    folder = Path(importlib.import_module(BACKENDS["triton_jit"]).__file__ or "").parent
    kernels = {name for path in folder.rglob("*.py") for name in re.findall(r"@gluon\.jit.*\ndef (\w+_kernel)\(", path.read_text())}
    assert kernels
    assert kernels == set(re.findall(r"\w+_kernel", never))


def test_what_a_stand_in_leaves_out_is_told_of_the_suite_s_own_backends() -> None:
    """A package's may run in the same one, and has other kernels."""
    ours, theirs = stand_in_lines({"interpreter": ["triton_jit", "of_a_package"]}, ["softmax"])
    assert ("triton_jit" in ours, "stream_kernel" in ours, "of_a_package" in ours) == (True, True, False)
    assert theirs.endswith("of_a_package: Triton's interpreter: runs its kernels")
    of_it = Record.of("of_a_package/softmax", Workload("softmax", (2, 3), "float32"), status="ok", stand_in="interpreter")
    assert check._with_not_run(of_it).not_run == ()


@in_stand_in
@pytest.mark.parametrize(("backend", "variant", "op"), [("numba_cuda", "mma", "matmul"), ("triton_jit", "pointers", "matmul")])
def test_in_a_stand_in_the_unnamed_variant_is_another_by_name(backend: str, variant: str, op: str) -> None:
    """What STAND_INS says of fibres and of the interpreter, by the kernels that were launched."""
    with or_skip():
        found = implementations(backend, op, "cpu")
    workload = small_workload(OPS[op], "float32")
    inputs = OPS[op].make_inputs(workload, torch.device("cpu"), 0)
    seen = []
    for name in ("", variant):
        with kernels_run(stand_in(backend)) as kernels:
            found[name].prepare(*inputs, out=OPS[op].empty_output(*inputs))()
        seen.append(kernels)
    assert seen[0] == seen[1] != []


@in_stand_in
@pytest.mark.slow
@pytest.mark.xdist_group("cuda_on_cpu")
def test_without_a_gpu_every_pair_is_checked_in_a_stand_in() -> None:
    """One workload an op; the suite's own tests have all the others."""
    pairs = {
        op: min((w for w in spec.workloads["smoke"] if w.dtype == "float16"), key=lambda w: spec.cost(w).bytes) for op, spec in OPS.items()
    }
    result = invoke(*map(str, pairs.values()))
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.split() and line.split()[0] in OPS}
    assert set(rows) == set(OPS), result.output
    if "unavailable" in result.output:
        pytest.skip(f"a backend's library or compiler is not here: {result.output.splitlines()[-1]}")
    assert [row.count("ok ") for row in rows.values()] == [len(BACKENDS)] * len(OPS), result.output
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(len(line.rstrip()) for line in lines if "│" in line) <= 100
    of_kernels = [line for before, line in itertools.pairwise(lines) if before.split()[:1] and before.split()[0] in OPS]
    assert [sum(bool(part.strip()) for part in line.split("│")) for line in of_kernels] == [len(BACKENDS) - 1] * len(OPS), result.output
    assert sum(line.startswith("stand-in  ") for line in lines) == len(STAND_INS)
    assert all(kernels in result.output for kernels, _ in NOT_RUN.values())
