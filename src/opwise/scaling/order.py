"""The order of jobs: the longest first, so that all GPUs finish together; jobs that share measured roofs stay on one GPU.

Each GPU measures the roofs that its own workloads need. Jobs that need the same ones are a bundle: a GPU takes the bundle with the most
work, job by job, and helps with others' if none is left. The last few jobs are divided so that all finish together, including roofs that a
GPU has not measured yet. A job whose worker was lost comes first again, at most twice."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from opwise.measure.limits import peak_counts
from opwise.ops import OPS
from opwise.runner.jobs import Job

AGAIN = 2  # times that a lost job is run again
# Seconds of one implementation, fitted to what the jobs of seven core runs took on H200s, roofs apart. Most is the clock's own time, and
# longest for products that the power cap holds back, whose times do not settle. The rest is the checks', of every element written.
BASE_S, BRIEF_S, ELEMENT_S = 0.51, 0.2, 1e-9
SLOWER_S = {"mean": 0.06}
CAPPED_FLOPS, CAPPED_S = 5e9, 0.27  # on tensor cores, from so many flops on
FLOP_S = 1.5e-12  # of plain float32
ROOF_S = 0.35  # of copying, reading or writing a number of bytes in several ways
PEAK_S = 1.0
LAUNCH_US = 3.0  # about
LAST = 20  # jobs that are divided: played with the core set on 2 to 8 GPUs, more of them cost more roofs than they gain


def estimate_s(job: Job) -> float:
    """Estimated seconds without roofs. Determines only the order and the progress bar."""
    workload = job.workload
    cost = OPS[workload.op].cost(workload)
    seconds = BRIEF_S if job.brief else BASE_S + SLOWER_S.get(workload.op, 0.0)
    seconds += cost.write_bytes / workload.torch_dtype.itemsize * ELEMENT_S
    if _is_product(job) and cost.unit == "fma":
        seconds += cost.flops * FLOP_S
    elif _is_product(job) and cost.flops > CAPPED_FLOPS and not job.brief:
        seconds += CAPPED_S
    return len(job.implementations) * seconds


def _is_product(job: Job) -> bool:
    """Can arithmetic be its limit?"""
    cost = OPS[job.workload.op].cost(job.workload)
    return peak_counts(cost.flops, cost.bytes, LAUNCH_US)


def roofs(job: Job) -> dict[Hashable, float]:
    """Roofs to measure for the workload on a GPU that has not measured them -> approximate seconds."""
    cost = OPS[job.workload.op].cost(job.workload)
    return {cost.bytes: ROOF_S, **({cost.unit: PEAK_S} if _is_product(job) else {})}


def bundle(job: Job) -> Hashable:
    """The key of jobs that need the same roofs: the element size for products (float16 with bfloat16, float32 with TF32), the bytes for
    other ops."""
    if _is_product(job):
        return f"products of {job.workload.torch_dtype.itemsize} bytes"
    return OPS[job.workload.op].cost(job.workload).bytes


def division(
    free: Sequence[float],
    seconds: Sequence[float],
    asked: Sequence[Mapping[Hashable, float]],
    known: Sequence[Collection[Hashable]],
) -> list[int]:
    """For each job, longest first, the place that takes it, so that the last of those who are `free` at these times finishes early. A place
    takes the jobs' `seconds`, plus once those of each roof that its jobs have `asked` for and that it has not `known`. A job goes to where
    it finishes first; then, while it helps, the last place to finish gives one away, or exchanges one."""

    def end(place: int, jobs: Sequence[int]) -> float:
        missing = {roof: took for job in jobs for roof, took in asked[job].items() if roof not in known[place]}
        return free[place] + sum(seconds[job] for job in jobs) + sum(missing.values())

    places = range(len(free))
    taken: list[list[int]] = [[] for _ in places]
    for job in range(len(seconds)):
        taken[min(places, key=lambda place: end(place, [*taken[place], job]))].append(job)
    ends = [end(place, taken[place]) for place in places]
    while True:
        last = max(places, key=ends.__getitem__)
        changes = []
        for given in taken[last]:
            kept = [job for job in taken[last] if job != given]
            for other in places:
                for back in ([], *([job] for job in taken[other])) if other != last else ():
                    mine, theirs = kept + back, [job for job in taken[other] if job not in back] + [given]
                    changes.append((max(end(last, mine), end(other, theirs)), other, mine, theirs))
        if not changes or (best := min(changes, key=lambda change: change[0]))[0] > ends[last] - 0.01:
            return [next(place for place in places if job in taken[place]) for job in range(len(seconds))]
        _, other, taken[last], taken[other] = best
        ends[last], ends[other] = end(last, taken[last]), end(other, taken[other])


class Dispatcher:
    """Hands out jobs; thread-safe. A job is one workload, and is identified by it."""

    def __init__(self, jobs: Sequence[Job], clock: Callable[[], float] = time.monotonic) -> None:
        bundles: dict[Hashable, list[Job]] = defaultdict(list)
        for job in jobs:
            bundles[bundle(job)].append(job)
        self._weights = {str(job.workload): estimate_s(job) for job in jobs}
        self._bundles = {key: deque(sorted(found, key=self._weight, reverse=True)) for key, found in bundles.items()}
        self._left = {key: sum(map(self._weight, found)) for key, found in self._bundles.items()}
        self._unopened = deque(sorted(self._bundles, key=lambda key: self._left[key], reverse=True))
        self._mine: dict[str, Hashable] = {}
        self._clock = clock
        self._known: dict[str, set[Hashable]] = defaultdict(set)  # place -> roofs that its jobs asked for
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
        """Returns whether every job is done or given up."""
        with self._changed:
            return not self._open

    @property
    def waiting(self) -> list[Job]:
        """Jobs that no place works on."""
        with self._changed:
            return [*self._again, *(job for found in self._bundles.values() for job in found)]

    def take(self, place: str, wait: bool = True) -> Job | None:
        """The next job for a place. None if nothing is left; without `wait` also if others are working on the last."""
        with self._changed:
            while True:
                if self._stopped:
                    return None
                if (job := self._next(place)) is not None:
                    asked = roofs(job)
                    missing = asked.keys() - self._known[place]
                    self._free_at[place] = self._clock() + self._weight(job) + sum(asked[name] for name in missing)
                    self._known[place] |= missing
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
        free = [now, *(max(now, self._free_at[other]) for other in places[1:])]
        takers = division(free, [self._weight(job) for job in left], [roofs(job) for job in left], [self._known[each] for each in places])
        job = left[takers.index(0) if 0 in takers else -1]
        self._bundles[bundle(job)].remove(job)
        self._left[bundle(job)] -= self._weight(job)
        return job

    def done(self, job: Job) -> bool:
        """Marks a job as done; False if it was done already, so this result is a duplicate."""
        with self._changed:
            first = str(job.workload) in self._open
            self._open.discard(str(job.workload))
            self._changed.notify_all()
            return first

    def lost(self, job: Job) -> bool:
        """Puts the rest of a lost job back; False if it was lost too often and is given up, or was done by another meanwhile."""
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
        """Hands out no more jobs."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
