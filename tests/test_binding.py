"""What an Implementation does around any kernel: builds that are kept, checks, and the device that is current. Its kernels are toys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import DEVICE, bits
from torch import Tensor

from opwise.backends import protocol
from opwise.backends.protocol import Bind, Implementation, Launch, Variant
from opwise.ops import OPS, Workload


class Counting:
    """A toy implementation of an op that counts what is asked of it."""

    def __init__(self, op: str, **source: bool) -> None:
        self.builds: list[str] = []
        self.made = Implementation("toy", OPS[op], "", Variant(self.build, "counts", **source))

    def build(self, *tensors: Tensor) -> Bind:
        self.builds.append(str(tensors[0].dtype))
        return self.bind

    def bind(self, *tensors: Tensor) -> Launch:
        *inputs, out = tensors

        def launch() -> None:
            out.copy_(self.made.op.reference(*inputs))

        return launch


def test_a_build_is_kept_by_dtype_shape_alignment_and_precision() -> None:
    toy = Counting("matmul")
    workload = Workload("matmul", (5, 6, 7), "float32")
    a, b = OPS["matmul"].make_inputs(workload, DEVICE, 0)
    for _ in range(2):
        toy.made(a, b)
        toy.made.prepare(a, b, out=torch.empty(5, 7, device=DEVICE))
        toy.made(a.clone(), b.clone())
    assert len(toy.builds) == 1
    toy.made(a.half(), b.half())
    toy.made(a[:4], b)
    with replace(workload, dtype="tfloat32").precision():
        toy.made(a, b)
    moved = torch.empty(31, device=DEVICE)[1:].view(5, 6).copy_(a)
    toy.made(moved, b)
    toy.made.prepare(a, b, out=torch.empty(36, device=DEVICE)[1:].view(5, 7))
    assert len(toy.builds) == 6


def test_nothing_is_built_for_nothing() -> None:
    for op, shapes, expected in (("square", [(0, 3)], None), ("matmul", [(2, 0), (0, 3)], 0.0), ("mean", [(0,)], float("nan"))):
        toy = Counting(op)
        out = toy.made(*(torch.empty(shape, device=DEVICE) for shape in shapes))
        assert not toy.builds
        assert expected is None or torch.equal(bits(out), bits(torch.full_like(out, expected)))


def test_an_op_that_was_right_once_still_checks_what_is_new() -> None:
    toy = Counting("square")
    x = torch.ones(3, device=DEVICE)
    toy.made(x)
    with pytest.raises(ValueError, match="requires grad"):
        toy.made(x.clone().requires_grad_())
    with pytest.raises(ValueError, match="row-major"):
        toy.made(torch.ones(3, 2, device=DEVICE).t())
    with pytest.raises(TypeError, match="takes 1 tensor"):
        toy.made(x, x)


def test_among_several_gpus_everything_runs_with_its_own_device_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without several GPUs: the guards are replaced by ones that tell what ran inside them."""
    guarded: list[str] = []
    inside = False

    @contextlib.contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        nonlocal inside
        before, inside = inside, True
        yield
        inside = before

    def on_device(device: torch.device, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_there(*given: Tensor) -> Any:
            with guard(device):
                return run(*given)

        return run_there

    def build(x: Tensor, out: Tensor) -> Bind:
        guarded.append(f"build {inside}")

        def bind(x: Tensor, out: Tensor) -> Launch:
            guarded.append(f"bind {inside}")
            return lambda: guarded.append(f"launch {inside}")

        return bind

    monkeypatch.setattr(protocol, "_several_gpus", lambda device: True)
    monkeypatch.setattr(protocol, "_current", guard)
    monkeypatch.setattr(protocol, "_on_device", on_device)
    implementation_ = Implementation("toy", OPS["square"], "", Variant(build, "tells where it is"))
    x = torch.ones(3)
    implementation_.prepare(x, out=torch.empty(3))()
    assert guarded == ["build True", "bind True", "launch True"]
    implementation_(x)
    assert set(guarded[3:]) == {"bind True", "launch True"}
    del guarded[:]
    implementation_(x)
    assert guarded == ["bind True", "launch True"], "a call that is known"


@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_goes_to_its_own_device_and_leaves_the_current_one(monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        seen.append(f"to {index}")
        yield
        seen.append("back")

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(torch.cuda, "device", device)
    run = protocol._on_device(torch.device("cuda", 1), lambda *given: seen.append(f"run {given}") or 7)
    assert run(1, 2) == 7
    assert seen == (["run (1, 2)"] if current == 1 else ["to 1", "run (1, 2)", "back"])
