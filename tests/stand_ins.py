"""Seats and posts that need no GPU and no process of their own: what a job comes to is told by its workload's size."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.record import Interval, Record
from opwise.runner import Event, Job, WorkerLost
from opwise.runner.jobs import Entry
from opwise.runner.seat import JobLost
from opwise.scaling.crew import Crew, Place
from opwise.scaling.post import Answer, Told, sources

NAMES = ("torch_eager/square", "triton_jit/square")
FACTS = {"device": "NVIDIA Toy", "driver": "1.0", "capability": "8.6", "versions": {"torch": "2.0"}, "commit": "abc1234", "dirty": False,
         "gpu": "GPU-toy"}  # fmt: skip
POISON = 666  # a size that takes its worker down: in a seat always, at a post the first time


def job(size: int, names: tuple[str, ...] = NAMES, timed: bool = True) -> Job:
    return Job(Workload("square", (size,), "float32"), names, "cuda:0", timed)


def records_of(job: Job, **changed: Any) -> tuple[Record, ...]:
    """As a GPU's would be, with rounds, which are most of their weight."""
    around = Interval(5.0, 4.9, 5.1, 40, "events", True, "", tuple(float(i) for i in range(40)))
    times = dict.fromkeys(("kernel_cold_us", "kernel_warm_us", "launch_us", "call_us"), around)
    facts = {**FACTS, "versions": {**FACTS["versions"]}}  # type: ignore[dict-item]
    return tuple(Record.of(name, job.workload, **{"status": "ok", **times, **facts, **changed}) for name in job.implementations)


CATALOGUE = {
    name: Entry(name, {"b": "1"}, variants={"square": {"": "", "pow": ""}} if name == "torch_eager" else {"square": {"": ""}})
    for name in ("torch_eager", "triton_jit")
}


def played(jobs: Any, device: str, **options: Any) -> Any:
    """An executor: every job at once, right, and timed."""
    for job in jobs:
        yield Event(job, turn=(job.implementations[0], "cold"))
        yield Event(job, records=records_of(job))


@dataclass
class FakeSeat:
    """A seat whose worker is played. `dead` places lose every job; `ran` counts what each place was given."""

    device: str
    setup: Any = None
    patience: Any = None
    facts: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    greetings: dict[str, str] = field(default_factory=dict)
    timeouts: Counter[str] = field(default_factory=Counter)
    worker: Any = None
    ran: list[str] = field(default_factory=list)
    dead: bool = False
    pause_s: float = 0.0

    def start(self) -> Any:
        self.worker = self
        return self

    def ask(self, kind: str, payload: Any = None, patience: Any = None) -> Any:
        if kind == "catalogue":
            return {**FACTS, "device": self.device}, CATALOGUE
        self.ran.append(f"{kind} {payload.implementation}")
        time.sleep(self.pause_s)
        return 0.0

    def run(self, job: Job) -> Iterator[Event]:
        self.ran.append(str(job.workload))
        yield Event(job, turn=(job.implementations[0], "cold"))
        if self.dead or job.workload.shape == (POISON,):
            raise JobLost(job, WorkerLost("the GPU fell off the bus", ("", "calibrate")))
        time.sleep(self.pause_s)
        yield Event(job, records=records_of(job))

    def limits(self) -> dict[str, float]:
        return {"empty_launch_events_us": 4.0 + len(self.ran), "copy_8_bytes_gb_per_s": float(len(self.ran))}

    def close(self) -> None: ...

    def kill(self) -> None:
        self.worker = None


@dataclass
class FakePost:
    """What a Dask worker has instead of a GPU. `log` is a file that gets a line a job, from whichever process."""

    log: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    poison: str = f"square/{POISON}/float32"
    pause_s: float = 0.0

    def look(self) -> Told:
        entries = {name: Entry(name, {"b": "1"}, variants={op: {"": ""} for op in OPS}) for name in ("torch_eager", "triton_jit")}
        return Told("host", "cuda:0", "", {**FACTS, **self.facts}, entries, sources())

    def run(self, job: Job) -> Answer:
        before = Path(self.log).read_text() if self.log and Path(self.log).exists() else ""
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{os.getpid()} {job.workload}\n")
        if str(job.workload) == self.poison and f" {self.poison}\n" not in before:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause_s)
        return Answer(tuple(replace(r, gpu=f"pid {os.getpid()}") for r in records_of(job)))

    def prepare(self, found: Any) -> None:
        if self.log:
            with Path(self.log).open("a") as file:
                file.writelines(f"prepare {unit.implementation}\n" for unit in found)

    def limits(self) -> dict[str, float]:
        return {"copy_8_bytes_gb_per_s": 1.0}

    def close(self) -> None: ...


class BreakingPost(FakePost):
    """Its GPU is lost over the poisonous job, and comes back."""

    def run(self, job: Job) -> Answer:
        if job.workload.shape == (POISON,):
            super().run(replace(job, workload=replace(job.workload, shape=(POISON + 1,))))  # leaves its line in the log
            return Answer(left=job, reason="the GPU fell off the bus")
        return super().run(job)


class BusyPost(FakePost):
    def look(self) -> Told:
        raise RuntimeError("GPU 0 is computed on by process 12 (python): wait for it")


PLACES = [Place("GPU 0", "cuda:0", gpu="GPU-0"), Place("GPU 1", "cuda:0", gpu="GPU-1", shared="process 12 (python)")]


def crew_of(*seats: FakeSeat, places: list[Place] | None = None, **options: Any) -> Crew:
    waiting = list(seats)
    return Crew(places or PLACES, make_seat=lambda *a, **k: waiting.pop(0) if waiting else FakeSeat("cuda:0"), **options)
