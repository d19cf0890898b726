"""The compile phase: before any GPU is timed, processes on many cores build every kernel once and leave it in the compilers' caches.

They need the GPU too, since a kernel is built for its GPU. A backend's first unit is built alone, while others start: one backend compiles
a whole extension there, whose lock others would wait for. If the caches are full, the GPUs' own workers load everything faster than another
process starts; helpers start only if that is too slow."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import NamedTuple

from opwise.runner.prepare import Unit
from opwise.runner.seat import Seat
from opwise.runner.supervisor import WorkerLost

MOST_HELPERS = 6  # a GPU: each has a CUDA context of half a GiB, and the largest inputs
LOOK_AFTER_S = 1.5  # before this the pace says nothing: a worker's first unit of a backend sets its library up
HELPED_S = 5.0  # what helpers cost, coming and going, when 24 of them want torch, a context and every backend at once
NAMED_AFTER_S = 20.0  # a unit that takes longer is named on the terminal: it may hang


class Built(NamedTuple):
    """Progress: units done, all units, seconds so far, and slow units."""

    done: int
    total: int
    seconds: float
    waits: str = ""

    def __str__(self) -> str:
        return f"compiling: {self.done} of {self.total}{self.waits}"


def late(begun: Mapping[Unit, float], now: float) -> list[Unit]:
    """Of `begun`, those that began long ago, the earliest first."""
    return sorted((unit for unit in begun if now - begun[unit] >= NAMED_AFTER_S), key=begun.__getitem__)


def waits(begun: Mapping[Unit, float], now: float) -> str:
    """Names those of `begun` that began long ago; "" if none."""
    if not (found := late(begun, now)):
        return ""
    return f", {now - begun[found[0]]:.0f} s for {found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}"


class UnitQueue:
    """Hands out units, the first of each backend before all its others. While one takes long, it may hang, and no other of its
    implementation is begun."""

    def __init__(self, found: Sequence[Unit]) -> None:
        self._waiting: dict[str, deque[Unit]] = {}
        for unit in found:
            self._waiting.setdefault(unit.backend, deque()).append(unit)
        self._begun: set[str] = set()
        self._led: set[str] = set()
        self._under_way: dict[Unit, float] = {}  # since when
        self._changed = threading.Condition()

    def take(self, wait: bool = True) -> Unit | None:
        """The next unit. None if none is left; without `wait` also if the rest wait for their backend's first."""
        with self._changed:
            while any(self._waiting.values()):
                if (unit := self._next()) is not None:
                    self._waiting[unit.backend].remove(unit)
                    self._begun.add(unit.backend)
                    self._under_way[unit] = time.perf_counter()
                    return unit
                if not wait:
                    return None
                self._changed.wait()
            return None

    def _next(self) -> Unit | None:
        suspected = {unit.implementation for unit in late(self._under_way, time.perf_counter())}
        for backend, units in self._waiting.items():
            if backend in self._led or backend not in self._begun:
                for unit in units:
                    if unit.implementation not in suspected:
                        return unit
        return None

    @property
    def under_way(self) -> dict[Unit, float]:
        """Units being built -> start, by time.perf_counter."""
        with self._changed:
            return dict(self._under_way)

    @property
    def left(self) -> int:
        """Units that have not been begun."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def stop(self) -> None:
        """Hands out no more units."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def drop(self, implementation: str) -> list[Unit]:
        """Drops the remaining units of an implementation that hung, so that the run waits for it only once here; its cells build them."""
        with self._changed:
            dropped = [unit for units in self._waiting.values() for unit in units if unit.implementation == implementation]
            for unit in dropped:
                self._waiting[unit.backend].remove(unit)
            return dropped

    def done(self, unit: Unit) -> None:
        """Ends a unit, built or not: a failed build must not hold back its backend's other units."""
        with self._changed:
            self._led.add(unit.backend)
            self._under_way.pop(unit, None)
            self._changed.notify_all()


def helpers_for(gpus: int, units: int) -> int:
    """Number of helper processes per GPU, by cores and work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(MOST_HELPERS, cores // gpus - 1, -(-units // gpus) - 1))


def slow(done: int, left: int, seconds: float) -> bool:
    """Returns whether, after `done` units in so many seconds, the `left` ones will take longer than helpers need to start and end."""
    return left > 0 and seconds >= LOOK_AFTER_S and seconds * left > HELPED_S * done


def compile_all(
    seats: Sequence[Seat], helper: Callable[[Seat], Seat], found: Sequence[Unit], helpers: int | None = None
) -> Iterator[Built]:
    """Builds all units in the seats' own workers and, if they are slow, in `helpers` more per seat, which end before it does. Yields
    progress. A worker lost over a unit is replaced, and the unit left to its own cell; if it hung, the other units of its implementation
    too."""
    began = time.perf_counter()
    queue, said = UnitQueue(found), SimpleQueue[Unit | None]()
    count = helpers_for(len(seats), len(found)) if helpers is None else helpers
    at_work: list[tuple[threading.Thread, Seat]] = []
    stop = threading.Event()

    def work(seat: Seat) -> None:
        try:
            while not stop.is_set():
                try:
                    worker = seat.start()  # before a unit is taken: a helper that cannot start costs nobody anything
                except WorkerLost:
                    return
                if (unit := queue.take()) is None:
                    return
                try:
                    worker.ask("prepare", unit, seat.patience)
                except WorkerLost as lost:
                    seat.kill()
                    for dropped in queue.drop(unit.implementation) if lost.timed_out else ():
                        said.put(dropped)
                finally:
                    queue.done(unit)
                    said.put(unit)
        finally:
            said.put(None)

    def call(more: Sequence[Seat]) -> int:
        fresh = [(threading.Thread(target=work, args=(seat,), daemon=True), seat) for seat in more]
        at_work.extend(fresh)
        for thread, _ in fresh:
            thread.start()
        return len(fresh)

    done, left = 0, call(seats)
    try:
        while done < len(found) and left:
            try:
                unit = said.get(timeout=LOOK_AFTER_S)
                done, left = (done, left - 1) if unit is None else (done + 1, left)
            except Empty:  # time to look again
                unit = None
            now = time.perf_counter()
            named = waits(queue.under_way, now)
            if unit is not None or named:
                yield Built(done, len(found), now - began, named)
            if count and slow(done, queue.left, time.perf_counter() - began):
                left += call([helper(seat) for seat in seats for _ in range(count)])
                count = 0
    finally:
        stop.set()
        queue.stop()
        kept = len(seats) if done == len(found) else 0  # whoever stops early waits for no build
        for thread, _ in at_work[:kept]:
            thread.join()
        if gone := at_work[kept:]:
            with ThreadPoolExecutor(len(gone)) as pool:
                list(pool.map(_end, gone))


def _end(pair: tuple[threading.Thread, Seat]) -> None:
    thread, seat = pair
    seat.kill()
    while thread.is_alive():  # it may be at the start of a worker
        thread.join(0.05)
        seat.kill()
