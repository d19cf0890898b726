"""The worker's part of `opwise block` with the CPU in the GPU's place: what is timed, what is judged again, what is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pretend_gpu import PretendQueue
from torch import Tensor

from opwise.backends import implementation
from opwise.backends.protocol import Probe, UnsupportedWorkload
from opwise.block.sizes import Sizes
from opwise.block.turns import MIN_ROUNDS, Pace
from opwise.block.wiring import ORDER, Launch, Step
from opwise.block.working import Candidate, Request, _Work
from opwise.measure.device import Monitor
from opwise.ops.gelu import GELU

CPU = torch.device("cpu")
Bound = Callable[[Step, Launch, Tensor, Tensor], Launch]
PACE = Pace(total_s=0.02, warm_up_s=0.0, lead_s=0.001, stretch_s=0.002)


class AskedTwice(PretendQueue):
    """A mark is reached when it is asked for again: the stretch is looked into once, and steps apart are always enqueued in time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[float] = set()

    def reached(self, mark: float) -> bool:
        before = mark in self.asked
        self.asked.add(mark)
        return before


def gelu_that(changes: Callable[[int, Tensor, Tensor], None]) -> Bound:
    """torch's, and behind each run of gelu `changes(how many ran before, x, out)`."""

    def bind(step: Step, launch: Launch, x: Tensor, out: Tensor) -> Launch:
        runs = 0

        def changed() -> None:
            nonlocal runs
            launch()
            changes(runs, x, out)
            runs += 1

        return changed if step.name == "gelu" else launch

    return bind


def wobbles(runs: int, x: Tensor, out: Tensor) -> None:
    """From the second run on the next number away from 0, where that is within the bound too."""
    next_one = (out.view(torch.int16) + 1).view(out.dtype)
    exact = GELU.reference(x.double())
    within = (next_one.double() - exact).abs() < 0.99 * 2.0**-8 * exact.abs()
    assert bool(within.any())
    if runs:
        out.copy_(torch.where(within, next_one, out))


def goes_wrong(runs: int, x: Tensor, out: Tensor) -> None:
    if runs > 40:
        out[0, 0] += 1.0


def refuses(step: Step, launch: Launch, x: Tensor, out: Tensor) -> Launch:
    raise UnsupportedWorkload("takes no bfloat16")


def worked(monkeypatch: pytest.MonkeyPatch, **binds: Bound) -> tuple[_Work, list[tuple[str, str]]]:
    """Torch, and candidates by these names that change what torch does."""

    def bound(self: _Work, candidate: Candidate, step: Step, inputs: tuple[Tensor, ...], out: Tensor) -> Launch:
        launch = implementation(f"torch_eager/{step.op}", CPU).prepare(*inputs, out=out)
        return binds[candidate.backend](step, launch, inputs[0], out) if candidate.backend in binds else launch

    monkeypatch.setattr(_Work, "_bound", bound)
    monkeypatch.setattr("opwise.block.working.probe", lambda name, device: Probe({}))
    said: list[tuple[str, str]] = []
    candidates = (Candidate("torch_eager", ("matmul", "softmax", "gelu")), *(Candidate(name, ()) for name in binds))
    work = _Work(Request(Sizes.of("tiny", 16), candidates, "cpu", PACE, 3), CPU, lambda *turn: said.append(turn))
    with torch.no_grad():
        for candidate in candidates:
            work.build(candidate)
        work.time(AskedTwice(), Monitor(CPU))
    return work, said


def test_right_candidates_are_timed_beside_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    work, said = worked(monkeypatch, same=lambda step, launch, x, out: launch, refuses=refuses)
    eager, same = work.fields["torch_eager"], work.fields["same"]
    for fields in (eager, same):
        assert fields["status"] == "ok"
        assert fields["block_us"].samples >= MIN_ROUNDS
        assert list(fields["steps_us"]) == list(ORDER)
        assert (fields["joules"], fields["sm_clock_mhz"]) == (None, None)
    assert eager["versus_baseline"] == (1.0, 1.0, 1.0)
    assert 0.2 < same["versus_baseline"][0] < 5
    assert work.fields["refuses"] == {"status": "unsupported", "reason": "takes no bfloat16"}
    assert not any(name == "refuses" and phase == "timing" for name, phase in said)


def test_other_bits_are_judged_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    work, said = worked(monkeypatch, wobbles=gelu_that(wobbles))
    fields = work.fields["wobbles"]
    assert (fields["status"], fields["reason"]) == ("ok", "not the same bits each time; judged right")
    assert fields["block_us"] is not None
    assert ("wobbles", "check timed buffers") in said


def test_what_is_wrong_in_the_timed_runs_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = worked(monkeypatch, later=gelu_that(goes_wrong))
    fields = work.fields["later"]
    assert fields["status"] == "wrong"
    assert fields["reason"].startswith("wrong in the timed runs: gelu (torch_eager/gelu)")
    assert "block_us" not in fields
    assert work.fields["torch_eager"]["status"] == "ok"


def test_a_weight_that_is_overwritten_in_the_timed_runs_leaves_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors: list[Tensor] = []

    def spoils(runs: int, x: Tensor, out: Tensor) -> None:
        if runs == 40:
            tensors[0][-1, -1] = 0.0

    original = _Work.build

    def building(self: _Work, candidate: Candidate) -> None:
        tensors[:] = [self.tensors["W2"]]
        original(self, candidate)

    monkeypatch.setattr(_Work, "build", building)
    work, _ = worked(monkeypatch, spoils=gelu_that(spoils))
    assert {fields["status"] for fields in work.fields.values()} == {"wrong"}
    assert all("weight was overwritten" in fields["reason"] for fields in work.fields.values())
    assert not any("block_us" in fields for fields in work.fields.values())
