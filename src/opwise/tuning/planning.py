"""The plan of a measurement: for each table the workloads, their configurations, the builds, and the approximate time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from opwise.backends import probe
from opwise.backends.protocol import BackendUnavailable
from opwise.backends.tuned_table import TUNABLE, Tunable
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.runner.jobs import Job
from opwise.runner.prepare import Unit
from opwise.scaling.compiling import helpers_for
from opwise.scaling.order import estimate_s
from opwise.tuning.bench import Stand
from opwise.tuning.ways import ways

START_S = 25.0  # workers that import torch and make a CUDA context, the clock's calibration, the roofs of arithmetic
# Seconds that one kernel takes to compile on one core: only the line of --dry-run and the bar rest on it.
COMPILE_S: Mapping[str, float] = {"triton_jit": 1.0, "cuda_src": 0.5, "numba_cuda": 3.5}


@dataclass(frozen=True)
class Sheet:
    """One table's measurement. `shipped`: workload -> the configuration that the plan takes by itself. `builds`: one per kernel."""

    stand: Stand
    jobs: tuple[Job, ...] = ()
    shipped: Mapping[str, str] = field(default_factory=dict)
    builds: tuple[Unit, ...] = ()
    why_not: str = ""  # nothing can be measured, because

    @property
    def table(self) -> str:
        return self.stand.table

    @property
    def cells(self) -> int:
        return sum(len(job.implementations) for job in self.jobs)

    @property
    def measuring_s(self) -> float:
        return sum(map(estimate_s, self.jobs))

    @property
    def compiling_s(self) -> float:
        return len(self.builds) * COMPILE_S[self.table.partition("/")[0]]


def total_s(sheets: Sequence[Sheet]) -> float:
    """Approximate seconds of all of them on a GPU, with nothing compiled yet."""
    builds = sum(len(sheet.builds) for sheet in sheets)
    hands = 1 + helpers_for(1, builds) if builds else 1
    return START_S + sum(sheet.compiling_s for sheet in sheets) / hands + sum(sheet.measuring_s for sheet in sheets)


def planned(
    turn: Callable[[str, str], None],
    names: Sequence[str],
    workloads: Sequence[Workload],
    quick: bool,
    backend: str | None,
    device_name: str,
) -> list[Sheet]:
    """A sheet for each named table. A worker's request: it imports the backends' libraries.

    workloads: measured instead of the tables' own. backend: the one to measure through, if several can."""
    device = torch.device(device_name)
    return [_sheet(TUNABLE[name], workloads, quick, backend, device) for name in names]


def _sheet(known: Tunable, workloads: Sequence[Workload], quick: bool, backend: str | None, device: torch.device) -> Sheet:
    nothing = Stand(known.name, "", ())
    try:
        through = _through(known, backend, device)
    except BackendUnavailable as error:
        return Sheet(nothing, why_not=str(error))
    of = ways(known, device)
    found = {w: c for w in workloads or of.workloads(quick) if w.op == known.op and len(c := of.configurations(w)) > 1}
    if not found:
        return Sheet(nothing, why_not="its plan has no choice at these workloads on this GPU")
    stand = Stand(known.name, through, tuple(dict.fromkeys(name for names in found.values() for name in names)))
    jobs = tuple(Job(w, tuple(map(stand.implementation, names)), str(device), brief=True) for w, names in found.items())
    shipped = {str(w): of.choose(w) for w in found}
    return Sheet(stand, jobs, shipped, builds(stand, found))


def _through(known: Tunable, backend: str | None, device: torch.device) -> str:
    """The backend to measure through. Raises BackendUnavailable where none is there, with the last one's remedy."""
    offered = known.serves if backend is None else (backend,)
    for name in offered[:-1]:
        try:
            probe(name, device)
        except BackendUnavailable:
            continue
        return name
    probe(offered[-1], device)
    return offered[-1]


def builds(stand: Stand, found: Mapping[Workload, Mapping[str, str]]) -> tuple[Unit, ...]:
    """Builds that compile every kernel once, each at the smallest workload that has it."""
    units: dict[str, Unit] = {}
    for workload in sorted(found, key=lambda w: OPS[w.op].cost(w).bytes):
        for name, compiled in found[workload].items():
            units.setdefault(compiled, Unit(stand.implementation(name), (workload,)))
    return tuple(units.values())
