"""Carries out each job in several processes: two processes' results for one kernel differ by more than the intervals of either.

A batch of jobs is carried out by one worker, then by the next, a fresh process each time. A job's records are kept until all have carried
it out: one record per cell is stored, or none."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opwise.record import Record
from opwise.runner.jobs import Job
from opwise.runner.merging import merged
from opwise.runner.seat import merged as best_roofs
from opwise.runner.supervisor import Event

MOST = 9
BATCH = 10  # jobs of one worker, half a minute's: a new one measures the roofs anew, and what is not through when a run ends is lost


@dataclass(frozen=True)
class Processes:
    """An executor that lets another one, of one GPU, carry out every job `count` times. An implementation that is not ok in one process is
    not tried in the next. Raises ValueError if `count` is not 1 to MOST."""

    executor: Callable[..., Iterator[Event]]
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST:
            raise ValueError(f"{self.count} processes are given, 1 to {MOST} are taken")

    def __call__(
        self, jobs: Sequence[Job], device: str, *, setup: Callable[[], None] | None = None, facts: Mapping[str, Any] | None = None,
        on_limits: Callable[[dict[str, float]], None] | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        limits: list[dict[str, float]] = []
        options = {"setup": setup, "facts": facts, "on_limits": limits.append, "timeouts": Counter[str]()}
        for start in range(0, len(jobs), BATCH):
            yield from self._carried_out(jobs[start : start + BATCH], device, options)
        if on_limits is not None and limits:
            on_limits(best_roofs(limits))

    def _carried_out(self, batch: Sequence[Job], device: str, options: Mapping[str, Any]) -> Iterator[Event]:
        found: dict[str, dict[str, list[Record]]] = {str(job.workload): defaultdict(list) for job in batch}
        left = list(batch)
        for number in range(self.count):
            for event in self.executor(left, device, **options) if left else ():
                for r in event.records:
                    found[str(event.job.workload)][r.implementation].append(r)
                passes = sum(1 if r.status == "ok" else self.count - number for r in event.records)
                yield replace(event, records=(), passes=passes)
            bad = {w: [name for name, of in cells.items() if of[-1].status != "ok"] for w, cells in found.items()}
            left = [rest for job in batch if (rest := job.without(bad[str(job.workload)])).implementations]
        for job in batch:
            yield Event(job, records=tuple(merged(found[str(job.workload)], self.count)), passes=0)
