"""Several GPUs of one machine: a worker process on each, pinned by UUID, and one queue of jobs for all.

Three phases never overlap: workers start and probe backends, on all GPUs at once; everything is compiled, on all cores (compiling.py); then
jobs are timed, and nothing else runs. A GPU that loses its worker twice in a row with no implementation to blame is dropped, and others
take its jobs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from opwise import own
from opwise.record import Record
from opwise.runner.jobs import Job
from opwise.runner.prepare import units
from opwise.runner.seat import JobLost, Seat, kill_all, marked, merged
from opwise.runner.supervisor import Event, Patience, WorkerLost
from opwise.runner.survey import Told, looked
from opwise.scaling import Stranded
from opwise.scaling.compiling import compile_all
from opwise.scaling.gpus import Gpu
from opwise.scaling.order import Dispatcher

STRIKES = 2  # workers lost in a row with no implementation to blame


@dataclass(frozen=True)
class Place:
    """The GPU of a worker. `gpu`: its name in records; `shared` marks them."""

    name: str
    device: str = "cpu"
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: str = ""
    shared: str = ""

    @classmethod
    def on(cls, gpu: Gpu, shared: str = "") -> Place:
        """A place whose worker sees only this GPU, as cuda:0."""
        return cls(f"GPU {gpu.index}", "cuda:0", {"CUDA_VISIBLE_DEVICES": gpu.uuid}, gpu.short, shared)


@dataclass(frozen=True)
class _Left:
    """The last that is heard of a place."""

    place: str
    reason: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)


class Crew:
    """An executor over several places. Use as a context manager: it leaves no process behind."""

    def __init__(
        self, places: Sequence[Place], *, files: Mapping[str, Any] | None = None, patience: Patience | None = None,
        make_seat: Callable[..., Seat] = Seat, helpers: int | None = None, compiles: bool | None = None,
    ) -> None:  # fmt: skip
        """`helpers` a place compile beside it, as many as there are cores unless given; `compiles` says whether there is a compile phase:
        on GPUs, unless given."""
        if len({place.name for place in places}) != len(places):
            raise ValueError(f"places must differ in name, given {', '.join(place.name for place in places)}")
        self.places, self.helpers = list(places), helpers
        self.compiles = any(place.device != "cpu" for place in places) if compiles is None else compiles
        self._timeouts: Counter[str] = Counter()
        self._make = partial(make_seat, setup=own.setup(files), patience=patience, timeouts=self._timeouts)
        self.looks = not files  # a user's files are looked at by workers of their own, which know nothing else
        self.seats = [self._seat(place) for place in self.places]
        self._stop = threading.Event()
        self._ending: threading.Thread | None = None

    def _seat(self, place: Place) -> Seat:
        greetings = {} if place.device == "cpu" else {"greet": place.gpu if place.gpu.startswith("GPU") else ""}
        return self._make(place.device, environment=place.environment, greetings=greetings, facts={})

    def start(self) -> Told | None:
        """Starts all workers at once. Returns the first one's facts and backends; None if the crew has a user's files. Every worker probes,
        since it has to import all backends anyway.

        Raises WorkerLost if none starts; one that does not start is tried again with its first job."""
        lost: list[WorkerLost] = []

        def begin(seat: Seat) -> Told | None:
            try:
                worker = seat.start()
                return looked(worker) if self.looks else None
            except WorkerLost as error:
                seat.kill()
                lost.append(error)
                return None

        with ThreadPoolExecutor(len(self.seats)) as pool:
            told = list(pool.map(begin, self.seats))
        if len(lost) == len(self.seats):
            raise lost[0]
        return next((found for found in told if found is not None), None)

    def __call__(
        self, jobs: Sequence[Job], device: str, *, setup: Callable[[], None] | None = None, facts: Mapping[str, Any] | None = None,
        on_limits: Callable[[dict[str, float]], None] | None = None,
    ) -> Iterator[Event]:  # fmt: skip
        """As `run_jobs`; `setup` is that of the files the crew was made with. Raises Stranded where every place was left."""
        if not jobs:
            return
        for seat, place in zip(self.seats, self.places, strict=True):
            seat.facts = {**(facts or {}), "gpu": place.gpu, "shared": place.shared}
        try:
            if self.compiles:
                yield from self._compiled(jobs)
            yield from self._timed(Dispatcher(jobs), on_limits)
        finally:
            self._stop.set()
            self._ending = threading.Thread(target=kill_all, args=(self.seats,))  # waited for by `kill`: there is a table to print
            self._ending.start()

    def _compiled(self, jobs: Sequence[Job]) -> Iterator[Event]:
        found = units(jobs)
        processes = 0

        def helper(seat: Seat) -> Seat:
            nonlocal processes
            processes += 1
            return self._seat(self.places[self.seats.index(seat)])

        seconds = 0.0
        for built in compile_all(self.seats, helper, found, self.helpers):
            seconds = built.seconds
            yield Event(jobs[0], turn=("", str(built)))
        told = {"kind": "compiled", "kernels": len(found), "processes": processes + len(self.seats), "seconds": round(seconds, 3)}
        yield Event(jobs[0], phase=told)

    def _timed(self, dispatcher: Dispatcher, on_limits: Callable[[dict[str, float]], None] | None) -> Iterator[Event]:
        said = SimpleQueue[Event | _Left]()
        threads = [threading.Thread(target=self._sit, args=(place, seat, dispatcher, said), daemon=True)
                   for place, seat in zip(self.places, self.seats, strict=True)]  # fmt: skip
        for thread in threads:
            thread.start()
        left: list[_Left] = []
        try:
            while len(left) < len(threads):
                heard = said.get()
                if isinstance(heard, Event):
                    yield heard
                else:
                    left.append(heard)
        finally:
            self._stop.set()
            dispatcher.stop()
        if on_limits is not None and (limits := merged([leaver.limits for leaver in left])):
            on_limits(limits)
        if waiting := dispatcher.waiting:  # whoever had a job has put it back
            reasons = "; ".join(f"{leaver.place}: {leaver.reason}" for leaver in left if leaver.reason)
            raise Stranded(f"no GPU is left for {len(waiting)} workloads ({reasons})")

    def _sit(self, place: Place, seat: Seat, dispatcher: Dispatcher, said: SimpleQueue[Event | _Left]) -> None:
        strikes, reason = 0, ""
        job: Job | None = None
        try:
            while strikes < STRIKES and (job := dispatcher.take(place.name)) is not None:
                try:
                    for event in seat.run(job):
                        if self._stop.is_set():
                            return
                        said.put(replace(event, place=place.name, records=tuple(placed(place, r) for r in event.records)))
                    dispatcher.done(job)
                    strikes = 0
                except JobLost as lost:
                    strikes, reason, job = strikes + 1, lost.reason, None
                    if not dispatcher.lost(lost.job):
                        given_up = WorkerLost(
                            f"given up after {lost.reason}, the last of several workers", lost.lost.turn, lost.lost.timed_out
                        )
                        records = marked(lost.job, lost.job.implementations, given_up, seat.facts)
                        said.put(Event(lost.job, records=records, place=place.name))
            limits = {} if strikes else seat.limits()
            said.put(_Left(place.name, reason if strikes else "", limits))
        except BaseException as error:  # the queue must hear of it, or the run would wait for ever
            if job is not None:
                dispatcher.lost(job)
            said.put(_Left(place.name, f"{type(error).__name__}: {error}"))

    def kill(self) -> None:
        self._stop.set()
        kill_all(self.seats)
        if self._ending is not None:
            self._ending.join()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def placed(place: Place, record: Record) -> Record:
    """The record with its GPU, and without the rounds, which are not stored and are most of its size."""
    slim = slimmed(record)
    return replace(slim, gpu=place.gpu or slim.gpu, shared=place.shared)


def slimmed(record: Record) -> Record:
    kept = {name: replace(time, rounds=()) for name in ("kernel_cold_us", "kernel_capped_us", "kernel_warm_us", "launch_us", "call_us")
            if (time := getattr(record, name)) is not None}  # fmt: skip
    return replace(record, **kept)
