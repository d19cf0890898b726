"""How much a cell's cold kernel time, and the ratio of two cells of one run, differ between stored runs.

Records are alike if they are of one cell and device, their kernels have the same sources and tuned tables, and they were taken by the same
driver and libraries on an unshared GPU. This serves people and the report only; a dispatched call uses the newest record."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from opwise.choosing.store import refresh, taken_by
from opwise.clocks import Triple
from opwise.measure.device import slug
from opwise.measure.stats import median
from opwise.ops.spec import Workload
from opwise.record import Record, UnknownSchema, beginning, read_newest
from opwise.settling import LEAST, each_process, ratios, settled


@dataclass(frozen=True)
class Spread:
    """Of a cell's cold kernel times, one per process: (greatest - least) / median, the larger of the two states'. None for a single
    process."""

    runs: int
    processes: int
    relative: float | None

    def __str__(self) -> str:
        parts = [f"{self.runs} {'run' if self.runs == 1 else 'runs'}"]
        parts += [f"{self.processes} processes"] if self.processes > self.runs else []
        return ", ".join(parts + ([f"{100 * self.relative:.1f} %"] if self.relative is not None else []))


@dataclass(frozen=True)
class Across:
    """Alike records, by the beginning of their cell's line: the last of each run, by the run's path."""

    found: Mapping[str, Mapping[Path, Record]] = field(default_factory=dict)

    @classmethod
    def load(cls, records: Iterable[Record], runs: Iterable[Path]) -> Across:
        """Loads the alike records of these cells from the runs. Unreadable runs are skipped; whoever read the records has warned."""
        wanted = {beginning(r): r for r in records}
        folders = {slug({"device": r.device}) for r in wanted.values()}
        found: defaultdict[str, dict[Path, Record]] = defaultdict(dict)
        for path in (path for path in runs if path.parent.name in folders):
            taken: set[str] = set()
            with warnings.catch_warnings(), suppress(UnknownSchema, OSError):
                warnings.simplefilter("ignore")
                for cell, r in read_newest(path, lambda cell, _, taken=taken: cell not in wanted or cell in taken):  # type: ignore[misc]
                    if alike(r, wanted[cell]):
                        taken.add(cell)
                        found[cell][path] = r
        return cls(found)

    def spread(self, record: Record, states: Sequence[str]) -> Spread | None:
        """The spread of a record that was given to `load`; None if no stored run has it."""
        of = self.found.get(beginning(record), {})
        every = [r for whole in of.values() for r in each_process(whole)]
        times = [[time.median for r in every if (time := r.kernel_us(state)) is not None] for state in states]
        relative = max(((max(us) - min(us)) / median(us) for us in times if len(us) > 1), default=None)
        return Spread(len(of), len(every), relative) if of else None

    def ratios(self, one: Record, other: Record, states: Sequence[str]) -> list[Triple]:
        """The ratios of each process of each run that launched both in one job."""
        first, second = (self.found.get(beginning(r), {}) for r in (one, other))
        pairs = [(first[path], second[path]) for path in first if path in second]
        return [ratio for a, b in pairs if a.seed is not None and a.seed == b.seed for ratio in ratios(a, b, states)]


def alike(r: Record, newest: Record) -> bool:
    """Returns whether the two records measure the same, except for process, machine and day."""
    return r.status == "ok" and r.timed and bool(r.source) and not r.shared and taken_by(r) == taken_by(newest)


def told(first: Record, others: Mapping[str, Record], workload: Workload, states: Sequence[str]) -> str:
    """States whether the choice is settled against all others launched beside it. One line; "" if there is no other."""
    if not others:
        return ""
    if min(r.processes for r in (first, *others.values())) < LEAST:
        return f"within this run: {_processes(first.processes)}; {refresh([workload])} --processes {LEAST} settles it"
    if left := [backend for backend, r in others.items() if not settled(first, r, states)]:
        return f"not settled against {', '.join(left)}: {first.processes} processes differ, or are too near to 1 %"
    return f"settled: the same in {first.processes} processes"


def _processes(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes"
