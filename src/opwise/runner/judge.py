"""The judge: a process beside a worker that runs a user's files. Only it has the seeds, the float64 reference and the verdicts.

The worker gets inputs as bytes, sends its output's bytes, and is told right or wrong; it can ask for no more. The supervisor says when a
job begins, and gets the verdict on each record from here: the worker's own word counts only if it says wrong. Nothing here imports a user's
file."""

from __future__ import annotations

import math
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import Tensor

from opwise.measure.validate import Verdict, agree, judge, told_unwritten
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import Record
from opwise.runner.candidate import worse
from opwise.runner.truth import Truth, kinds_of

SHARE = 1 / 8  # of the timed blocks whose last launch is judged
TIMED = "timed"
TOLD = {"hard": "on hard inputs", "whole": "on whole inputs", TIMED: "in a timed launch, on fresh inputs"}
# What a record keeps that the judge found wrong. Its times are not among it.
KEPT = ("stand_in", "kernels", "not_run", "disagreement", "prepare_s", "extra_bytes", "seed", "device", "driver", "capability", "versions",
        "commit", "dirty", "source", "tuned", "gpu", "time")  # fmt: skip


def packed(x: Tensor) -> Any:
    """The tensor's bytes, row-major; for a contiguous one on the CPU its own memory."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def received(pipe: Connection, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU from bytes of the pipe. Raises ValueError if their number is wrong."""
    found = torch.empty(shape, dtype=dtype)
    bytes_ = packed(found)
    if (count := pipe.recv_bytes_into(bytes_)) != bytes_.nbytes:
        raise ValueError(f"{count} bytes came, {dtype} of shape {tuple(shape)} has {bytes_.nbytes}")
    return found


@dataclass
class Judge:
    """One job's references and verdicts. `draw` returns seeds, `chance` numbers in [0, 1); random, or set by a test."""

    device: torch.device
    draw: Callable[[], int] = lambda: int.from_bytes(os.urandom(4), "little") >> 1
    chance: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    workload: Workload | None = None

    def begin(self, workload: Workload) -> None:
        """For the supervisor only: begins a job and forgets earlier verdicts."""
        self.workload, self.spec, self.seed = workload, OPS[workload.op], self.draw()
        self._truths: dict[str, Truth] = {}
        self._outputs: dict[str, Tensor] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._shown: dict[str, set[str]] = defaultdict(set)
        self._refill = 0
        self.output: tuple[tuple[int, ...], torch.dtype] = ((), torch.uint8)  # shape and dtype, once inputs were asked for

    def inputs(self, kind: str) -> tuple[Tensor, ...]:
        return self._truth(kind).inputs

    def shown(self, name: str, kind: str, value: float, out: Tensor) -> Verdict:
        """The verdict on an output over poison of that value, on the inputs of that kind: one of truth.kinds_of, or "timed 3" for buffer
        set 3 since the last refill."""
        out = out.to(self.device)
        truth = self._truth(kind)
        verdict = judge(out, truth.reference, truth.bound)
        if not verdict.ok and (unwritten := told_unwritten(out, value, truth.reference)):
            verdict = Verdict(False, math.inf, f"{verdict.reason}; {unwritten}")
        if kind == "easy":
            self._outputs[name] = out
        self._shown[name].add(kind.partition(" ")[0])
        kept = verdict if verdict.ok or kind == "easy" else replace(verdict, reason=f"{TOLD[kind.partition(' ')[0]]}: {verdict.reason}")
        self._verdicts[name] = worse(self._verdicts.get(name, kept), kept)
        return verdict

    def pairs(self) -> Mapping[tuple[str, str], float]:
        """validate.agree of the outputs on easy inputs; afterwards they and the references of the checks are freed."""
        found = agree(self._outputs, self._truth("easy").bound)
        self._outputs, self._truths = {}, {}
        return found

    def refill(self) -> int:
        """The seed of fresh values: set i of the timed buffers has those of seed + i."""
        self._refill = self.draw()
        return self._refill

    def pick(self, sets: int, always: bool = False) -> int | None:
        """The buffer set whose output is to be sent, if any; told only after it has been launched."""
        return int(self.chance() * sets) if always or self.chance() < SHARE else None

    def settled(self, records: list[Record]) -> list[Record]:
        """For the supervisor only: the worker's records, corrected by the verdicts."""
        return [self._settled(replace(r, seed=self.seed)) for r in records]

    def _settled(self, r: Record) -> Record:
        if r.status != "ok":
            return r
        missing = {*kinds_of(self.spec), *([TIMED] if r.timed else [])} - self._shown[r.implementation]
        verdict = self._verdicts.get(r.implementation)
        if verdict is not None and verdict.ok and not missing:
            return r
        reason = verdict.reason if verdict is not None and not verdict.ok else f"the judge saw no {' and no '.join(sorted(missing))} output"
        kept = {name: getattr(r, name) for name in KEPT}
        return Record.of(r.implementation, r.workload, status="wrong", reason=reason, error_ratio=math.inf, **kept)

    def _truth(self, kind: str) -> Truth:
        assert self.workload is not None, "no job has begun"
        with self.workload.precision(), torch.no_grad():
            if kind not in kinds_of(self.spec):
                seed = self._refill + int(kind.partition(" ")[2])
                return Truth.of(self.spec, self.workload, self.spec.make_inputs(self.workload, self.device, seed))
            if kind not in self._truths:
                made = kinds_of(self.spec)[kind](self.workload, self.device, self.seed)
                truth = Truth.of(self.spec, self.workload, made)
                self._truths[kind], self.output = truth, (tuple(truth.reference.shape), truth.inputs[0].dtype)
            return self._truths[kind]


ASKED = ("inputs", "shown", "pairs", "refill", "pick")  # by the worker
SAID = ("begin", "settled")  # by the supervisor


def main(worker: Connection, supervisor: Connection, device_name: str, environment: Mapping[str, str]) -> None:
    """Answers supervisor and worker until one of them is gone."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    judge_ = Judge(torch.device(device_name))
    while True:
        for pipe in wait([worker, supervisor]):
            assert isinstance(pipe, Connection)
            try:
                name, given = pipe.recv()
                if name not in (ASKED if pipe is worker else SAID):
                    raise ValueError(f"a worker may not ask for {name!r}")
                if name == "shown":  # whose output follows as bytes
                    given = (*given, received(pipe, *judge_.output))
                answer: Any = getattr(judge_, name)(*given)
            except (EOFError, OSError):
                return
            except Exception as error:
                pipe.send(("error", f"{type(error).__name__}: {error}"))
                continue
            if name == "inputs":
                pipe.send(("answer", [(tuple(x.shape), x.dtype) for x in answer]))
                for x in answer:
                    pipe.send_bytes(packed(x))
            else:
                pipe.send(("answer", answer))


class Remote:
    """The worker's view of the judge: the methods of Judge that it may call."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def _ask(self, name: str, *given: Any, shown: Tensor | None = None) -> Any:
        self._pipe.send((name, given))
        if shown is not None:
            self._pipe.send_bytes(packed(shown))
        said, what = self._pipe.recv()
        if said == "error":
            raise RuntimeError(f"the judge: {what}")
        return what

    def inputs(self, kind: str) -> tuple[Tensor, ...]:
        """The inputs, on the CPU."""
        return tuple(received(self._pipe, *of) for of in self._ask("inputs", kind))

    def shown(self, name: str, kind: str, value: float, out: Tensor) -> Verdict:
        verdict: Verdict = self._ask("shown", name, kind, value, shown=out)
        return verdict

    def pairs(self) -> Mapping[tuple[str, str], float]:
        found: Mapping[tuple[str, str], float] = self._ask("pairs")
        return found

    def refill(self) -> int:
        return int(self._ask("refill"))

    def pick(self, sets: int, always: bool = False) -> int | None:
        picked: int | None = self._ask("pick", sets, always)
        return picked
