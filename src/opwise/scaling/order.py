"""Who does which job next: the longest first, so that all finish together; what shares a measured roof stays on one GPU.

Each GPU measures the roofs that its own workloads ask for. Jobs that ask for the same one are a bundle: a GPU takes the bundle with the
most work, carries it out job by job, and helps others with theirs where no bundle is left. The last few jobs are divided so that all
finish together. A job whose worker was lost comes first again, at most twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence

from opwise.measure.limits import peak_counts
from opwise.ops import OPS
from opwise.runner.jobs import Job

AGAIN = 2  # times that a lost job is run again
# Seconds of one implementation, fitted to what the core run took on H200s: most is the clock's own time, which is shorter where samples
# scatter less, the rest is the checks'.
BASE_S, BRIEF_S, BYTE_S = 0.63, 0.2, 1e-10
QUICKER_S = {"softmax": 0.13, "square": 0.1, "gelu": 0.08}
FLOP_S = {"fma": 1.8e-12}  # of plain float32; the others are tensor cores'
TENSOR_FLOP_S = 4e-13
LAUNCH_US = 3.0  # about
LAST = 14  # jobs that are divided: played with the core set on 2 to 8 GPUs, more of them cost more roofs than they gain


def estimate_s(job: Job) -> float:
    """Only the order follows from it, and how far a progress bar is."""
    cost = OPS[job.workload.op].cost(job.workload)
    flops_s = cost.flops * FLOP_S.get(cost.unit, TENSOR_FLOP_S)
    base_s = BRIEF_S if job.brief else BASE_S - QUICKER_S.get(job.workload.op, 0.0)
    return len(job.implementations) * (base_s + cost.bytes * BYTE_S + flops_s)


def roof(job: Job) -> Hashable:
    """What names the dearest roof that is measured for the workload: a unit's peak takes a second, copying its bytes a third of that."""
    cost = OPS[job.workload.op].cost(job.workload)
    return cost.unit if peak_counts(cost.flops, cost.bytes, LAUNCH_US) else cost.bytes


def division(free: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """For each job, longest first, who takes it, so that the last to finish of those who are `free` at these times is early. Each goes to
    whoever is free first; then, while it helps, the last to finish gives a job away, or changes one for another's."""
    load, takers = list(free), []
    for each in seconds:
        takers.append(min(range(len(load)), key=load.__getitem__))
        load[takers[-1]] += each
    while True:
        last = max(range(len(load)), key=load.__getitem__)
        back = [(None, 0.0, other) for other in range(len(load)) if other != last]
        back += [(k, each, takers[k]) for k, each in enumerate(seconds) if takers[k] != last]  # type: ignore[misc]
        changes = [(max(load[last] - each + less, load[other] + each - less), i, k, other)
                   for i, each in enumerate(seconds) if takers[i] == last for k, less, other in back]  # fmt: skip
        if not changes or (best := min(changes, key=lambda change: change[0]))[0] > load[last] - 0.01:
            return takers
        _, given, taken, other = best
        moved = seconds[given] - (0.0 if taken is None else seconds[taken])
        load[last], load[other], takers[given] = load[last] - moved, load[other] + moved, other
        if taken is not None:
            takers[taken] = last


class Dispatcher:
    """Hands out jobs; may be asked from many threads. A job is one workload, and is known by it."""

    def __init__(self, jobs: Sequence[Job], clock: Callable[[], float] = time.monotonic) -> None:
        bundles: dict[Hashable, list[Job]] = defaultdict(list)
        for job in jobs:
            bundles[roof(job)].append(job)
        self._weights = {str(job.workload): estimate_s(job) for job in jobs}
        self._bundles = {key: deque(sorted(found, key=self._weight, reverse=True)) for key, found in bundles.items()}
        self._left = {key: sum(map(self._weight, found)) for key, found in self._bundles.items()}
        self._unopened = deque(sorted(self._bundles, key=lambda key: self._left[key], reverse=True))
        self._mine: dict[str, Hashable] = {}
        self._clock = clock
        self._free_at: dict[str, float] = {}  # place -> when it will have done what it was given
        self._again: deque[Job] = deque()
        self._lost: Counter[str] = Counter()
        self._open = {str(job.workload) for job in jobs}  # handed out or waiting
        self._changed = threading.Condition()
        self._stopped = False

    def _weight(self, job: Job) -> float:
        return self._weights[str(job.workload)]

    @property
    def finished(self) -> bool:
        """Is every job done or given up?"""
        with self._changed:
            return not self._open

    @property
    def waiting(self) -> list[Job]:
        """What nobody is at work on."""
        with self._changed:
            return [*self._again, *(job for found in self._bundles.values() for job in found)]

    def take(self, place: str, wait: bool = True) -> Job | None:
        """The next job for a place. None where nothing is left to do, ever; without `wait` also where others are at work on the last."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                if (job := self._next(place)) is not None:
                    self._free_at[place] = self._clock() + self._weight(job)
                    return job
                if not self._open or not wait:
                    return None
                self._changed.wait()

    def _next(self, place: str) -> Job | None:
        if self._again:
            return self._again.popleft()
        if (left := sum(map(len, self._bundles.values()))) <= LAST:
            return self._of_the_last(place) if left else None
        key = self._mine.get(place)
        if key is None or not self._bundles[key]:
            if self._unopened:
                key = self._unopened.popleft()
            else:
                key = max((k for k, found in self._bundles.items() if found), key=lambda k: self._left[k], default=None)
            if key is None:
                return None
            self._mine[place] = key
        job = self._bundles[key].popleft()
        self._left[key] -= self._weight(job)
        return job

    def _of_the_last(self, place: str) -> Job:
        """Never none, as long as there is one: who was to take it may be gone."""
        left = sorted((job for found in self._bundles.values() for job in found), key=self._weight, reverse=True)
        now = self._clock()
        places = [place, *(other for other in self._free_at if other != place)]
        takers = division([now, *(max(now, self._free_at[other]) for other in places[1:])], [self._weight(job) for job in left])
        job = left[takers.index(0) if 0 in takers else -1]
        self._bundles[roof(job)].remove(job)
        self._left[roof(job)] -= self._weight(job)
        return job

    def done(self, job: Job) -> bool:
        """False where the job was done already: what comes now is a duplicate."""
        with self._changed:
            first = str(job.workload) in self._open
            self._open.discard(str(job.workload))
            self._changed.notify_all()
            return first

    def lost(self, job: Job) -> bool:
        """Puts what is left of a lost job back; False where it was lost too often and is given up, or was done by another meanwhile."""
        name = str(job.workload)
        with self._changed:
            self._lost[name] += 1
            again = name in self._open and self._lost[name] <= AGAIN
            if again:
                self._again.append(job)
            else:
                self._open.discard(name)
            self._changed.notify_all()
            return again

    def stop(self) -> None:
        """Nobody gets another job."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
