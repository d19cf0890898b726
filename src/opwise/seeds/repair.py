"""A repair like the profiler tutorial's: a module whose forward leaves the GPU, found by the profiler, fixed in steps.

The module picks the cells of a table that lie above a level computed from its input. At first the table is float64 and NumPy finds the
cells: a copy to the CPU, a search there, a copy of the indices back. The profiler's tables name the label and the operator to blame. The
first repair halves the copy, the second stays on the device. The label's Self CPU Mem shows the copy: memory freed within it that an
operator called there had allocated counts as negative."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from opwise.measure.stats import median
from opwise.seeds.clocks import benchmark
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place
from opwise.seeds.profiles import DeviceType, profiled, with_stacks

SIDE, SIDE_ON_CPU = 256, 96  # of the table, a cube: 134 MB in float64 on a GPU, 7 MB without one
FEATURES = 512
TRIALS, PROFILED = 5, 3
PUBLISHED_MS = (5931.0, 5347.0, 225.8)
COLUMNS = 60  # of a name in the tables
SEARCH = "cells above the level"
PROJECT = "projection"
BUILT_IN = re.compile(r"<built-in method (\w+) of (\S+) object at 0x[0-9a-f]+>")  # as the profiler calls a Python function in C


def by_numpy(table: Tensor, level: float) -> Tensor:
    """(cells, 3) int64 on the table's device, computed on the CPU."""
    copied = table.to("cpu", copy=True)  # `.cpu()` of a GPU's; without one a copy too, so that there is one to be seen
    return torch.from_numpy(np.argwhere(copied.numpy() > level)).to(table.device)


def on_the_device(table: Tensor, level: float) -> Tensor:
    return torch.argwhere(table > level)


class Selector(torch.nn.Module):
    """x: (batch, FEATURES) float32 -> (batch, 8) projections and the (cells, 3) indices of the table's cells above a level."""

    def __init__(self, side: int, dtype: torch.dtype, search: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self.linear, self.search = torch.nn.Linear(FEATURES, 8), search
        generator = torch.Generator().manual_seed(0)
        # Multiples of 1/64, so that both dtypes hold the same table and pick the same cells.
        self.table: Tensor
        self.register_buffer("table", (torch.randint(-64, 65, (side,) * 3, generator=generator) / 64).to(dtype))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with record_function(PROJECT):
            y = self.linear(x)
        with record_function(SEARCH):
            level = float(torch.tanh(y.mean()))
            cells = self.search(self.table, level)
        return y, cells


STEPS: dict[str, tuple[torch.dtype, Callable[[Tensor, float], Tensor]]] = {
    "float64, by NumPy": (torch.float64, by_numpy),
    "float32, by NumPy": (torch.float32, by_numpy),
    "float32, on the device": (torch.float32, on_the_device),
}


def repaired(place: Place, side: int | None = None) -> Findings:
    """Each step's wall time and profile, and a check that all steps pick the same cells. `side`: of the table, for tests."""
    side, threads = side or (SIDE if place.gpu else SIDE_ON_CPU), torch.get_num_threads()
    torch.set_num_threads(1)  # NumPy has one; and threads that wait for a busy core would be what the profile blames
    try:
        return _repaired(place, side)
    finally:
        torch.set_num_threads(threads)


def _repaired(place: Place, side: int) -> Findings:
    seconds, blames, picked = {}, {}, []
    for step, (dtype, search) in STEPS.items():
        torch.manual_seed(0)
        model = Selector(side, dtype, search).to(place.device)
        x = torch.linspace(-1, 1, 4 * FEATURES).reshape(4, FEATURES).to(place.device)
        with torch.no_grad():
            picked.append(model(x)[1].cpu())
            blames[step] = _blame(place, lambda model=model, x=x: [model(x) for _ in range(PROFILED)])  # type: ignore[misc]
            seconds[step] = median(benchmark(lambda model=model, x=x: model(x), 1, TRIALS, place.wait))  # type: ignore[misc]
    same = all(torch.equal(picked[0], other) for other in picked[1:])
    first, *rest = seconds.values()
    shares = [s / first for s in rest]
    published = " and ".join(f"{ms / PUBLISHED_MS[0]:.2g}" for ms in PUBLISHED_MS[1:])
    blame, memory = blames[next(iter(STEPS))], [each.memory / 1e6 for each in blames.values()]
    held = f"{' -> '.join(f'{mb:.4g}' for mb in memory)} MB"
    chain = " -> ".join(f"{s * 1e3:.4g} ms" for s in seconds.values())
    return Findings(
        chain if place.gpu else f"on the CPU: 1 -> {shares[0]:.2g} -> {shares[1]:.2g}",
        f"the steps take {shares[0]:.2g} and {shares[1]:.2g} of the first's time, {published} published; "
        f"profiled, the first blames {blame.label!r}: {blame.operators}; its Self CPU Mem a call: {held}"
        + ("" if same else "; the steps do not pick the same cells"),
        same and blame.label == SEARCH and memory[0] < memory[1] < memory[2] and (shares[1] < 1 or not place.gpu),
        figures={f"{step}, {'wall ms' if place.gpu else 'wall on the CPU, ms'}": s * 1e3 for step, s in seconds.items()}
        | {f"{step}, Self CPU Mem of the search, MB": mb for step, mb in zip(STEPS, memory, strict=True)},
        tables={step: each.table for step, each in blames.items()},
    )


@dataclass(frozen=True)
class Blame:
    """The label with the most CPU time, as key_averages sorts them, and the `operators` within it with the most: an operator's own time, or
    the label's, for code outside torch. `memory`: the search's Self CPU Mem per call, bytes."""

    label: str
    operators: str
    memory: float
    table: str


def _blame(place: Place, run: Callable[[], object]) -> Blame:
    found = profiled(place, run, profile_memory=True, **with_stacks())
    averages = found.profiler.key_averages(group_by_stack_n=5)
    totals = {name: sum(float(e.cpu_time_total) for e in averages if e.key == name) for name in (SEARCH, PROJECT)}
    label = max(totals, key=lambda name: totals[name])
    within: dict[str, float] = {}
    for e in found.profiler.events():
        if e.device_type == DeviceType.CPU and _inside(e, label):
            name = "what torch does not see" if e.name == label else BUILT_IN.sub(r"\1 of \2", str(e.name))
            within[name] = within.get(name, 0.0) + float(e.self_cpu_time_total)
    largest = sorted(within, key=lambda name: -within[name])[:2]
    shares = [f"{name} {within[name] / max(sum(within.values()), 1e-9):.0%}" for name in largest]
    memory = sum(float(e.self_cpu_memory_usage) for e in averages if e.key == SEARCH) / PROFILED
    table = averages.table(sort_by="self_cpu_time_total", row_limit=5, max_name_column_width=COLUMNS, max_src_column_width=COLUMNS)
    return Blame(label, " and ".join(shares), memory, table)


def _inside(event: Any, label: str) -> bool:
    while event is not None:
        if event.name == label:
            return True
        event = event.cpu_parent
    return False
