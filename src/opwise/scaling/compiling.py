"""The compile phase: before any GPU is timed, processes on many cores build every kernel once and leave it in the compilers' caches.

They need the GPU too, since a kernel is built for the one it will run on. A backend's first unit is built alone, while the others are
begun: one of them compiles a whole extension there, and whoever came with it would wait for its lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from opwise.runner.prepare import Unit
from opwise.runner.seat import Seat
from opwise.runner.supervisor import WorkerLost

MOST_HELPERS = 6  # a GPU: each has a CUDA context of half a GiB, and the largest inputs


class UnitQueue:
    """Hands out units, the first of each backend before all others of it."""

    def __init__(self, found: Sequence[Unit]) -> None:
        self._waiting: dict[str, deque[Unit]] = {}
        for unit in found:
            self._waiting.setdefault(unit.backend, deque()).append(unit)
        self._begun: set[str] = set()
        self._led: set[str] = set()
        self._changed = threading.Condition()

    def take(self, wait: bool = True) -> Unit | None:
        """None where no unit is left to hand out; without `wait` also where what is left waits for its backend's first."""
        with self._changed:
            while any(self._waiting.values()):
                for backend, units in self._waiting.items():
                    if units and (backend in self._led or backend not in self._begun):
                        self._begun.add(backend)
                        return units.popleft()
                if not wait:
                    return None
                self._changed.wait()
            return None

    def stop(self) -> None:
        """Nobody gets another unit."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def done(self, unit: Unit) -> None:
        """However it ended: a backend that cannot be built must not keep its other units back."""
        with self._changed:
            self._led.add(unit.backend)
            self._changed.notify_all()


def helpers_for(gpus: int, units: int) -> int:
    """Processes a GPU beside its own worker: as many as there are cores, and work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(MOST_HELPERS, cores // gpus - 1, -(-units // gpus) - 1))


def compile_all(
    seats: Sequence[Seat], helper: Callable[[Seat], Seat], found: Sequence[Unit], helpers: int | None = None
) -> Iterator[tuple[int, int, float]]:
    """Builds all units in the seats' own workers and in `helpers` more a seat, which are gone when it ends. Yields (units done, all,
    seconds so far) as they are finished. A worker that is lost over a unit is replaced, and the unit left to its own cell."""
    began = time.perf_counter()
    queue, said = UnitQueue(found), SimpleQueue[Unit | None]()
    count = helpers_for(len(seats), len(found)) if helpers is None else helpers
    crews = [*seats, *(helper(seat) for seat in seats for _ in range(count))]
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
                except WorkerLost:
                    seat.kill()
                finally:
                    queue.done(unit)
                    said.put(unit)
        finally:
            said.put(None)

    threads = [threading.Thread(target=work, args=(seat,), daemon=True) for seat in crews]
    for thread in threads:
        thread.start()
    done, left = 0, len(threads)
    try:
        while done < len(found) and left:
            unit = said.get()
            done, left = (done, left - 1) if unit is None else (done + 1, left)
            if unit is not None:
                yield done, len(found), time.perf_counter() - began
    finally:
        stop.set()
        queue.stop()
        kept = len(seats) if done == len(found) else 0  # whoever stops early waits for no build
        for thread in threads[:kept]:
            thread.join()
        for thread, seat in zip(threads[kept:], crews[kept:], strict=True):
            seat.kill()
            while thread.is_alive():  # it may be at the start of a worker
                thread.join(0.05)
                seat.kill()
