"""Before anything is timed on several GPUs: all kernels are built, by as many processes as it takes, and none is waited for without end."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
import torch
from stand_ins import NAMES, PLACES, FakeSeat, crew_of, job

from opwise.ops.spec import Workload
from opwise.runner import Job, WorkerLost
from opwise.runner.cell import Bench, execute
from opwise.runner.prepare import Unit, launching, prepare, units
from opwise.scaling import compiling
from opwise.scaling.compiling import UnitQueue, helpers_for, waits
from opwise.scaling.crew import Crew


def test_nothing_is_timed_before_all_is_compiled() -> None:
    seats = [FakeSeat("a", pause_s=0.001), FakeSeat("b", pause_s=0.001)]
    jobs = [job(n) for n in (3, 5, 7)]
    events = list(crew_of(*seats, helpers=1)(jobs, "cuda:0", facts={}))
    (phase,) = [i for i, e in enumerate(events) if e.phase]
    assert not any(e.records for e in events[:phase])
    assert not any(e.turn and e.turn[1].startswith("compiling") for e in events[phase:])
    assert events[phase].phase["kernels"] == 2  # type: ignore[index]
    for seat in seats:
        kinds = [line.startswith("prepare") for line in seat.ran]
        assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize(("pause_s", "look_after_s", "helpers"), [(0.0, 30.0, 0), (0.05, 0.01, 2)])
def test_helpers_are_called_where_the_own_workers_are_slow(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, look_after_s: float, helpers: int
) -> None:
    """Half of the units wait behind their backends' first: where those take long, two more processes come, and go before the first job."""
    monkeypatch.setattr(compiling, "LOOK_AFTER_S", look_after_s)
    monkeypatch.setattr(compiling, "HELPED_S", 0.01)
    gone: list[FakeSeat] = []

    class Helper(FakeSeat):
        def kill(self) -> None:
            gone.append(self)
            super().kill()

    waiting: list[FakeSeat] = [FakeSeat("a", pause_s=pause_s), FakeSeat("b", pause_s=pause_s)]
    crew = Crew(PLACES, make_seat=lambda *a, **k: waiting.pop(0) if waiting else Helper("c"), helpers=1)
    jobs = [job(3), Job(Workload("square", (5,), "float16"), NAMES, "cuda:0")]
    for event in crew(jobs, "cuda:0", facts={}):
        if event.phase:
            assert event.phase["processes"] == 2 + helpers
        assert not event.records or len({id(seat) for seat in gone}) == helpers


def test_a_backends_first_unit_is_built_alone() -> None:
    found = units([job(3), job(5, ("torch_eager/square", "torch_eager/square:pow"))])
    queue = UnitQueue(found)
    first, other = queue.take(wait=False), queue.take(wait=False)
    assert first
    assert other
    assert {first.backend, other.backend} == {"torch_eager", "triton_jit"}
    assert queue.take(wait=False) is None, "the second of torch_eager waits for its first"
    queue.done(first if first.backend == "torch_eager" else other)
    last = queue.take(wait=False)
    assert last is not None
    assert last.implementation == "torch_eager/square:pow"
    assert first.workloads == (Workload("square", (3,), "float32"), Workload("square", (5,), "float32"))
    assert helpers_for(gpus=10**6, units=10) == 0, "never more processes than cores"


def test_a_first_launch_has_a_steps_patience_and_not_a_compilers() -> None:
    turns: list[tuple[str, str]] = []
    unit = Unit("torch_eager/square", (Workload("square", (3,), "float32"), Workload("square", (5,), "float32")))
    assert prepare("cpu", unit, lambda *turn: turns.append(turn)) > 0
    assert turns == [("torch_eager/square", "build"), ("torch_eager/square", "launch")] * 2


def test_a_users_own_kernel_may_compile_at_its_first_launch_and_the_suites_are_compiled_before() -> None:
    assert launching("triton_jit/square") == "launch"
    assert launching("mine/square") == "build", "with a compiler's patience"
    turns: list[tuple[str, str]] = []
    execute(job(3, ("torch_eager/square",), timed=False), Bench(torch.device("cpu"), {}), lambda *turn: turns.append(turn))
    assert [phase for name, phase in turns if name][:3] == ["build", "launch", "check"], "in its cell too"


def test_what_hangs_while_kernels_are_built_is_named_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three dtypes of an implementation the first hangs: its worker is lost, the others are left to their cells, the run goes on."""
    monkeypatch.setattr(compiling, "LOOK_AFTER_S", 0.01)
    monkeypatch.setattr(compiling, "NAMED_AFTER_S", 0.05)
    hung: list[str] = []

    class Hanging(FakeSeat):
        def ask(self, kind: str, payload: Any = None, patience: Any = None) -> Any:
            if kind == "prepare" and payload.implementation == "triton_jit/square":
                hung.append(str(payload))
                time.sleep(0.2)
                raise WorkerLost("no sign of life", (payload.implementation, "launch"), timed_out=True)
            return super().ask(kind, payload, patience)

    jobs = [Job(Workload("square", (n,), dtype), NAMES, "cuda:0") for n, dtype in ((3, "float16"), (5, "bfloat16"), (7, "float32"))]
    events = list(crew_of(Hanging("a"), Hanging("b"), helpers=0)(jobs, "cuda:0", facts={}))
    said = [e.turn[1] for e in events if e.turn and e.turn[1].startswith("compiling")]
    assert hung == ["triton_jit/square float16"]
    assert any("s for triton_jit/square float16" in line for line in said)
    assert said[-1] == "compiling: 6 of 6"
    assert Counter(r.status for e in events for r in e.records) == {"ok": 6}


def test_while_one_is_late_no_other_of_its_implementation_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    found = units([Job(Workload("square", (3,), dtype), NAMES[:1], "cuda:0") for dtype in ("float16", "float32")])
    (led,) = units([job(3, ("torch_eager/square:pow",))])
    queue = UnitQueue([led, *found])
    assert queue.take(wait=False) == led
    queue.done(led)
    monkeypatch.setattr(compiling, "NAMED_AFTER_S", 0.0)
    assert queue.take(wait=False) == found[0]
    assert queue.take(wait=False) is None, "it may hang as the first does"
    queue.done(found[0])
    assert queue.take(wait=False) == found[1], "which did not"


def test_the_longest_of_those_that_are_late_is_named() -> None:
    first, second = units([job(3)])
    assert waits({first: 0.0, second: 5.0}, now=19.0) == ""
    assert waits({first: 0.0, second: 5.0}, now=24.0) == ", 24 s for torch_eager/square float32"
    assert waits({second: 5.0, first: 0.0}, now=25.0) == ", 25 s for torch_eager/square float32 and 1 more"
