"""A device and its worker: takes jobs, yields events, and replaces a lost worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opwise.record import Record, now
from opwise.runner.jobs import Job
from opwise.runner.supervisor import Event, Patience, Worker, WorkerLost

MOST_TIMEOUTS = 2  # of one implementation in a run: one that hangs everywhere must not cost its patience in every cell


class JobLost(RuntimeError):
    """The worker was lost and no implementation is to blame. `job`: the rest of the job."""

    def __init__(self, job: Job, lost: WorkerLost) -> None:
        super().__init__(lost.reason)
        self.job, self.lost, self.reason = job, lost, lost.reason


class Seat:
    """One device with at most one worker at a time.

    `facts`: Record fields of the device, for cells whose worker is lost. `setup` runs first in every worker, in `environment`; `greetings`:
    requests sent to each new worker first, with the expected answer, "" for any. `timeouts`: by implementation, the number of cells that
    timed out; seats that share the counter share its bound."""

    def __init__(
        self, device: str, *, setup: Callable[[], None] | None = None, patience: Patience | None = None,
        facts: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None, greetings: Mapping[str, str] | None = None,
        timeouts: Counter[str] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.setup, self.patience, self.facts = device, setup, patience or Patience(), dict(facts or {})
        self.environment, self.greetings = dict(environment or {}), dict(greetings or {})
        self.timeouts: Counter[str] = Counter() if timeouts is None else timeouts
        self.worker: Worker | None = None

    def start(self) -> Worker:
        """The worker, started if there is none. Raises WorkerLost if it does not start."""
        if self.worker is None:
            self.worker = worker = Worker(self.device, self.setup, self.environment, wait=False)
            try:
                worker.started()
                for request, wanted in self.greetings.items():
                    answer = worker.ask(request, None, self.patience)
                    if wanted and answer != wanted:
                        raise WorkerLost(f"the worker should see {wanted} and sees {answer or 'none'}", ("", request))
            except WorkerLost:
                self.kill()
                raise
        return self.worker

    def run(self, job: Job) -> Iterator[Event]:
        """Yields events as they happen. A worker lost during an implementation's turn costs that implementation its cell; the job runs
        again with the others. An implementation that timed out in two cells is not tried in a third. Raises JobLost."""
        while job.implementations:
            if hopeless := [name for name in job.implementations if self.timeouts[name] >= MOST_TIMEOUTS]:
                lost = WorkerLost(f"not tried again: timed out in {MOST_TIMEOUTS} cells before", ("", ""), timed_out=True)
                yield Event(job, records=marked(job, hopeless, lost, self.facts))
                job = job.without(hopeless)
                continue
            try:
                for said, what in self.start().messages("job", job, self.patience):
                    yield Event(job, turn=what) if said == "turn" else Event(job, records=tuple(what))
                return
            except WorkerLost as lost:
                self.kill()
                blamed = lost.turn[0]
                if blamed not in job.implementations:
                    raise JobLost(job, lost) from lost
                self.timeouts[blamed] += lost.timed_out
                yield Event(job, records=marked(job, [blamed], lost, self.facts))
                job = job.without([blamed])

    def limits(self) -> dict[str, float]:
        """The roofs measured by the current worker. Raises WorkerLost."""
        found: dict[str, float] = self.worker.ask("limits") if self.worker is not None else {}
        return found

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = None

    def kill(self) -> None:
        """May be called from another thread while `start` or `run` wait for the worker; they raise that it is lost."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()


def kill_all(seats: Sequence[Any]) -> None:
    """Kills all workers at once, since the driver takes time to clean up after each process."""
    with ThreadPoolExecutor(max(1, len(seats))) as pool:
        list(pool.map(lambda seat: seat.kill(), seats))


def merged(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The roofs that several workers measured on GPUs of one model: the best of each."""
    best: dict[str, float] = {}
    for limits in found:
        for name, value in limits.items():
            best[name] = value if name not in best else (min if name.endswith("_us") else max)(best[name], value)
    return best


def marked(job: Job, names: Sequence[str], lost: WorkerLost, facts: Mapping[str, Any]) -> tuple[Record, ...]:
    """The records of implementations whose worker was lost."""
    status = "timeout" if lost.timed_out else "failed"
    return tuple(Record.of(name, job.workload, status=status, reason=lost.reason, time=now(), **facts) for name in names)


def run_jobs(
    jobs: Sequence[Job],
    device: str,
    *,
    setup: Callable[[], None] | None = None,
    patience: Patience | None = None,
    facts: Mapping[str, Any] | None = None,
    on_limits: Callable[[dict[str, float]], None] | None = None,
    timeouts: Counter[str] | None = None,
) -> Iterator[Event]:
    """The executor for one device: the jobs one after the other, as by Seat.run. If a worker is lost with no implementation to blame, the
    rest of the job is marked. `on_limits` gets the roofs at the end; `timeouts` as in Seat."""
    seat = Seat(device, setup=setup, patience=patience, facts=facts, timeouts=timeouts)
    try:
        for job in jobs:
            try:
                yield from seat.run(job)
            except JobLost as lost:
                yield Event(lost.job, records=marked(lost.job, lost.job.implementations, lost.lost, seat.facts))
        if on_limits is not None and seat.worker is not None:
            on_limits(seat.limits())
        seat.close()
    finally:
        seat.kill()
