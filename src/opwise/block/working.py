"""The block in a worker: every candidate is built, checked and, on a GPU, timed, all on the same buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwise import provenance
from opwise.backends import implementation, probe
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.block.checking import judged_block
from opwise.block.records import BASELINE
from opwise.block.sizes import Sizes
from opwise.block.turns import Course, Pace, Turns, medians, middle, over, over_full, timed
from opwise.block.wiring import NORMS, SWAPPED, Launch, Step, Tensors, wired
from opwise.measure.device import Monitor
from opwise.measure.gpu import CudaQueue, Queue
from opwise.measure.timing import Clock
from opwise.measure.validate import Verdict, fingerprint
from opwise.runner.candidate import interval_of
from opwise.runner.prepare import launching

Turn = Callable[[str, str], None]


@dataclass(frozen=True)
class Candidate:
    """A backend, and the ops of the block that its kernels compute."""

    backend: str
    ops: tuple[str, ...]

    def named(self, step: Step) -> str:
        """The implementation that runs a step."""
        return f"{self.backend if step.op in self.ops else BASELINE}/{step.op}"


@dataclass(frozen=True)
class Request:
    """A request to the worker: candidates, the baseline among them, sizes and duration."""

    sizes: Sizes
    candidates: tuple[Candidate, ...]
    device: str
    pace: Pace
    seed: int


def carried_out(turn: Turn, request: Request) -> dict[str, dict[str, Any]]:
    """Backend -> fields of its BlockRecord. A fault of the GPU is raised; the last turn sent names the candidate to blame."""
    device = torch.device(request.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with request.sizes.workloads["qkv"].precision(), torch.no_grad():
        turn("", "making the block's inputs and weights")
        work = _Work(request, device, turn)
        for candidate in request.candidates:
            work.build(candidate)
        if device.type == "cuda":
            work.time(CudaQueue(device), Monitor(device))
        return work.fields


class _Work:
    def __init__(self, request: Request, device: torch.device, turn: Turn) -> None:
        self.request, self.device, self.turn = request, device, turn
        self.tensors = Tensors.of(request.sizes, device, request.seed)
        self.given = fingerprint(self.tensors.given.values())
        self.fields: dict[str, dict[str, Any]] = {}
        self.courses: dict[str, Course] = {}
        self.expected: dict[str, Tensor] = {}
        self.unrepeatable: set[str] = set()
        self.by_name = {c.backend: c for c in request.candidates}

    # -- right or wrong ------------------------------------------------------------------------------------------------------

    def build(self, candidate: Candidate) -> None:
        """Builds a candidate, runs its block once over nan, judges it op by op."""
        name = candidate.backend
        self.turn(name, "build")
        try:
            found = probe(name, self.device)
            steps = wired(self.request.sizes, self.tensors, lambda *step: self._bound(candidate, *step))
            self.fields[name] = {"stand_in": found.stand_in, "sources": self._sources(candidate)}
            self.tensors.poison()
            self.turn(name, launching(f"{name}/"))
            course = Course(name, steps)
            course.run()
            self._wait()
            self.turn(name, "check")
            verdict = self._given_changed() or self._judged(name)
        except BackendUnavailable as error:
            self.fields[name] = {"status": "unavailable", "reason": str(error)}
        except UnsupportedWorkload as error:
            self.fields[name] = {"status": "unsupported", "reason": str(error)}
        except Exception as error:  # a broken kernel costs its own row; a broken GPU shows at the wait
            first_line = (str(error).strip().splitlines() or ["no message"])[0]
            self.fields[name] = {"status": "failed", "reason": f"{type(error).__name__}: {first_line}"}
            self._wait()
        else:
            self._keep(name, verdict)
            if verdict.ok:
                self.courses[name], self.expected[name] = course, self.tensors["y"].clone()

    def _bound(self, candidate: Candidate, step: Step, inputs: tuple[Tensor, ...], out: Tensor) -> Launch | None:
        if self._left_to_torch(candidate, step):
            return None
        return implementation(candidate.named(step), self.device).prepare(*inputs, out=out)

    def _left_to_torch(self, candidate: Candidate, step: Step) -> bool:
        return step.name in NORMS and (candidate.backend == BASELINE or step.op not in candidate.ops)

    def _sources(self, candidate: Candidate) -> dict[str, str]:
        name = candidate.backend
        return {op: provenance.source(name, op, provenance.tables(name, op, self.device)) for op in candidate.ops}

    def _judged(self, name: str) -> Verdict:
        candidate = self.by_name[name]
        named = {s.name: candidate.named(s) for s in SWAPPED.values() if not self._left_to_torch(candidate, s)}
        return judged_block(self.request.sizes, self.tensors, named)

    def _keep(self, name: str, verdict: Verdict) -> None:
        self.fields[name] |= {"status": "ok" if verdict.ok else "wrong", "reason": verdict.reason, "error_ratio": verdict.error_ratio}

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _given_changed(self) -> Verdict | None:
        """Wrong where x or a weight is no longer what it was. The others go on with what is there: they are judged by what they read."""
        now = fingerprint(self.tensors.given.values())
        changed, self.given = now != self.given, now
        return Verdict(False, float("inf"), "the block's x or a weight was overwritten") if changed else None

    # -- how long ------------------------------------------------------------------------------------------------------------

    def time(self, queue: Queue, monitor: Monitor) -> None:
        """Times the candidates that are right, and keeps what they came to."""
        courses = list(self.courses.values())
        clock = Clock(self.device, monitor, queue)
        Turns(clock, monitor, self.request.pace, self.turn, lambda _: self.tensors.poison(), self.wrong_after).run(courses)
        for course in courses:
            if course.name in self.unrepeatable and not course.refused:
                self._judge_last(course)
        lost = self._given_changed()
        baseline = self.courses.get(BASELINE)
        for course in courses:
            fields = self.fields[course.name]
            if course.refused or lost:
                reason = course.refused or f"wrong in the timed runs, of one of these: {lost.reason if lost else ''}"
                fields |= {"status": "wrong" if reason.startswith("wrong") else "failed", "reason": reason}
                continue
            fields |= measured(course)
            fields["reason"] = "; ".join(filter(None, (fields["reason"], clock.refusals.get(course.name))))
            if baseline is not None and not baseline.refused:
                fields |= {"versus_baseline": over(course, baseline), "full_versus_baseline": over_full(course, baseline)}

    def wrong_after(self, name: str) -> str:
        """After a turn on poisoned buffers: y is what the eager run left, bit by bit. Where it is not, it is judged, since a kernel may add
        in any order; such a one is judged again at the end."""
        y = self.tensors["y"]
        if torch.equal(y, self.expected[name]):
            return ""
        if name in self.unrepeatable and bool(torch.isfinite(y).all()):
            return ""
        self.unrepeatable.add(name)
        return self._wrong_now(name)

    def _wrong_now(self, name: str) -> str:
        verdict = self._judged(name)
        if not verdict.ok:
            return f"wrong in the timed runs: {verdict.reason}"
        fields = self.fields[name]
        fields |= {"error_ratio": max(fields["error_ratio"], verdict.error_ratio), "reason": "not the same bits each time; judged right"}
        return ""

    def _judge_last(self, course: Course) -> None:
        self.turn(course.name, "check timed buffers")
        self.tensors.poison()
        course.replay()
        self._wait()
        course.refused = self._wrong_now(course.name)


def measured(course: Course) -> dict[str, Any]:
    """The fields of a record for time, clock and energy."""
    stretches = course.stretches
    return {
        "block_us": timed(course),
        "power_w": middle(s.power_w for s in stretches),
        "joules": middle(s.joules for s in stretches),
        "sm_clock_mhz": middle(s.sm_clock_mhz for s in stretches),
        "temperature_c": middle(s.temperature_c for s in stretches),
        "throttle": tuple(dict.fromkeys(reason for s in stretches for reason in s.throttle)),
        "steps_us": medians(course.steps_us),
        "full_us": interval_of(course.full),
        "full_sm_clock_mhz": course.full.sm_clock_mhz if course.full else None,
        "full_steps_us": medians(course.full_steps_us),
    }
