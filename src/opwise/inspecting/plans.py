"""The configurations that a backend has for a product, their predicted and measured times, and the plan's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from opwise.backends import tuned, tuned_table
from opwise.backends.gemm import gpu, measured
from opwise.backends.gemm.choice import choose, predictions
from opwise.backends.gemm.gpu import HOPPER, Gpu, Machine
from opwise.backends.tuned import Choices
from opwise.measure.device import is_called
from opwise.ops.spec import Workload
from opwise.tuning.matmul import offered, product_of

TABLES = {f"{backend}/matmul": t.name for t in tuned_table.tunables(["matmul"]) for backend in t.serves}


@dataclass(frozen=True)
class Target:
    """The GPU to plan for. numbers: "measured here", "shipped" for its model, or "an H100's". here: the device, if it is in this
    machine."""

    name: str
    machine: Machine
    gpu: Gpu
    numbers: str
    here: torch.device | None = None

    def choices(self, table: str) -> Choices:
        """The table's choices; the shipped ones if the GPU is not in this machine."""
        return Choices(ships=measured.of(self.name).get(table, {})) if self.here is None else tuned.look(table, self.here)


@dataclass(frozen=True)
class Configuration:
    """Times in us. full, capped: shipped times, in both states of the clock; tuned: as `opwise tune` measured it here. None: not
    measured."""

    name: str
    predicted: float
    full: float | None = None
    capped: float | None = None
    tuned: float | None = None


@dataclass(frozen=True)
class Planned:
    """Configurations by predicted time, least first. by: "tuned here", "measured" or "predicted"."""

    implementation: str
    workload: str
    gpu: str
    numbers: str
    chosen: str = ""
    by: str = ""
    configurations: tuple[Configuration, ...] = field(default_factory=tuple)


def target(name: str | None) -> Target | None:
    """The GPU of that name: one whose numbers ship, or the one here. Without a name the one here, else an H100. None for another name."""
    if torch.cuda.is_available():
        here = torch.device("cuda", torch.cuda.current_device())
        found = torch.cuda.get_device_name(here)
        if name is None or is_called(found, name):
            whose = "measured here" if gpu.digest(found) else "shipped" if found in gpu.SHIPPED else "an H100's"
            return Target(found, Machine.of(here), gpu.of(here), whose, here)
    for known, ships in gpu.SHIPPED.items():
        if name is None or is_called(known, name):
            return Target(known, HOPPER, ships, "shipped")
    return None


def planned(implementation: str, workload: Workload, on: Target) -> Planned:
    """Raises ImportError if the backend's library is not installed."""
    table, product = TABLES[implementation], product_of(workload)
    known = offered(table, product, on.machine)
    told = implementation, str(workload), on.name, on.numbers
    if not known:
        return Planned(*told)
    choices = on.choices(table)
    choice, times = choose(product, known, on.gpu, choices), predictions(product, known, on.gpu)
    ships = choices.ships.get(measured.workload(workload.dtype, product[:3]), {})
    own = _tuned(choices, workload)
    rows = (Configuration(name, round(times[name], 3), *ships.get(name, ()), tuned=own.get(name)) for name in sorted(times, key=times.get))  # type: ignore[arg-type,misc]
    return Planned(*told, choice.name, choice.by, tuple(rows))


def _tuned(choices: Choices, workload: Workload) -> Mapping[str, float]:
    row = choices.table.by_sizes.get((workload.dtype, workload.shape)) if choices.table is not None else None
    return {name: time.us for name, time in row.times.items()} if row is not None else {}
