"""Many machines: jobs go to the workers of a Dask cluster, one at a time on each, and records come back as they finish.

If a worker dies, a machine leaves or the scheduler restarts, finished records are already stored; the running jobs are repeated at most
twice, and then their cells say what happened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import dask
from distributed import Client

from opwise.runner.jobs import Job
from opwise.runner.prepare import Unit, units
from opwise.runner.seat import marked, merged
from opwise.runner.supervisor import START_S, Event, WorkerLost
from opwise.runner.survey import LOOK_S, Survey
from opwise.scaling import Stranded, post
from opwise.scaling.compiling import Built, UnitQueue, waits
from opwise.scaling.crew import STRIKES
from opwise.scaling.flights import POLL_S, ROSTER_S, Flights, Landed, SchedulerGone
from opwise.scaling.hail import RESOURCE
from opwise.scaling.joining import BadCluster, check_same, check_workers, connected
from opwise.scaling.order import Dispatcher
from opwise.scaling.post import Answer, Post, Told

__all__ = ["BadCluster", "Cluster"]

ANSWER_S = 10.0  # of a scheduler
RETURN_S = 60.0  # that the last worker, or the scheduler, may be away


class Cluster:
    """An executor over a Dask cluster. Use as a context manager: it releases the GPUs."""

    def __init__(
        self, address: str, *, model: str | None = None, files: Mapping[str, Any] | None = None, share: bool = False,
        make_post: Callable[[], Any] | None = None, answer_s: float | None = None, return_s: float = RETURN_S,
    ) -> None:  # fmt: skip
        """`model` picks workers with the resource GPU-<model>. Raises BadCluster."""
        if files:
            raise BadCluster("--with is taken on one machine only, whose file it is: leave --scheduler out, or install a package with an "
                             "entry point on all (CONTRIBUTING.md)")  # fmt: skip
        self.address, self.return_s, self.answer_s = address, return_s, answer_s or ANSWER_S
        self.resource = f"{RESOURCE}-{model}" if model else RESOURCE
        self._make = make_post or partial(Post, share=share)
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is lost is told by the records, in a line
        dask.config.set({"distributed.comm.timeouts.connect": f"{self.answer_s}s"})
        self.client: Client = connected(address, self.answer_s)
        self.flights = Flights(self.client, self.resource)
        self.posts: dict[str, Told] = {}  # those that jobs are sent to
        self._strikes: dict[str, int] = {}
        self._refused: set[str] = set()
        self._limits: list[Mapping[str, float]] = []
        self._ending: threading.Thread | None = None

    def look(self) -> Survey:
        """The workers' facts and backends, which must be the same. Raises BadCluster."""
        try:
            for address in check_workers(self.client, self.address, self.flights):
                self.flights.send(address, post.look, self._make, tag="look")
            deadline = time.monotonic() + LOOK_S + START_S
            while self.flights.up and time.monotonic() < deadline:
                if (landed := self.flights.landed()) is not None:
                    if landed.reason:
                        raise BadCluster(f"worker {landed.address} cannot be used: {landed.reason}")
                    self.posts[landed.address] = landed.answer
        except SchedulerGone as gone:
            raise BadCluster(f"--scheduler {self.address}: the scheduler went away ({gone}): start it again") from gone
        if self.flights.up:
            raise BadCluster(f"worker {next(iter(self.flights.up))} does not answer: is it busy with another client?")
        check_same(self.posts)
        return next(iter(self.posts.values())).survey

    def __call__(
        self, jobs: Sequence[Job], device: str, *, setup: Callable[[], None] | None = None, facts: Mapping[str, Any] | None = None,
        on_limits: Callable[[dict[str, float]], None] | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        """As `run_jobs`, after `look`. Raises Stranded where scheduler or workers are gone and do not come back."""
        if not jobs:
            return
        found = units(jobs) if device != "cpu" else []
        if found:
            yield from self._compiled(jobs, found)
        dispatcher = Dispatcher(jobs)
        alone_since: float | None = None
        welcomed = time.monotonic()
        while not dispatcher.finished:
            try:
                yield from self._sent(dispatcher)
                landed = self.flights.landed()
                if landed is not None:
                    yield from self._taken(landed, dispatcher, facts or {})
                if landed is None or time.monotonic() - welcomed > ROSTER_S:
                    self._welcome(found)
                    welcomed = time.monotonic()
            except SchedulerGone as gone:
                yield from self._regained(gone, dispatcher, facts or {})
            alone_since = None if self.flights.up else alone_since or time.monotonic()
            if alone_since is not None and time.monotonic() - alone_since > self.return_s:
                raise Stranded(f"no worker of {self.address} with the resource {self.resource} is left")
        with suppress(SchedulerGone):
            for address in self.posts:
                self.flights.send(address, post.limits, tag="limits")
            while self.flights.up:
                if (landed := self.flights.landed()) is not None and not landed.reason:
                    self._limits.append(landed.answer)
        self._ending = threading.Thread(target=self._give_back)  # waited for by `close`: there is a table to print
        self._ending.start()
        if on_limits is not None and (limits := merged(self._limits)):
            on_limits(limits)

    def _sent(self, dispatcher: Dispatcher) -> Iterator[Event]:
        for address, told in [(a, t) for a, t in self.posts.items() if a not in self.flights.up]:
            if (job := dispatcher.take(address, wait=False)) is None:
                return
            try:
                self.flights.send(address, post.run, job, tag=job)
            except SchedulerGone:
                dispatcher.lost(job)
                raise
            yield Event(job, turn=("", str(job.workload)), place=_place(address, told))

    def _taken(self, landed: Landed, dispatcher: Dispatcher, facts: Mapping[str, Any]) -> Iterator[Event]:
        """What a landing came to: a new post, or a job that is done, goes again or is given up."""
        if not isinstance(landed.tag, Job):
            self._joined(landed)
            return
        answer = landed.answer if isinstance(landed.answer, Answer) else Answer(left=landed.tag, reason=landed.reason)
        place = _place(landed.address, self.posts.get(landed.address))
        if answer.records:
            yield Event(landed.tag, records=answer.records, place=place)
        if answer.left is None:
            self._strikes[landed.address] = 0
            dispatcher.done(landed.tag)
            return
        self._strikes[landed.address] = self._strikes.get(landed.address, 0) + 1
        if landed.reason or self._strikes[landed.address] >= STRIKES:
            self.posts.pop(landed.address, None)
        if self._strikes[landed.address] >= STRIKES:
            self._refused.add(landed.address)
        yield from self._again(answer.left, f"{place}: {answer.reason}", dispatcher, facts)

    def _again(self, job: Job, reason: str, dispatcher: Dispatcher, facts: Mapping[str, Any]) -> Iterator[Event]:
        if not dispatcher.lost(job):
            lost = WorkerLost(f"given up after it was lost with several workers, the last time {reason}", ("", ""))
            yield Event(job, records=marked(job, job.implementations, lost, facts))

    def _welcome(self, found: Sequence[Unit]) -> None:
        """Workers that came, or came back, are looked at; they compile before they time, since those of their machine may not have."""
        for address, seen in self.flights.roster().items():
            if address not in self.posts and address not in self.flights.up and address not in self._refused and seen.threads == 1:
                self.flights.send(address, _arrive, self._make, list(found), tag="look")

    def _joined(self, landed: Landed) -> None:
        first = next(iter(self.posts.values()), None)
        told = landed.answer
        if landed.reason or (
            first is not None and any(told.facts[n] != first.facts[n] for n in ("device", "driver", "versions", "commit"))
        ):
            self._refused.add(landed.address)
        else:
            self.posts[landed.address] = told

    def _regained(self, gone: SchedulerGone, dispatcher: Dispatcher, facts: Mapping[str, Any]) -> Iterator[Event]:
        """Waits for the scheduler to come back under its address. Raises Stranded."""
        for _, tag in self.flights.up.values():
            if isinstance(tag, Job):
                yield from self._again(tag, f"the scheduler went away ({gone})", dispatcher, facts)
        self.posts.clear()
        self.flights.up.clear()
        with suppress(Exception):
            self.client.close(timeout=1)  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + self.return_s
        while True:
            try:
                self.client = connected(self.address, min(self.answer_s, self.return_s))
                self.flights = Flights(self.client, self.resource)
                self.flights.everyone()
                return
            except (BadCluster, SchedulerGone) as error:
                if time.monotonic() > deadline:
                    raise Stranded(f"the scheduler {self.address} went away ({gone}) and did not come back") from error
                time.sleep(min(POLL_S, self.return_s))

    def _compiled(self, jobs: Sequence[Job], found: Sequence[Unit]) -> Iterator[Event]:
        """On every machine, since each may have caches of its own: all units, spread over its workers."""
        began, done = time.perf_counter(), 0
        queues = {told.host: UnitQueue(found) for told in self.posts.values()}
        try:
            while True:
                for address, told in self.posts.items():
                    if address not in self.flights.up and (unit := queues[told.host].take(wait=False)) is not None:
                        self.flights.send(address, post.prepare, [unit], tag=unit)
                if not self.flights.up:
                    break
                if (landed := self.flights.landed()) is not None:
                    queue = queues[self.posts[landed.address].host]
                    queue.done(landed.tag)
                    done += 1 + sum(len(queue.drop(name)) for name in landed.answer or ())
                    if landed.reason:
                        self.posts.pop(landed.address)
                now = time.perf_counter()
                named = waits({unit: since for queue in queues.values() for unit, since in queue.under_way.items()}, now)
                if landed is not None or named:
                    yield Event(jobs[0], turn=("", str(Built(done, len(found) * len(queues), now - began, named))))
        except SchedulerGone as gone:
            raise Stranded(f"the scheduler {self.address} went away ({gone}) before anything was timed") from gone
        seconds = round(time.perf_counter() - began, 3)
        yield Event(jobs[0], phase={"kind": "compiled", "kernels": len(found), "processes": len(self.posts), "seconds": seconds})

    def close(self) -> None:
        """Releases the GPUs of the workers that can be reached."""
        if self._ending is None:
            self._give_back()
        else:
            self._ending.join()
        with suppress(Exception):
            self.client.close(timeout=2)  # type: ignore[no-untyped-call]

    def _give_back(self) -> None:
        with suppress(Exception):
            self.client.run(post.close, workers=list(self.flights.roster()), on_error="ignore")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(address: str, told: Told | None) -> str:
    return told.place if told and told.gpu else address


def _arrive(make: Callable[[], Any], found: Sequence[Unit]) -> Any:
    """`look`, then `prepare`."""
    told = post.look(make)
    if found:
        post.prepare(found)
    return told
