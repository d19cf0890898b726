"""`opwise block` without a GPU: the block is a transformer's, a wrong op is found and named, and what breaks costs its own row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from invoking import invoke
from torch import Tensor
from typer.testing import Result

from opwise.backends import implementation
from opwise.block.checking import judged_block
from opwise.block.running import candidates
from opwise.block.sizes import Sizes
from opwise.block.turns import Pace
from opwise.block.wiring import ORDER, STEPS, Launch, Step, Tensors, wired
from opwise.block.working import Candidate, Request, carried_out
from opwise.runner.jobs import Entry
from opwise.runner.survey import Survey

CPU = torch.device("cpu")
TINY = Sizes.of("tiny", 16)
NAMED = {name: f"torch_eager/{step.op}" for name, step in STEPS.items()}

OWN = """
import os, torch, opwise

@opwise.kernel("gelu")
def gelu(x, out):
    torch.clamp_min(x, 0, out=out)

@opwise.kernel("softmax")
def softmax(x, out):
    {softmax}
"""


def torch_alone(step: Step, inputs: tuple[Tensor, ...], out: Tensor) -> Launch:
    return implementation(f"torch_eager/{step.op}", CPU).prepare(*inputs, out=out)


def block_of(sizes: Sizes) -> tuple[Tensors, dict[str, Launch]]:
    """A block of torch's that ran once."""
    tensors = Tensors.of(sizes, CPU, 1)
    steps = wired(sizes, tensors, torch_alone)
    tensors.poison()
    for launch in steps.values():
        launch()
    return tensors, steps


@pytest.mark.parametrize("tokens", [16, 2048])
def test_the_block_is_a_transformers_block(tokens: int) -> None:
    """Beside the same in float64, written as one writes it; at 2048 tokens of two sequences, which do not see each other."""
    sizes = Sizes.of("tiny", tokens)
    tensors, _ = block_of(sizes)
    x, wqkv, wo, w1, w2 = (tensors.given[name].double() for name in ("x", "Wqkv", "Wo", "W1", "W2"))

    def normed(z: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(z, (sizes.hidden,))

    shape = (sizes.sequences, sizes.length, sizes.heads, sizes.head)
    q, k, v = (part.reshape(shape).transpose(1, 2) for part in (normed(x) @ wqkv).split(sizes.hidden, dim=1))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(tokens, sizes.hidden)
    middle = x + attended @ wo
    y = middle + torch.nn.functional.gelu(normed(middle) @ w1, approximate="tanh") @ w2
    assert float((tensors["y"].double() - y).abs().max()) < 0.1  # y ~ N(0, 1.6); bfloat16 keeps 3 digits
    assert float((tensors["y"].double() - y).square().mean().sqrt()) < 0.01


def test_every_step_is_judged_and_the_wrong_one_named() -> None:
    """A buffer that is off in one element, whoever wrote it: an op of the suite, a step of torch's, or a stray write into one."""
    tensors, steps = block_of(TINY)
    right = judged_block(TINY, tensors, NAMED)
    assert right.ok
    assert 0.1 < right.error_ratio <= 1
    outputs = {"norm 1": "normed", "scores": "scores", "values": "attended", "residual 1": "middle", "norm 2": "normed_2",
               "residual 2": "y", **{s.name: s.output for s in STEPS.values()}}  # fmt: skip
    assert set(outputs) == set(ORDER)
    for name, buffer in outputs.items():
        element = tensors[buffer][-1, -1]
        kept = element.clone()
        element.add_(0.25)
        wrong = judged_block(TINY, tensors, NAMED)
        element.copy_(kept)
        assert not wrong.ok
        assert wrong.reason.startswith(f"{name} ({NAMED.get(name, 'torch')})"), wrong.reason
    assert judged_block(TINY, tensors, NAMED).ok
    assert list(steps) == list(ORDER)


@pytest.mark.parametrize("left_out", ORDER)
def test_a_step_that_does_not_run_shows(left_out: str) -> None:
    tensors = Tensors.of(TINY, CPU, 1)
    tensors.poison()
    for name, launch in wired(TINY, tensors, torch_alone).items():
        if name != left_out:
            launch()
    assert bool(tensors["y"].isnan().any())
    assert not judged_block(TINY, tensors, NAMED).ok


def test_a_kernel_that_writes_its_inputs_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoils(step: Step, inputs: tuple[Tensor, ...], out: Tensor) -> Launch:
        launch = torch_alone(step, inputs, out)

        def spoiling() -> None:
            inputs[-1][0, 0] = 0.0
            launch()

        return spoiling if step.name == "down" else launch

    monkeypatch.setattr("opwise.block.working._Work._bound", lambda self, candidate, *step: spoils(*step))
    request = Request(TINY, (Candidate("torch_eager", ("matmul",)),), "cpu", Pace(), 1)
    found = carried_out(lambda *_: None, request)["torch_eager"]
    assert found["status"] == "wrong"
    assert "a weight was overwritten" in found["reason"]


def test_who_takes_part() -> None:
    every = {op: {"": ""} for op in ("matmul", "gelu", "softmax", "mean")}
    entries = [
        Entry("triton_jit", variants=every),
        Entry("torch_eager", variants=every),
        Entry("cupy_raw", reason="no CuPy", remedy="install it"),
        Entry("mine", variants={"softmax": {"": ""}, "matmul": {"slow": ""}}, own=True),
    ]
    found = Survey("cpu", {}, {entry.backend: entry for entry in entries})
    taking, absent = candidates(found, (), ())
    assert [(c.backend, c.ops) for c in taking] == [
        ("torch_eager", ("matmul", "softmax", "gelu")), ("triton_jit", ("matmul", "softmax", "gelu")), ("mine", ("softmax",))
    ]  # fmt: skip
    assert absent == {"cupy_raw": {"status": "unavailable", "reason": "no CuPy: install it"}}
    taking, absent = candidates(found, ("mine",), ("matmul",))
    assert [(c.backend, c.ops) for c in taking] == [("torch_eager", ("matmul",))]
    assert absent == {"mine": {"status": "unsupported", "reason": "has none of matmul"}}
    only = Candidate("triton_jit", ("matmul",))
    assert {only.named(step) for step in STEPS.values()} == {"triton_jit/matmul", "torch_eager/softmax", "torch_eager/gelu"}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path, list[dict[str, object]]]:
    """A whole command: torch, a stand-in, a file whose gelu is wrong, and one whose softmax takes the worker with it."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "relus.py").write_text(OWN.format(softmax="torch.softmax(x, dim=-1, out=out)"))
    (folder / "dies.py").write_text(OWN.format(softmax="os._exit(3)"))
    names = [word for name in ("triton_jit", "relus", "dies") for word in ("--backend", name)]
    files = [word for name in ("relus", "dies") for word in ("--with", str(folder / f"{name}.py"))]
    result = invoke("block", "--device", "cpu", "--out", str(folder / "results"), "--json", *names, *files)
    return result, folder / "results", [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_on_a_cpu_it_checks_in_stand_ins_and_times_nothing(checked: tuple[Result, Path, list[dict[str, object]]]) -> None:
    result, _, records = checked
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    by_name = {r["backend"]: r for r in records}
    assert {name: r["status"] for name, r in by_name.items()} == {
        "torch_eager": "ok", "triton_jit": "ok", "relus": "wrong", "dies": "failed"}  # fmt: skip
    assert str(by_name["relus"]["reason"]).startswith("gelu (relus/gelu): ")
    assert by_name["relus"]["error_ratio"] == "inf" or float(str(by_name["relus"]["error_ratio"])) > 1
    assert "exit status 3" in str(by_name["dies"]["reason"])
    assert by_name["triton_jit"]["stand_in"] == "interpreter"
    assert by_name["triton_jit"]["ops"] == ["matmul", "softmax", "gelu"]
    for r in records:
        assert (r["model"], r["block_us"], r["joules"], r["steps_us"], r["shares"]) == ("tiny", None, None, {}, {})


def test_a_checked_block_is_stored_and_shown(checked: tuple[Result, Path, list[dict[str, object]]]) -> None:
    _, folder, records = checked
    (path,) = folder.glob("cpu/*-block-*.jsonl")
    assert [json.loads(line) for line in path.read_text().splitlines()] == records
    shown = invoke("show", str(path))
    assert shown.exit_code == 0, shown.output
    assert "relus/gelu" in shown.output
    assert "nothing was timed" in shown.output


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["--op", "mean"], ["mean", "matmul, softmax, gelu"]),
        (["--backend", "cuda"], ["cuda", "torch_eager"]),
        (["--seconds", "0"], ["--seconds 0", "0.1"]),
        (["--device", "cpu", "--model", "tiny", "--tokens", "0"], ["tiny", "--tokens"]),
        (["--device", "cpu", "--model", "8b"], ["tiny", "--model"]),
        (["--json", "--markdown"], ["exclude each other"]),
    ],
)
def test_bad_usage_exits_2(arguments: list[str], needles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwise.commands.executors.surveyed", lambda device, files: Survey(device, {}, {}))
    result = invoke("block", *arguments)
    assert result.exit_code == 2, result.output
    assert all(needle in result.output for needle in needles), result.output
