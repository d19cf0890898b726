"""A job, carried out in the worker: inputs, reference, checks, times, records.

The order is: workload -> inputs -> prepare -> check -> timing -> check of the timed buffers -> record. Only implementations that passed the
check are timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from opwise.record import Record, now
from opwise.runner.candidate import Candidate, Limits, outcome_fields, time_fields, worse
from opwise.runner.jobs import Job
from opwise.runner.kernels_run import kernels_run
from opwise.runner.prepare import launching
from opwise.runner.standing import Functions, Settings
from opwise.runner.truth import Truth, kinds_of

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
    settings: Settings = field(default_factory=Settings.now)  # as they are before an implementation's library is imported
    functions: Functions = field(default_factory=Functions)

    @classmethod
    def on(cls, device: torch.device, facts: dict[str, Any]) -> Bench:
        if device.type != "cuda":
            return cls(device, facts)
        clock = Clock(device, Monitor(device))
        return cls(device, facts, clock, Roofs(clock))


def execute(job: Job, bench: Bench, turn: Turn, make: Callable[[Job, Bench, Turn], Cell] | None = None) -> list[Record]:
    """The records of a job, one per implementation, in the job's order; `make` returns its Cell. GPU faults are raised, not recorded
    here."""
    bench.settings.restore()
    with job.workload.precision(), torch.no_grad():
        cell = (make or Cell)(job, bench, turn)
        cell.check_all()
        if job.timed:
            cell.time_all()
        return cell.records()


class Cell:
    """A job in progress, with the reference in this process: for the suite's own implementations. For others see apart.py."""

    def __init__(self, job: Job, bench: Bench, turn: Turn) -> None:
        self.job, self.spec, self.bench, self._say = job, OPS[job.workload.op], bench, turn
        self.seed = int.from_bytes(os.urandom(4), "little") >> 1  # fresh inputs each time: nothing can have learnt them
        self.settings = Settings.now()
        self.truths: dict[str, Truth] = {}
        self.inputs = self.begin("easy")
        self.candidates: dict[str, Candidate] = {}
        self.refused: dict[str, tuple[str, str]] = {}  # name -> (status, reason)
        self.stand_ins: dict[str, str | None] = {}
        self.limits: Limits | None = None
        self.disagreement: dict[str, float] = {}

    def turn(self, name: str, phase: str) -> None:
        """Begins an implementation's turn: sets torch's global state as the workload needs it, whatever the previous one changed."""
        self.settings.restore()
        self._say(name, phase)

    # -- right or wrong ------------------------------------------------------------------------------------------------------

    def begin(self, kind: str) -> tuple[Tensor, ...]:
        """Makes the inputs of that kind (truth.kinds_of), on which `checked` then judges."""
        make = kinds_of(self.spec)[kind]
        self.kind = kind
        self.truths[kind] = Truth.of(self.spec, self.job.workload, make(self.job.workload, self.bench.device, self.seed))
        return self.truths[kind].inputs

    def handed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors that an implementation gets in place of these."""
        return tensors

    def checked(self, name: str, implementation_: Implementation) -> Verdict:
        truth = self.truths[self.kind]
        return check(implementation_.prepare, truth.inputs, truth.reference, truth.bound)

    def check_all(self) -> None:
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
                synchronize(self.bench.device)
        for kind in (kind for kind in kinds_of(self.spec) if kind != "easy"):
            self._check_again(kind)
        self._compare_pairwise()

    def _check_again(self, kind: str) -> None:
        """All that could be built, on the inputs of another kind."""
        self.turn("", f"{kind} inputs")
        self.begin(kind)
        for name, candidate in self.candidates.items():
            self.turn(name, f"check {kind} inputs")
            try:
                verdict = self.checked(name, candidate.implementation)
            except Exception as error:
                verdict = Verdict(False, float("inf"), f"{type(error).__name__}: {error}")
                synchronize(self.bench.device)
            if not verdict.ok:
                verdict = Verdict(False, verdict.error_ratio, f"on {kind} inputs: {verdict.reason}")
            candidate.verdict = worse(candidate.verdict, verdict)
        self.truths.pop(kind, None)

    def _check(self, name: str) -> None:
        from opwise.backends import probe  # late: importing a backend's library belongs to this implementation's own turn

        self.stand_ins[name] = probe(name.split("/")[0], self.bench.device).stand_in
        implementation_ = implementation(name, self.bench.device)
        if self.stand_ins[name] not in (None, "cpu") and self._elements() > STAND_IN_ELEMENTS:
            raise UnsupportedWorkload(f"{self._elements()} elements are too many for the {self.stand_ins[name]}: check it on a GPU")
        out = self.spec.empty_output(*self.inputs)
        with MemoryMeter(self.bench.device) as meter, kernels_run(self.stand_ins[name]) as kernels:
            began = time.perf_counter()
            launch = implementation_.prepare(*self.handed(*self.inputs), out=self.handed(out)[0])
            prepare_s = time.perf_counter() - began
            self.turn(name, launching(name))
            launch()
        self.turn(name, "check")
        verdict = self.checked(name, implementation_)
        self.candidates[name] = Candidate(implementation_, verdict, out, prepare_s, meter.bytes, tuple(kernels))

    def _elements(self) -> int:
        cost = self.spec.cost(self.job.workload)
        return max(cost.flops // 64, cost.bytes // self.job.workload.torch_dtype.itemsize)  # only a product has 64 flops an element

    def pairs(self) -> Mapping[tuple[str, str], float]:
        return agree({name: c.output for name, c in self.candidates.items()}, self.truths["easy"].bound)

    def _compare_pairwise(self) -> None:
        for (a, b), ratio in self.pairs().items():
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
        self.sets = [self.inputs] + [tuple(x.clone() for x in self.inputs) for _ in range(sets - 1)]
        before = fingerprint(self.inputs)
        for name, candidate in right.items():
            self.turn(name, "prepare")
            candidate.outputs = [torch.full_like(candidate.output, float("nan")) for _ in self.sets]
            prepare = candidate.implementation.prepare
            handed = [self.handed(*x, out) for x, out in zip(self.sets, candidate.outputs, strict=True)]
            candidate.launches = [prepare(*x, out=out) for *x, out in handed]
        self.measure(clock, right)
        self.check_timed(right, before)
        if any("capped" in candidate.times for candidate in right.values()):
            self.turn("", "roofs")
            self.limits = Limits(self.limits.us, roofs.limit_us(*work, capped=True))

    def measure(self, clock: Clock, right: dict[str, Candidate]) -> None:
        one = {name: c.launches[0] for name, c in right.items()}
        self.calls = {name: call_of(c.implementation, self.handed(*self.inputs)) for name, c in right.items()}
        budget_s = BRIEF_COLD_S if self.job.brief else MOST_COLD_S
        cold, capped = clock.both({name: c.launches for name, c in right.items()}, lambda name: self.turn(name, "cold"), budget_s)
        measured = {"cold": cold, "capped": capped}
        if not self.job.brief:
            measured["warm"] = clock.warm(one, lambda name: self.turn(name, "warm"))
            measured["launch"] = clock.launch_cost(one, lambda name: self.turn(name, "launch"))
        measured["call"] = clock.call_cost(self.calls, lambda name: self.turn(name, "call"))
        for name, candidate in right.items():
            candidate.times = {kind: times[name] for kind, times in measured.items() if name in times}
            if name in clock.refusals:
                candidate.notes.append(clock.refusals.pop(name))

    def check_timed(self, right: dict[str, Candidate], before: object) -> None:
        truth = self.truths["easy"]
        for name, candidate in right.items():
            self.turn(name, "check timed buffers")
            for out in candidate.outputs:
                verdict = judge(out, truth.reference, truth.bound)
                if not verdict.ok:
                    verdict = Verdict(False, verdict.error_ratio, f"in the buffers that were timed: {verdict.reason}")
                candidate.verdict = worse(candidate.verdict, verdict)
        if fingerprint(self.inputs) != before:
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


def call_of(implementation_: Implementation, inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """A user's call: torch's own function if the implementation is one, without opwise's look-up around it."""
    function = implementation_.source.call or implementation_
    return lambda: function(*inputs)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
