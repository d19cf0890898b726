"""Compiles before anything is timed: every kernel of the jobs is built, loaded and launched once, in the worker.

The parameters of a build (dtype, shape, alignment) are those of the job, so the job finds the results in the compilers' caches. Nothing is
judged: a failure here occurs again in its own cell, with its reason."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opwise.backends import BACKENDS
from opwise.ops.spec import Workload
from opwise.runner.jobs import Job


@dataclass(frozen=True)
class Unit:
    """One implementation in one dtype at all its shapes. They share most compiled code, so one process builds them."""

    implementation: str
    workloads: tuple[Workload, ...]

    @property
    def backend(self) -> str:
        return self.implementation.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.implementation} {self.workloads[0].dtype}"


def launching(implementation: str) -> str:
    """The phase of a first launch. A hanging kernel times out sooner than a compiler, except for a user's kernel, whose first launch may
    compile."""
    return "launch" if BACKENDS.get(implementation.partition("/")[0], "").startswith("opwise.backends.") else "build"


def units(jobs: Iterable[Job]) -> list[Unit]:
    """All units that the jobs need."""
    found: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    for job in jobs:
        for name in job.implementations:
            found[name, job.workload.dtype].append(job.workload)
    return [Unit(name, tuple(workloads)) for (name, _), workloads in found.items()]


def prepare(device_name: str, unit: Unit, turn: Callable[[str, str], None]) -> float:
    """Builds a unit; returns the seconds it took. Results are not checked."""
    import torch

    from opwise.backends import implementation, probe
    from opwise.ops import OPS

    device = torch.device(device_name)
    seconds = 0.0
    for workload in unit.workloads:
        turn(unit.implementation, "build")
        with contextlib.suppress(Exception), workload.precision(), torch.no_grad():
            probe(unit.backend, device)
            built = implementation(unit.implementation, device)
            inputs = OPS[workload.op].make_inputs(workload, device, 0)
            out = OPS[workload.op].empty_output(*inputs)
            began = time.perf_counter()
            launch = built.prepare(*inputs, out=out)
            turn(unit.implementation, launching(unit.implementation))
            launch()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds += time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # outside of what is suppressed: a GPU that faulted ends this worker
        torch.cuda.empty_cache()  # several workers do this on one GPU
    return seconds
