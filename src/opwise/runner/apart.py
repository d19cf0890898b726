"""Carries out a job with files of a user among its candidates; reference and verdicts are in another process (judge.py).

Inputs come as bytes and are written in place before each check, so that a kernel finds other values where it found some before. The judge
gets the bytes of the original memory, as the current stream leaves it. While candidates are timed each block gets fresh values and a
poisoned output, and the judge asks for the output of some blocks."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from opwise.backends.protocol import Implementation
from opwise.measure.timing import Clock
from opwise.measure.validate import SENTINEL, Guarded, Verdict, _run_aside, _run_here, fingerprint
from opwise.record import Record
from opwise.runner.candidate import Candidate, worse
from opwise.runner.cell import Bench, Cell, Turn, synchronize
from opwise.runner.jobs import Job
from opwise.runner.judge import TIMED, TOLD, Judge, Remote, packed

_sleep = time.sleep
LATE_S = 0.1  # what was wrong is looked at again after this: a thread, or another stream, may have been at work
SPIN_US = 2_000.0  # as validate's: longer than an idle CPU needs to enqueue poison and launches behind it
LATE = "the output changed after the launch had returned and its stream was done: it is written in a thread, or on another stream"


class Apart(Cell):
    """See Cell. `judge` is asked outside the candidates' turns, so its errors cost no candidate."""

    def __init__(self, judge: Judge | Remote, job: Job, bench: Bench, turn: Turn) -> None:
        self.judge, self.current, self.blamed = judge, ("", ""), defaultdict[str, list[str]](list)
        self.late: dict[str, str] = {}  # what a second look at the first wrong output of each told
        super().__init__(job, bench, turn)

    def turn(self, name: str, phase: str) -> None:
        self._blame()
        super().turn(name, phase)
        self.current = (name, phase)

    def _blame(self) -> None:
        """For what the one whose turn ends here leaves behind. What importing or building a file sets is put back in silence."""
        name, phase = self.current
        found = self.bench.functions.replaced() + ([] if phase == "build" else self.settings.changed())
        self.blamed[name] += [line for line in found if line not in self.blamed[name]]

    def _punish(self) -> None:
        self._blame()
        for name, candidate in self.candidates.items():
            if self.blamed[name]:
                told = f"it changes what all of the process share: {', '.join(self.blamed[name])}"
                candidate.verdict = worse(candidate.verdict, Verdict(False, math.inf, told))

    # -- right or wrong ------------------------------------------------------------------------------------------------------

    def begin(self, kind: str) -> tuple[Tensor, ...]:
        self.kind, self.host = kind, self.judge.inputs(kind)
        return tuple(x.to(self.bench.device, copy=True) for x in self.host) if kind == "easy" else self.inputs

    def handed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors on the same memory, so that `out.data = ...` in a candidate does not change those of others."""
        return tuple(x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride()) for x in tensors)

    def check_all(self) -> None:
        super().check_all()
        self._punish()

    def pairs(self) -> Mapping[tuple[str, str], float]:
        return self.judge.pairs()

    def checked(self, name: str, implementation_: Implementation) -> Verdict:
        """As validate.check, on the inputs of `begin`, written in place."""
        phase = self.current[1]
        for x, fresh in zip(self.inputs, self.host, strict=True):
            x.copy_(fresh)
        before = fingerprint(self.inputs)
        first = self.inputs[0]
        guarded = Guarded(self.spec.output_shape(*(x.shape for x in self.inputs)), first.dtype, first.device)
        (out,) = self.handed(guarded.tensor)
        launch = implementation_.prepare(*self.handed(*self.inputs), out=out)
        verdicts = []
        for value, run in ((math.nan, _run_here), (SENTINEL, _run_aside)):
            self.turn(name, phase)
            run(guarded, value, launch)
            verdicts.append(self._shown(name, self.kind, value, guarded.tensor))
        self.turn(name, phase)
        synchronize(self.bench.device)
        faults = [guarded.intact()]
        if out.data_ptr() != guarded.tensor.data_ptr():
            faults.append("`out` was given other memory: the memory that was given is judged, write into it")
        if fingerprint(self.inputs) != before:
            faults.append("an input was overwritten")
        worst = max(verdicts, key=lambda verdict: (not verdict.ok, verdict.error_ratio))
        told = "; ".join(filter(None, (*faults, worst.reason)))
        return Verdict(False, math.inf, told) if any(faults) else worst

    def _shown(self, name: str, kind: str, value: float, out: Tensor) -> Verdict:
        host, turn = out.to("cpu", copy=True), self.current
        self.turn("", "judge")
        verdict = self.judge.shown(name, kind, value, host)
        if not verdict.ok:
            if name not in self.late:
                _sleep(LATE_S)
                synchronize(self.bench.device)
                self.late[name] = f"{LATE}; " if (packed(out) != packed(host)).any() else ""
            verdict = Verdict(False, verdict.error_ratio, self.late[name] + verdict.reason)
        self.turn(*turn)
        return verdict

    # -- how long ------------------------------------------------------------------------------------------------------------

    def measure(self, clock: Clock, right: dict[str, Candidate]) -> None:
        self.clock, clock.witness = clock, self
        try:
            super().measure(clock, right)
        finally:
            clock.witness = None

    def before(self, name: str) -> None:
        """Before a block: writes fresh values into all inputs, and poison into the outputs."""
        turn = self.current
        self.turn("", "judge")
        self.fresh = self.judge.refill()
        for i, inputs in enumerate(self.sets):
            for x, fresh in zip(inputs, self._values(i), strict=True):
                x.copy_(fresh)
        self.turn(*turn)
        for out in self.candidates[name].outputs:
            out.fill_(math.nan)
        self.clock.queue.wait()

    def _values(self, i: int) -> tuple[Tensor, ...]:
        return self.spec.make_inputs(self.job.workload, self.bench.device, self.fresh + i)

    def after(self, name: str, *, always: bool = False) -> None:
        """After a block, if the judge asks: sends what the last launches left, or what a call returned; then one more launch on the timed
        stream, behind a spin, where work on another stream runs before the poison and is lost."""
        candidate, (_, phase) = self.candidates[name], self.current
        i = self.judge.pick(1 if phase in ("warm", "launch", "call") else len(self.sets), always)
        if i is None:
            return
        out = candidate.outputs[i]
        called = phase == "call" or always
        try:
            left = self.calls[name]() if called else out
        except Exception as error:
            self._raised(name, "called", error)
            return
        self._timed(name, 0 if called else i, left)
        self.clock.queue.spin(SPIN_US)
        out.fill_(math.nan)
        try:
            candidate.launches[i]()
        except Exception as error:
            self._raised(name, "launched", error)
            return
        if out.is_cuda:
            torch.cuda.current_stream(out.device).synchronize()
        self._timed(name, i, out)
        if not all(torch.equal(x, fresh) for x, fresh in zip(self.sets[i], self._values(i), strict=True)):
            candidate.verdict = worse(candidate.verdict, Verdict(False, math.inf, "an input was overwritten while it was timed"))

    def _raised(self, name: str, how: str, error: Exception) -> None:
        candidate = self.candidates[name]
        candidate.verdict = worse(candidate.verdict, Verdict(False, math.inf, f"{how} again, {type(error).__name__}: {error}"))

    def _timed(self, name: str, i: int, out: Tensor) -> None:
        candidate, like = self.candidates[name], self.candidates[name].output
        if type(out) is not Tensor or (out.shape, out.dtype) != (like.shape, like.dtype):
            verdict = Verdict(False, math.inf, f"a call returned {type(out).__name__}, a plain tensor like the output is taken")
        else:
            verdict = self._shown(name, f"{TIMED} {i}", math.nan, out)
        if not verdict.ok:
            verdict = Verdict(False, verdict.error_ratio, f"{TOLD[TIMED]}: {verdict.reason}")
        candidate.verdict = worse(candidate.verdict, verdict)

    def check_timed(self, right: dict[str, Candidate], before: object) -> None:
        """Checks at least one call and one launch of each, on fresh values."""
        for name in right:
            self.turn(name, "check timed buffers")
            self.before(name)
            self.after(name, always=True)

    def records(self) -> list[Record]:
        self._punish()
        return super().records()
