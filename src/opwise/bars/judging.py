"""Figures from recorded runs, and whether they meet the bars.

A figure is the median of the newest three runs of the same kernels. Each record has a digest of its kernel's sources; runs with other
sources, driver or libraries than the newest do not count. Ratios to torch are taken within each run, where both were measured
interleaved."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwise import comparing
from opwise.bars.table import EACH, GEOMETRIC_MEAN, Bar
from opwise.choosing.store import stale
from opwise.measure.device import is_called
from opwise.ops.spec import Workload
from opwise.record import FULL, Interval, Record, UnknownSchema, read

BASELINE = "torch_eager"
MOST_RUNS = 3
MET, SHORT, NOT_MEASURED = "met", "short", "not measured"
ABSENT = ("unavailable",)  # says nothing of the kernel


@dataclass(frozen=True)
class Run:
    """The unnamed variants of one run on one device."""

    name: str
    device: str
    cells: Mapping[tuple[str, Workload], Record]

    @classmethod
    def of(cls, name: str, records: Iterable[Record]) -> Run:
        kept = {(r.backend, r.workload): r for r in records if not r.variant and r.stand_in is None}
        return cls(name, next((r.device for r in kept.values()), ""), kept)

    def any_of(self, backend: str, op: str) -> Record | None:
        """The backend's record of a first call of the op; it is the same for all its workloads."""
        return next((r for (b, w), r in self.cells.items() if (b, w.op) == (backend, op) and r.compile_cold_s is not None), None)


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs with a record, in the order given, oldest first. Files that are no run of this schema are left out with a warning."""
    found = []
    for path in paths:
        try:
            run = Run.of(path.name, read(path))
        except (UnknownSchema, OSError) as problem:
            warnings.warn(f"left out: {problem}", stacklevel=2)
            continue
        found += [run] if run.cells else []
    return found


def of_device(runs: Iterable[Run], device: str) -> list[Run]:
    """The runs of a GPU by the user's name for it: nvidia-h200, or h200."""
    return [run for run in runs if is_called(run.device, device)]


def _speed(run: Run, r: Record, state: str) -> float | None:
    """Torch eager's cold time over this one's."""
    eager = run.cells.get((BASELINE, r.workload))
    return comparing.compare(eager, r, one_run=True, state=state).ratio if eager is not None else None


def _sol(run: Run, r: Record, state: str) -> float | None:
    return r.sol if state == FULL or r.kernel_capped_us is None else r.capped_sol


def _cost(name: str) -> Callable[[Run, Record, str], float | None]:
    def over_eager(run: Run, r: Record, state: str) -> float | None:
        eager = run.cells.get((BASELINE, r.workload))
        mine: Interval | None = getattr(r, name)
        its: Interval | None = getattr(eager, name, None)
        return mine.median / its.median if mine is not None and its is not None and its.median > 0 else None

    return over_eager


FIGURES: Mapping[str, Callable[[Run, Record, str], float | None]] = {  # of a record in its run, a kernel's in a state of the clock
    "sol": _sol,
    "speed": _speed,
    "launch": _cost("launch_us"),
    "call": _cost("call_us"),
    "cached_s": lambda run, r, state: r.compile_cached_s,
    "cold_s": lambda run, r, state: r.compile_cold_s,
}


@dataclass(frozen=True)
class Figure:
    """A backend's figure at a workload: the median of `values`, one per run, newest first, taken on `gpus`. Without values, `reason` may
    say why."""

    workload: str
    values: tuple[float, ...] = ()
    gpus: tuple[str, ...] = ()
    commit: str = ""
    stale: str = ""
    reason: str = ""

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None


def figure(bar: Bar, backend: str, workload: Workload, runs: Sequence[Run], here: Mapping[str, Any] | None = None) -> Figure:
    """The figure from `runs` of one device, oldest first. `here`: this machine's driver and versions, if it has that device."""
    newest: Record | None = None
    values: list[float] = []
    gpus: list[str] = []
    for run in reversed(runs):
        r = run.any_of(backend, workload.op) if bar.first_call else run.cells.get((backend, workload))
        if r is None or r.status in ABSENT:
            continue
        if newest is not None and _taken_with(r) != _taken_with(newest):
            break
        if r.status != "ok":
            return Figure(str(workload), commit=r.commit, reason=f"{r.status}: {r.reason}")
        value = FIGURES[bar.figure](run, r, bar.state)
        if value is None or not math.isfinite(value):
            newest = newest or (r if _lacks_state(bar, run, r) else None)  # what older kernels took at full clock is no figure of these
            continue
        newest = newest or r
        values.append(value)
        gpus.append(r.gpu)
        if len(values) == MOST_RUNS:
            break
    if newest is None or not values:
        return Figure(str(workload))
    return Figure(str(workload), tuple(values), tuple(gpus), newest.commit, stale(newest, here))


def _lacks_state(bar: Bar, run: Run, r: Record) -> bool:
    """Was a kernel timed, its own or torch eager's, but not in the state that the bar asks for?"""
    its = run.cells.get((BASELINE, r.workload), r)
    return bar.figure in ("sol", "speed") and any(x.timed and x.kernel_us(bar.state) is None for x in (r, its))


def _taken_with(r: Record) -> tuple[object, ...]:
    return r.source or r.commit, r.driver, dict(r.versions)


@dataclass(frozen=True)
class Standing:
    """A backend's result at a bar. `value`: the worst figure, or the figures' geometric mean or sum; only of measured figures, None without
    any."""

    bar: Bar
    backend: str
    figures: tuple[Figure, ...] = field(repr=False)

    @property
    def required(self) -> float:
        return self.bar.required[self.backend]

    @property
    def value(self) -> float | None:
        values = [f.value for f in self.figures if f.value is not None]
        if not values:
            return None
        if self.bar.over == EACH:
            return max(values) if self.bar.at_most else min(values)
        return statistics.geometric_mean(values) if self.bar.over == GEOMETRIC_MEAN else sum(values)

    @property
    def missing(self) -> list[Figure]:
        return [f for f in self.figures if f.value is None]

    @property
    def worst(self) -> list[Figure]:
        """Figures that miss the bar by themselves, or were refused or wrong, the farthest from the bar first."""
        failing = [f for f in self.figures if f.value is not None and not self.bar.passes(self.backend, f.value)]
        failing.sort(key=lambda f: f.value or 0.0, reverse=self.bar.at_most)
        return [f for f in self.figures if f.reason] + failing

    @property
    def verdict(self) -> str:
        """Whether the bar is met. A short figure misses the bar whatever else is missing. Of an incomplete mean or sum nothing is said,
        except that a sum already over its bound misses it."""
        value = self.value
        if any(f.reason for f in self.figures):
            return SHORT
        decided = not self.missing or self.bar.over == EACH or (self.bar.at_most and self.bar.over != GEOMETRIC_MEAN)
        if value is not None and decided and not self.bar.passes(self.backend, value):
            return SHORT
        return NOT_MEASURED if value is None or self.missing else MET

    @property
    def stale(self) -> int:
        """The number of its stale figures."""
        return sum(bool(f.stale) for f in self.figures)


def judged(bars: Iterable[Bar], runs: Sequence[Run], here: Mapping[str, Any] | None = None) -> list[Standing]:
    """Every bar for every backend that it applies to."""
    return [
        Standing(bar, backend, tuple(figure(bar, backend, workload, runs, here) for workload in bar.workloads))
        for bar in bars
        for backend in bar.required
    ]
