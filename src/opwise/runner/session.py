"""A whole run: plan, compile what cannot run here, carry out the jobs, store every record as it comes.

An `Executor` carries out the jobs: one worker on one GPU unless another is given. A cell is stored once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opwise.locks import Lock, Taken
from opwise.measure.device import slug
from opwise.record import SCHEMA, Record, now, read
from opwise.run_files import append, new_run
from opwise.runner.energy import Measured, all_energy
from opwise.runner.facts import Found, all_facts
from opwise.runner.first_call import FirstCalls, first_calls
from opwise.runner.jobs import Job, plan
from opwise.runner.processes import Processes
from opwise.runner.seat import run_jobs
from opwise.runner.stored_plan import CannotResume, StoredPlan
from opwise.runner.supervisor import Event, Executor, Patience, Worker, WorkerLost
from opwise.runner.survey import Survey

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
COMPILE_S = 600.0


@dataclass
class Session:
    """One run on one model of device. `records` grows as jobs finish; each is in the file at `path` first.

    `shared` marks the records if somebody else computed on the GPU. `refused`: number of records of cells that were already stored;
    `stranded`: what became of the executors, if they are gone before the end."""

    survey: Survey
    jobs: list[Job]
    label: str
    out: Path | None
    first_calls: FirstCalls = field(default_factory=dict)
    facts: Found = field(default_factory=dict)
    energy: Measured = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    path: Path | None = None
    stored_plan: StoredPlan | None = None
    executor: Executor = run_jobs
    shared: str = ""
    refused: int = 0
    stranded: str = ""
    _seen: set[tuple[str, str]] = field(default_factory=set, repr=False)

    @classmethod
    def planned(
        cls, found: Survey, filters: Sequence[str], set_name: str, *, variants: bool, timed: bool, out: Path | None, brief: bool = False,
        facts: bool = False, energy: bool = False, processes: int = 1,
    ) -> Session:  # fmt: skip
        """facts, energy: whether to measure them. Raises UnknownName for a filter that matches nothing."""
        jobs = plan(found.catalogue, filters, set_name, found.device, variants=variants, timed=timed, brief=brief, facts=facts)
        here, files = found.facts, tuple(path.name for path in found.own.values())
        stored = StoredPlan(set_name, tuple(filters), variants, timed, brief, files, str(here.get("device", "")),
                            str(here.get("commit", "")), here.get("dirty"), facts, energy, processes)  # fmt: skip
        return cls(found, jobs, set_name if not filters else f"{set_name}-part", out, stored_plan=stored)

    @classmethod
    def resumed(cls, found: Survey, path: Path) -> Session:
        """The rest of a stored run: the jobs of its plan, without the cells that it holds. Its records come first in `records`.

        Raises CannotResume if device, commit or the user's own files differ from those of the run, OSError if the file cannot be read or
        appended to."""
        stored = StoredPlan.read(path)
        stored.check(path, found.facts, tuple(file.name for file in found.own.values()))
        append(path, ())
        jobs = plan(found.catalogue, stored.filters, stored.set_name, found.device, variants=stored.variants, timed=stored.timed,
                    brief=stored.brief, facts=stored.facts)  # fmt: skip
        records = read(path)
        seen = {_key(r) for r in records}
        rest = [job.without(n for n in job.implementations if (n, str(job.workload)) in seen) for job in jobs]
        return cls(found, [job for job in rest if job.implementations], "", path.parent, records=records, path=path, stored_plan=stored)

    def measure_first_calls(self) -> None:
        self.first_calls = first_calls(self.survey.catalogue, self.survey.device, self.survey.setup, self.survey.environment)

    def find_facts(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Tests whether each cell's result is repeatable and batch-invariant. say: progress callback."""
        self.facts = all_facts(self.jobs, self.survey.catalogue, self.survey.device, self.survey.setup, say)

    def find_energy(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Measures joules of a launch of each cell, and the idle power. say: progress callback."""
        self.energy = all_energy(self.jobs, self.survey.catalogue, self.survey.device, self.survey.setup, say)

    @property
    def processes(self) -> int:
        """The number of processes in which each job is carried out."""
        return self.stored_plan.processes if self.stored_plan is not None else 1

    @property
    def cells(self) -> int:
        """The number of cells of all jobs."""
        return sum(len(job.implementations) for job in self.jobs)

    def events(self) -> Iterator[Event]:
        """Carries out the run. Every record is stored before its event is yielded; stopping early keeps stored records.

        Raises CannotResume if another process is writing the run that is to be continued."""
        self._seen = {_key(r) for r in self.records}
        if self.out is None:
            yield from self._events()
            return
        if begun := self.path is None:
            self.path = new_run(self.out, slug(dict(self.survey.facts)), self.label, str(self.survey.facts["commit"]))
        try:
            lock = Lock(self.path)
        except Taken as taken:
            raise CannotResume(f"{self.path} is being written by another opwise: wait for it, or stop it first") from taken
        with lock:
            if begun and self.stored_plan is not None:
                append(self.path, [self.stored_plan.line()])
            elif not begun and not self.path.read_bytes().endswith(b"\n"):
                append(self.path, [""])  # ends the line that was torn
            yield from self._events()

    def _events(self) -> Iterator[Event]:
        broken = {name for name, entry in self.survey.catalogue.items() if entry.broken}
        for job in self.jobs:
            if found := [_broken_record(job, n, self.survey) for n in job.implementations if n.split("/")[0] in broken]:
                yield self._kept(Event(job, records=tuple(found)))
        compiled_only = self._compiled_only()
        apart = compiled_only | broken
        running = [job.without(n for n in job.implementations if n.split("/")[0] in apart) for job in self.jobs]
        with ThreadPoolExecutor(max_workers=1) as pool:
            wanted = {(job.workload.op, name.split("/")[0]) for job in self.jobs for name in job.implementations}
            compiled = {(op, backend): pool.submit(compile_op, backend, op) for op, backend in sorted(wanted) if backend in compiled_only}
            carried_out = Processes(self.executor, self.processes) if self.processes > 1 else self.executor
            for event in carried_out(
                [job for job in running if job.implementations],
                self.survey.device,
                setup=self.survey.setup,
                facts=self.survey.facts,
                on_limits=self._keep_limits,
            ):
                yield self._kept(event)
            for job in self.jobs:
                records = []
                for name in (n for n in job.implementations if n.split("/")[0] in compiled_only):
                    outcome = compiled[job.workload.op, name.split("/")[0]]
                    if not outcome.done():
                        yield Event(job, turn=(name, "compile"))
                    records.append(_compiled_record(job, name, outcome, self.survey))
                yield self._kept(Event(job, records=tuple(records)))

    def _compiled_only(self) -> set[str]:
        """Backends that have no stand-in, but a compiler that needs no GPU."""
        if self.survey.device != "cpu":
            return set()
        return {name for name, entry in self.survey.catalogue.items() if not entry.available and entry.compiles}

    def _kept(self, event: Event) -> Event:
        """A job's records are one write: a run that is killed keeps all of them or none, and what is missing can still be paired."""
        records = tuple(self._completed(r) for r in event.records if _key(r) not in self._seen)
        self.refused += len(event.records) - len(records)
        self._seen |= {_key(r) for r in records}
        lines = [r.to_json() for r in records] + ([self._line(**event.phase)] if event.phase else [])
        if lines and self.path is not None:
            append(self.path, ["\n".join(lines)])
        self.records += records
        return replace(event, records=records)

    def _completed(self, record: Record) -> Record:
        fault = self.survey.catalogue[record.backend].faults.get(record.implementation)
        if fault and record.status == "wrong":
            record = replace(record, reason=f"known fault ({fault}): {record.reason}")
        pair = self.first_calls.get((record.backend, record.op))
        if pair and record.status == "ok" and not record.variant:
            record = replace(record, compile_cold_s=round(pair[0], 3), compile_cached_s=round(pair[1], 3))
        if (facts := self.facts.get(_key(record))) and record.status == "ok":
            record = replace(record, **facts._asdict())
        if (energy := self.energy.get(_key(record))) and record.status == "ok":
            record = replace(record, **energy._asdict())
        return replace(record, shared=self.shared) if self.shared and not record.shared else record

    def _keep_limits(self, limits: dict[str, float]) -> None:
        if self.path is not None and limits:
            append(self.path, [self._line(kind="limits", limits=limits)])

    def _line(self, **said: Any) -> str:
        """A line that is no cell."""
        return json.dumps({"schema": SCHEMA, "time": now(), **self.survey.facts, **said})

    @property
    def trouble(self) -> list[Record]:
        """Records that make a run fail: wrong, failed or timed out, except known faults of textbook variants."""
        faults = {name for entry in self.survey.catalogue.values() for name in entry.faults}
        return [r for r in self.records if r.status in ("failed", "timeout") or (r.status == "wrong" and r.implementation not in faults)]


def _key(record: Record) -> tuple[str, str]:
    return record.implementation, str(record.workload)


def compile_op(backend: str, op: str) -> tuple[str, str]:
    """Compiles an op's kernels of a backend for every architecture; (status, reason) of their cells if nothing can run them."""
    from opwise.inspecting.narrow import compiled_lines

    try:
        with Worker("cpu") as worker:
            for arch in ARCHITECTURES:
                answer = worker.ask("apply", (compiled_lines, backend, arch, (op,)), Patience(COMPILE_S))
                if isinstance(answer, str):
                    return "unavailable", answer
    except WorkerLost as lost:
        return "failed", f"does not compile: {lost.reason}"
    return "unavailable", f"compiled for {', '.join(ARCHITECTURES)}, not run: no GPU here"


def _compiled_record(job: Job, name: str, outcome: Future[tuple[str, str]], found: Survey) -> Record:
    status, reason = outcome.result()
    entry = found.catalogue[name.split("/")[0]]
    absent = f"{entry.reason}: {entry.remedy}"
    told = reason if reason == absent else f"{reason}. {absent}"  # what is not installed compiles for the same reason not
    return Record.of(name, job.workload, status=status, reason=told, time=now(), **found.facts)


def _broken_record(job: Job, name: str, found: Survey) -> Record:
    entry = found.catalogue[name.split("/")[0]]
    return Record.of(name, job.workload, status=entry.broken, reason=entry.reason, time=now(), **found.facts)
