"""A job, carried out in the worker: inputs, truth, checks, times, records.

Data goes one way: workload -> inputs -> prepare -> check -> timing -> check of the very buffers that were timed -> record. Only
implementations whose check passed are timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwise import provenance
from opwise.backends import implementation
from opwise.backends.protocol import BackendUnavailable, Implementation, UnsupportedWorkload
from opwise.measure.device import Monitor
from opwise.measure.limits import Roofs
from opwise.measure.memory import MemoryMeter
from opwise.measure.timing import MOST_COLD_S, Clock
from opwise.measure.validate import Verdict, agree, check, fingerprint, judge
from opwise.ops import OPS
from opwise.ops.spec import OpSpec, Workload
from opwise.record import Record, now
from opwise.runner.candidate import Candidate, Limits, outcome_fields, time_fields, worse
from opwise.runner.jobs import Job
from opwise.runner.kernels_run import kernels_run
from opwise.runner.prepare import launching

# Interpreters run a GPU's threads one after the other: above this many elements a check takes minutes. See tests for the same bound.
STAND_IN_ELEMENTS = 1 << 17
BRIEF_COLD_S = 0.1  # a candidate: 10 blocks, enough for Mann and Whitney's test to tell them from 10 others at p = 0.002
Turn = Callable[[str, str], None]  # (implementation, phase): said before it, so that a fault is laid at the right door


@dataclass
class Bench:
    """The instruments of one worker: made once, used for every job."""

    device: torch.device
    facts: dict[str, Any]
    clock: Clock | None = None
    roofs: Roofs | None = None

    @classmethod
    def on(cls, device: torch.device, facts: dict[str, Any]) -> Bench:
        if device.type != "cuda":
            return cls(device, facts)
        clock = Clock(device, Monitor(device))
        return cls(device, facts, clock, Roofs(clock))


def execute(job: Job, bench: Bench, turn: Turn) -> list[Record]:
    """The records of a job, one an implementation, in the job's order. A fault of the GPU itself is raised, not recorded here."""
    spec, workload = OPS[job.workload.op], job.workload
    seed = int.from_bytes(os.urandom(4), "little") >> 1  # fresh inputs each time: nothing can have learnt them
    with workload.precision(), torch.no_grad():
        session = _Session(job, spec, bench, turn, seed)
        session.check_all()
        if job.timed:
            session.time_all()
        return session.records()


@dataclass
class _Truth:
    inputs: tuple[Tensor, ...]
    reference: Tensor
    bound: Tensor

    @classmethod
    def of(cls, spec: OpSpec, workload: Workload, inputs: tuple[Tensor, ...]) -> _Truth:
        exact = [x.double() for x in inputs]
        reference = spec.reference(*exact)
        return cls(inputs, reference, spec.error_bound(workload, reference, *exact))


class _Session:
    def __init__(self, job: Job, spec: OpSpec, bench: Bench, turn: Turn, seed: int) -> None:
        self.job, self.spec, self.bench, self.turn, self.seed = job, spec, bench, turn, seed
        self.truth = _Truth.of(spec, job.workload, spec.make_inputs(job.workload, bench.device, seed))
        self.candidates: dict[str, Candidate] = {}
        self.refused: dict[str, tuple[str, str]] = {}  # name -> (status, reason)
        self.stand_ins: dict[str, str | None] = {}
        self.limits: Limits | None = None
        self.disagreement: dict[str, float] = {}

    # -- right or wrong ------------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        hard_inputs = self.spec.hard_inputs(self.job.workload, self.bench.device, self.seed)
        for name in self.job.implementations:
            self.turn(name, "build")
            try:
                self._check(name)
            except BackendUnavailable as error:
                self.refused[name] = ("unavailable", str(error))
            except UnsupportedWorkload as error:
                self.refused[name] = ("unsupported", str(error))
            except Exception as error:  # a broken kernel costs its own row; a broken GPU shows at the synchronize below
                self.refused[name] = ("failed", f"{type(error).__name__}: {error}")
                _synchronize(self.bench.device)
        hard = _Truth.of(self.spec, self.job.workload, hard_inputs)
        for name, candidate in self.candidates.items():
            self.turn(name, "check hard inputs")
            try:
                verdict = check(candidate.implementation.prepare, hard.inputs, hard.reference, hard.bound)
            except Exception as error:
                verdict = Verdict(False, float("inf"), f"{type(error).__name__}: {error}")
                _synchronize(self.bench.device)
            if not verdict.ok:
                verdict = Verdict(False, verdict.error_ratio, f"on hard inputs: {verdict.reason}")
            candidate.verdict = worse(candidate.verdict, verdict)
        del hard
        self._compare_pairwise()

    def _check(self, name: str) -> None:
        from opwise.backends import probe  # late: importing a backend's library belongs to this implementation's own turn

        self.stand_ins[name] = probe(name.split("/")[0], self.bench.device).stand_in
        implementation_ = implementation(name, self.bench.device)
        if self.stand_ins[name] not in (None, "cpu") and self._elements() > STAND_IN_ELEMENTS:
            raise UnsupportedWorkload(f"{self._elements()} elements are too many for the {self.stand_ins[name]}: check it on a GPU")
        out = self.spec.empty_output(*self.truth.inputs)
        with MemoryMeter(self.bench.device) as meter, kernels_run(self.stand_ins[name]) as kernels:
            began = time.perf_counter()
            launch = implementation_.prepare(*self.truth.inputs, out=out)
            prepare_s = time.perf_counter() - began
            self.turn(name, launching(name))
            launch()
        self.turn(name, "check")
        verdict = check(implementation_.prepare, self.truth.inputs, self.truth.reference, self.truth.bound)
        self.candidates[name] = Candidate(implementation_, verdict, out, prepare_s, meter.bytes, tuple(kernels))

    def _elements(self) -> int:
        cost = self.spec.cost(self.job.workload)
        return max(cost.flops // 64, cost.bytes // self.job.workload.torch_dtype.itemsize)  # only a product has 64 flops an element

    def _compare_pairwise(self) -> None:
        outputs = {name: c.output for name, c in self.candidates.items()}
        for (a, b), ratio in agree(outputs, self.truth.bound).items():
            self.disagreement[a] = max(self.disagreement.get(a, 0.0), ratio)
            self.disagreement[b] = max(self.disagreement.get(b, 0.0), ratio)
        wrong = [n for n, c in self.candidates.items() if not c.verdict.ok]
        if len(wrong) > 1 and len(wrong) == len(self.candidates) and max(self.disagreement.values(), default=0) <= 1:
            for name in wrong:
                self.candidates[name].notes.append("all implementations agree with each other: suspect the reference")

    # -- how long ------------------------------------------------------------------------------------------------------------

    def time_all(self) -> None:
        clock, roofs = self.bench.clock, self.bench.roofs
        right = {name: c for name, c in self.candidates.items() if c.verdict.ok}
        if clock is None or roofs is None or not right:
            return
        cost = self.spec.cost(self.job.workload)
        work = cost.read_bytes, cost.write_bytes, cost.flops, cost.unit
        self.turn("", "roofs")
        self.limits = Limits(roofs.limit_us(*work))
        sets = clock.rotation(cost.bytes)
        inputs = [self.truth.inputs] + [tuple(x.clone() for x in self.truth.inputs) for _ in range(sets - 1)]
        before = fingerprint(self.truth.inputs)
        for name, candidate in right.items():
            self.turn(name, "prepare")
            candidate.outputs = [torch.full_like(candidate.output, float("nan")) for _ in inputs]
            prepare = candidate.implementation.prepare
            candidate.launches = [prepare(*x, out=out) for x, out in zip(inputs, candidate.outputs, strict=True)]
        self._measure(clock, right)
        self._check_timed(right, before)
        if any("capped" in candidate.times for candidate in right.values()):
            self.turn("", "roofs")
            self.limits = Limits(self.limits.us, roofs.limit_us(*work, capped=True))

    def _measure(self, clock: Clock, right: dict[str, Candidate]) -> None:
        one = {name: c.launches[0] for name, c in right.items()}
        calls = {name: _call(c.implementation, self.truth.inputs) for name, c in right.items()}
        budget_s = BRIEF_COLD_S if self.job.brief else MOST_COLD_S
        cold, capped = clock.both({name: c.launches for name, c in right.items()}, lambda name: self.turn(name, "cold"), budget_s)
        measured = {"cold": cold, "capped": capped}
        if not self.job.brief:
            measured["warm"] = clock.warm(one, lambda name: self.turn(name, "warm"))
            measured["launch"] = clock.launch_cost(one, lambda name: self.turn(name, "launch"))
        measured["call"] = clock.call_cost(calls, lambda name: self.turn(name, "call"))
        for name, candidate in right.items():
            candidate.times = {kind: times[name] for kind, times in measured.items() if name in times}
            if name in clock.refusals:
                candidate.notes.append(clock.refusals.pop(name))

    def _check_timed(self, right: dict[str, Candidate], before: object) -> None:
        for name, candidate in right.items():
            self.turn(name, "check timed buffers")
            for out in candidate.outputs:
                verdict = judge(out, self.truth.reference, self.truth.bound)
                if not verdict.ok:
                    verdict = Verdict(False, verdict.error_ratio, f"in the buffers that were timed: {verdict.reason}")
                candidate.verdict = worse(candidate.verdict, verdict)
        if fingerprint(self.truth.inputs) != before:
            for candidate in right.values():
                candidate.verdict = Verdict(False, float("inf"), "the inputs were overwritten while these implementations were timed")

    # -- what is kept --------------------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        shared = {"seed": self.seed, "time": now(), **self.bench.facts}
        cost = self.spec.cost(self.job.workload)
        timed = {kind: [c.times[kind] for c in self.candidates.values() if kind in c.times] for kind in ("cold", "capped")}
        fastest = {kind: min(of_kind, key=lambda timing: timing.median_us) for kind, of_kind in timed.items() if of_kind}
        kept = []
        for name in self.job.implementations:
            backend = name.partition("/")[0]
            tuned = provenance.tables(backend, self.spec.name, self.bench.device)
            source = provenance.source(backend, self.spec.name, tuned)
            fields: dict[str, Any] = {**shared, "source": source, "tuned": tuned, "stand_in": self.stand_ins.get(name)}
            if name in self.refused:
                status, reason = self.refused[name]
                kept.append(Record.of(name, self.job.workload, **fields, status=status, reason=reason))
                continue
            candidate = self.candidates[name]
            fields |= {"disagreement": self.disagreement.get(name)} | outcome_fields(candidate)
            if candidate.verdict.ok and candidate.times:
                fields |= time_fields(candidate, cost, self.limits, fastest)
            kept.append(Record.of(name, self.job.workload, **fields))
        return kept


def _call(implementation_: Implementation, inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """What a user writes: torch's own function where the implementation is one, without opwise's look-up around it."""
    function = implementation_.source.call or implementation_
    return lambda: function(*inputs)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
