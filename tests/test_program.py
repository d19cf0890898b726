"""What a program calls: counted in an unchanged program, stored, answered for, dispatched by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_kernels import EAGER, FakeKernels, each_op, inputs_of, softmax_store
from invoking import invoke
from recorded_runs import cell, store_of

import opwise
from opwise.choosing import selection
from opwise.choosing.selection import Fallback
from opwise.choosing.table import BadTable, read_table, write_table
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.program.advice import advice
from opwise.program.calls import Call, Recording

X, W = torch.randn(6, 8), torch.randn(8, 5)


def counted(*calls: object) -> list[Call]:
    with opwise.recording() as seen:
        for call in calls:
            call()  # type: ignore[operator]
    return list(seen.recording.calls)


@each_op
def test_a_call_of_each_op_is_counted_as_its_workload_and_computes_the_same(op: str) -> None:
    results, inputs = [], inputs_of(op)
    (call,) = counted(*[lambda: results.append(EAGER[op](*inputs))] * 3)
    assert call.workload == OPS[op].workload_of(*inputs)
    assert (call.calls, call.near, call.left_to_eager, call.gradient, call.device) == (3, "", "", "", "cpu")
    assert all(torch.equal(result, EAGER[op](*inputs)) for result in results)


@pytest.mark.parametrize(
    ("call", "op"),
    [(lambda: X * X, "square"), (lambda: X**2, "square"), (lambda: X.mean((0, 1)), "mean"), (lambda: X.softmax(1), "softmax")],
)
def test_other_spellings_are_the_op_too(call: object, op: str) -> None:
    assert [(c.op, c.near) for c in counted(call)] == [(op, "")]


def test_what_is_not_the_op_is_not_counted_or_is_a_near_miss_with_its_reason() -> None:
    assert counted(lambda: X * W[:, 0], lambda: X**3, lambda: X + X, lambda: X ** torch.tensor(2.0), lambda: 2**X) == []
    assert counted(lambda: torch.mm(torch.eye(6).to_sparse(), X)) == [], "sparse tensors are no kernel's"
    bias, batch = torch.randn(5), torch.randn(2, 8, 3)
    near = {
        "bias": lambda: torch.nn.functional.linear(X, W.t(), bias),
        "batch": lambda: torch.randn(2, 4, 8) @ batch,
        "last": lambda: torch.softmax(X, 0),
        "some dimensions": lambda: X.mean(-1),
        "erf": lambda: torch.nn.functional.gelu(X),
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 2, 4, 8)] * 3),
        "log_softmax": lambda: torch.log_softmax(X, -1),
    }
    for word, call in near.items():
        (found,) = counted(call)
        assert word in found.near == found.left_to_eager
        assert found.workload is None


OF_COLUMNS = torch.randn(8, 6).t(), torch.randn(5, 8).t()


@pytest.mark.parametrize(
    ("a", "b", "layout"),
    [(X, W, "NN"), (X, OF_COLUMNS[1], "NT"), (OF_COLUMNS[0], W, "TN"), (*OF_COLUMNS, "TT"), (torch.randn(6, 16)[:, ::2], W, "strided")],
)
def test_a_product_s_layout_is_told_by_its_strides(a: torch.Tensor, b: torch.Tensor, layout: str) -> None:
    (call,) = counted(lambda: a @ b)
    assert (call.layout, call.shape, call.strides) == (layout, (6, 8, 5), (a.stride(), b.stride()))
    assert bool(call.left_to_eager) is (layout == "strided")
    assert call.workload == Workload("matmul", (6, 8, 5), "float32", "" if layout in ("NN", "strided") else layout)


def test_gradients_alignment_rank_dtype_and_precision_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = X.clone().requires_grad_()
    calls = counted(lambda: torch.mm(x, W).sum().backward())
    assert {(c.gradient, c.shape) for c in calls} == {("wanted", (6, 8, 5)), ("backward", (6, 5, 8))}
    assert [bool(c.left_to_eager) for c in calls] == [c.gradient == "backward" for c in calls]
    (off,) = counted(lambda: torch.square(torch.randn(9)[1:]))
    assert not off.aligned
    (deep,) = counted(lambda: torch.softmax(torch.randn(2, 3, 4), -1))
    assert deep.workload == Workload("softmax", (6, 4), "float32")
    (double,) = counted(lambda: torch.square(X.double()))
    assert double.workload is None
    assert "float64" in double.left_to_eager
    monkeypatch.setattr("opwise.program.counting._precision", lambda: "high")
    assert [c.dtype for c in counted(lambda: X @ W, lambda: X.square())] == ["tfloat32", "float32"]


def test_a_compiled_function_s_calls_say_so() -> None:
    compiled = torch.compile(lambda x: torch.softmax(x @ W, -1), backend="eager")
    assert [(c.op, c.compiled) for c in counted(lambda: compiled(X), lambda: X.square())] == [
        ("matmul", True), ("softmax", True), ("square", False)]  # fmt: skip


PROGRAM = """
import sys, torch
from helper import SIZE
with torch.no_grad():
    for _ in range(4): torch.softmax(torch.randn(SIZE, 33), -1)
print("argv", sys.argv[1:])
END
"""


@pytest.mark.parametrize(
    ("how", "end", "status"),
    [(("python", "app.py"), "", 0), (("python", "-u", "app.py", "--epochs", "1"), "sys.exit(3)", 3), (("python", "-m", "app"), "1 / 0", 1)],
    ids=["a file", "sys.exit", "a module that fails"],
)
def test_a_program_runs_as_it_would_and_is_recorded_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: tuple[str, ...], end: str, status: int
) -> None:
    """The program is a process; the command is in this one, and below, where Ctrl-C goes to both, in another."""
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text("SIZE = 7\n")
    Path("app.py").write_text(PROGRAM.replace("END", end))
    told = invoke("record", "-o", "r.json", "--", *how)
    of_program = capfd.readouterr()
    assert told.exit_code == status, of_program.err
    assert f"argv {['--epochs', '1'] if '--epochs' in how else []}" in of_program.out
    assert ("ZeroDivisionError" in of_program.err) is (status == 1)
    assert [(str(call.workload), call.calls) for call in Recording.read(Path("r.json")).calls] == [("softmax/7x33/float32", 4)]
    assert "softmax/7x33/float32" in told.output


def test_a_program_that_a_signal_ends_before_anything_was_recorded_has_the_status_of_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda command: SimpleNamespace(wait=lambda: -signal.SIGABRT))
    result = invoke("record", "-o", str(tmp_path / "r.json"), "--", "python", "app.py")
    assert result.exit_code == 128 + signal.SIGABRT
    assert f"nothing was recorded: the program ended with status {result.exit_code}" in " ".join(result.output.split())


def test_ctrl_c_ends_the_program_and_keeps_what_was_seen(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import time, torch\ntorch.randn(3, 3).square()\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "opwise", "record", "-o", str(tmp_path / "r.json"), "--", "python", "app.py"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # a shell's & has it ignored, and pytest with it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(30) == 130
    process.stdout.close()
    assert [call.op for call in Recording.read(tmp_path / "r.json").calls] == ["square"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "torchrun", "app.py"), "no Python program"),
        (("--", "python"), "names no program"),
        (("-o", "nowhere/r.json", "--", "python", "app.py"), "no folder"),
    ],
)
def test_what_cannot_be_recorded_is_refused(words: tuple[str, ...], said: str) -> None:
    result = invoke("record", *words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def a_recording(*calls: tuple[str, str, int]) -> Recording:
    """(op, shape, calls) in float32."""
    found = [Call(op, f"aten.{op}", "", tuple(map(int, shape.split("x"))), "float32", (), True, True, "cuda", "", False, n)
             for op, shape, n in calls]  # fmt: skip
    return Recording(("app.py",), 2.0, 1000, "NVIDIA H200", {}, tuple(found))


def test_what_switching_saves_is_weighted_by_calls() -> None:
    store = store_of(*(cell(b, us, shape=(7, 33), dtype="float32") for b, us in (("cupy_raw", 50.0), ("torch_eager", 90.0))))
    found = advice(a_recording(("softmax", "7x33", 500), ("gelu", "7x33", 9)), store, "nvidia-toy")
    softmax, gelu = found.lines
    assert (softmax.what, softmax.choice and softmax.choice.backend, softmax.calls) == ("softmax/7x33/float32", "cupy_raw", 500)
    assert found.saved_s == softmax.saved_s == pytest.approx(500 * 40e-6)
    assert gelu.choice is None
    assert "opwise run gelu/7x33/float32" in gelu.why
    assert found.choices == {Workload("softmax", (7, 33), "float32"): "cupy_raw"}


def test_choose_and_run_take_a_recording(tmp_path: Path) -> None:
    path, table = tmp_path / "r.json", tmp_path / "t.json"
    a_recording(("softmax", "4096x4096", 100), ("square", "3", 7)).write(path)
    result = invoke("choose", "--recorded", str(path), "--device", "nvidia-h200", "--write", str(table))
    assert result.exit_code == 0, result.output
    assert "softmax/4096x4096/float32" in result.output
    assert "in place of torch's save" in result.output
    assert "softmax/4096x4096/float32" in read_table(table)[1]
    data = json.loads(invoke("choose", "--recorded", str(path), "--device", "nvidia-h200", "--json").stdout)
    assert [line["calls"] for line in data["calls"]] == [100, 7]
    a_recording(("softmax", "3x5", 100), ("square", "3", 7)).write(path)
    result = invoke("run", "--recorded", str(path), "torch_eager", "--device", "cpu", "--out", str(tmp_path), "--json")
    assert {json.loads(line)["op"] for line in result.stdout.splitlines()} == {"softmax", "square"}
    path.write_text("{}")
    for command in (("choose", "--recorded", str(path)), ("run", "--recorded", str(path))):
        result = invoke(*command)
        assert result.exit_code == 2
        assert "is no recording" in result.output
    for arguments in (("softmax", "--recorded", str(path)), ("softmax",), ("--recorded", str(path))):
        result = invoke("choose", *arguments)
        assert result.exit_code == 2
        assert result.output.count("opwise: ") == 1, "one refusal, in words"


@pytest.mark.usefixtures("fresh")
def test_opwise_dispatches_by_a_table_of_this_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=1.0, triton_jit=5.0, torch_eager=9.0))
    here, path = selection.here("cuda:0").device, tmp_path / "t.json"
    monkeypatch.setenv("OPWISE_CHOICES", str(path))
    write_table(path, here, {Workload("softmax", (7, 33), "float32"): "triton_jit"})
    opwise.softmax(torch.randn(7, 33))
    opwise.softmax(torch.randn(8, 33))
    assert fake.calls == ["triton_jit"] * 2 + ["cupy_raw"] * 2
    write_table(path, "another GPU", {Workload("softmax", (7, 33), "float32"): "triton_jit"})
    selection.forget()
    with pytest.warns(Fallback, match="a table of another GPU"):
        opwise.softmax(torch.randn(7, 33))
    path.write_text('{"schema": 1, "device": "x", "choices": {"softmax/7x33/float32": "cudnn"}}')
    selection.forget()
    with pytest.raises(BadTable, match="cudnn"):
        opwise.softmax(torch.randn(7, 33))
