"""A whole run: survey the machine, plan, compile what cannot run here, carry out the jobs, keep every record as it comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from opwise import own
from opwise.measure.device import slug
from opwise.record import SCHEMA, Record, append, new_run, now
from opwise.runner.first_call import FirstCalls, first_calls
from opwise.runner.jobs import Entry, Job, plan
from opwise.runner.supervisor import Event, Patience, Worker, WorkerLost, run_jobs

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
COMPILE_S = 600.0
LOOK_S = 180.0


def default_device() -> str:
    return "cuda:0" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Survey:
    """What is here: the Record fields of the device, and what each backend is on it."""

    device: str
    facts: Mapping[str, Any]
    catalogue: Mapping[str, Entry]
    own: Mapping[str, Path] = field(default_factory=dict)

    @property
    def setup(self) -> Callable[[], None] | None:
        """What must run first in a worker that is to know the user's own files."""
        return partial(own.install, self.own) if self.own else None


def survey(device: str, files: Mapping[str, Path] | None = None, patience_s: float = LOOK_S) -> Survey:
    """Asks a worker, since looking imports every GPU library, and for each of the user's own `files` another one: whatever such a file
    does is known of it alone. Raises WorkerLost where even a look at the suite's own backends fails."""
    with Worker(device) as worker:
        facts, catalogue = worker.ask("catalogue", None, Patience(LOOK_S))
    files = dict(files or {})
    with ThreadPoolExecutor(max_workers=4) as pool:
        looked = list(pool.map(lambda name: _look(device, name, files[name], patience_s), files))
    return Survey(device, facts, {**catalogue, **{entry.backend: entry for entry in looked}}, files)


def _look(device: str, name: str, path: Path, patience_s: float) -> Entry:
    """What a user's file is here. One that cannot be imported keeps a cell an op, which says why."""
    try:
        with Worker(device, partial(own.install, {name: path})) as worker:
            entry: Entry = worker.ask("own", name, Patience(patience_s))
    except WorkerLost as lost:
        entry = Entry(name, reason=f"importing {path.name}: {lost.reason}", own=True, broken="timeout" if lost.timed_out else "failed")
    return entry if entry.available else replace(entry, variants={op: {"": ""} for op in own.declared(path)})


@dataclass
class Session:
    """One run on one device. `records` grows as jobs finish; each is in the file at `path` before anyone sees it."""

    survey: Survey
    jobs: list[Job]
    label: str
    out: Path | None
    first_calls: FirstCalls = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def planned(
        cls, found: Survey, filters: Sequence[str], set_name: str, *, variants: bool, timed: bool, out: Path | None, brief: bool = False
    ) -> Session:
        """Raises UnknownName for a filter that names nothing."""
        jobs = plan(found.catalogue, filters, set_name, found.device, variants=variants, timed=timed, brief=brief)
        return cls(found, jobs, set_name if not filters else f"{set_name}-part", out)

    def measure_first_calls(self) -> None:
        self.first_calls = first_calls(self.survey.catalogue, self.survey.device, self.survey.setup)

    def events(self) -> Iterator[Event]:
        """Carries out the run. Every record is stored before its event is yielded; stopping early keeps what was stored."""
        if self.out is not None:
            self.path = new_run(self.out, slug(dict(self.survey.facts)), self.label, str(self.survey.facts["commit"]))
        broken = {name for name, entry in self.survey.catalogue.items() if entry.broken}
        for job in self.jobs:
            if found := [_broken_record(job, n, self.survey) for n in job.implementations if n.split("/")[0] in broken]:
                yield self._kept(Event(job, records=tuple(found)))
        compiled_only = self._compiled_only()
        apart = compiled_only | broken
        running = [job.without(n for n in job.implementations if n.split("/")[0] in apart) for job in self.jobs]
        with ThreadPoolExecutor(max_workers=1) as pool:
            wanted = {n.split("/")[0] for job in self.jobs for n in job.implementations} & compiled_only
            compiled = {backend: pool.submit(compile_all, backend) for backend in sorted(wanted)}
            for event in run_jobs(
                [job for job in running if job.implementations],
                self.survey.device,
                setup=self.survey.setup,
                facts=self.survey.facts,
                on_limits=self._keep_limits,
            ):
                yield self._kept(event)
            for job in self.jobs:
                names = [n for n in job.implementations if n.split("/")[0] in compiled_only]
                records = [_compiled_record(job, name, compiled[name.split("/")[0]], self.survey) for name in names]
                yield self._kept(Event(job, records=tuple(records)))

    def _compiled_only(self) -> set[str]:
        """Backends that have no stand-in, but a compiler that needs no GPU."""
        if self.survey.device != "cpu":
            return set()
        return {name for name, entry in self.survey.catalogue.items() if not entry.available and entry.compiles}

    def _kept(self, event: Event) -> Event:
        records = tuple(self._completed(r) for r in event.records)
        if records and self.path is not None:
            append(self.path, (r.to_json() for r in records))
        self.records += records
        return replace(event, records=records)

    def _completed(self, record: Record) -> Record:
        fault = self.survey.catalogue[record.backend].faults.get(record.implementation)
        if fault and record.status == "wrong":
            record = replace(record, reason=f"known fault ({fault}): {record.reason}")
        pair = self.first_calls.get((record.backend, record.op))
        if pair and record.status == "ok" and not record.variant:
            record = replace(record, compile_cold_s=round(pair[0], 3), compile_cached_s=round(pair[1], 3))
        return record

    def _keep_limits(self, limits: dict[str, float]) -> None:
        if self.path is not None and limits:
            line = {"schema": SCHEMA, "kind": "limits", "time": now(),
                    **self.survey.facts, "limits": limits}  # fmt: skip
            append(self.path, [json.dumps(line)])

    @property
    def trouble(self) -> list[Record]:
        """Records that make a run fail: wrong, failed or timed out, known faults of textbook variants excepted."""
        faults = {name for entry in self.survey.catalogue.values() for name in entry.faults}
        return [r for r in self.records if r.status in ("failed", "timeout") or (r.status == "wrong" and r.implementation not in faults)]


def compile_all(backend: str) -> tuple[str, str]:
    """Compiles all kernels of a backend for every architecture; (status, reason) of all its cells where nothing can run them."""
    try:
        with Worker("cpu") as worker:
            for arch in ARCHITECTURES:
                answer = worker.ask("compile", (backend, arch), Patience(COMPILE_S))
                if isinstance(answer, str):
                    return "unavailable", answer
    except WorkerLost as lost:
        return "failed", f"does not compile: {lost.reason}"
    return "unavailable", f"compiled for {', '.join(ARCHITECTURES)}, not run: no GPU here"


def _compiled_record(job: Job, name: str, outcome: Future[tuple[str, str]], found: Survey) -> Record:
    status, reason = outcome.result()
    entry = found.catalogue[name.split("/")[0]]
    return Record.of(name, job.workload, status=status, reason=f"{reason}. {entry.reason}: {entry.remedy}", time=now(), **found.facts)


def _broken_record(job: Job, name: str, found: Survey) -> Record:
    entry = found.catalogue[name.split("/")[0]]
    return Record.of(name, job.workload, status=entry.broken, reason=entry.reason, time=now(), **found.facts)
