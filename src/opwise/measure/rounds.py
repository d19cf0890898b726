"""Order, number and state of the samples, and which are refused. Policy only, driven through the `Queue` of gpu.py.

A sample is mark, step, mark. A batch is a spin, then samples, then a wait: while the GPU spins, the CPU enqueues the whole batch, so the
GPU never waits for the CPU. A block is batches of one candidate. A round is one block of each candidate, in a random order, and the next
round in the mirrored order (ABBA), so that slow drift affects all alike.

Samples are taken in one of two states. Back to back, large products reach the power cap, and the clock drops. At full clock each sample is
followed by a rest, a spin of one thread; its length is the multiple of the sample's that keeps the clock at its highest: 0 for most
kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from .gpu import Launch, Queue
from .stats import TICK_US, median, median_interval, settled
from .watch import Look

Turn = Callable[[str], None]

SEED = 20201113  # of the orders: fixed, so that a run can be repeated as it was
BLOCK_US = 10_000.0  # 0.2 s a candidate are then 20 rounds: enough medians for a paired ratio, and drifts over 0.1 s cancel
PROOF_US = 4_000.0
FEWEST_PROOF = 3
BATCH = 32  # 4 entries a sample besides its own kernels: a batch fills less than half of the launch queue's 1024
MIN_ROUNDS = 6  # three mirrored pairs
MIN_SAMPLES = 30
FEWEST_SAMPLES = 10  # of kernels so slow that 30 pass the cap
BACKLOG = 1.5  # times the CPU time that enqueueing the batch was seen to take
LEAST_BACKLOG_US = 100.0  # what the CPU may lose to an interrupt or a page fault
FIRST_BACKLOG_US = 2_000.0  # before anything is known: one launch of the slowest launcher takes about 0.1 ms
MOST_BACKLOG_US = 50_000.0
RETRIES = 3  # of a batch that the GPU reached before it was enqueued, each behind twice the backlog of the one before
STARVED = 0.02  # rules: agreement with a backlog twice as long
STARVED_US = 0.5  # events resolve no better
FIRST_REST, MORE_REST, MOST_REST = 1.0, 1.6, 30.0  # times a sample's GPU time: from 1 on an H200 held its clock in all products tried
COOL_US, MOST_COOL_US = 5_000.0, 1_500_000.0  # after a power-capped load the clock is back within 0.2 s, and the driver says so 0.4 s later


class Witness(Protocol):
    """Called before and after each block of a candidate, with the GPU idle: to refill its buffers, and to see the results."""

    def before(self, name: str) -> None: ...

    def after(self, name: str) -> None: ...


class Refused(Exception):
    """A launch raised; the cause is its exception."""


@dataclass(eq=False)
class Course:
    """One candidate's measurement. A sample runs `step`, which is `launches` launches; times are kept per launch."""

    name: str
    step: Launch
    flushed: bool = False
    launches: int = 1
    blocks: list[list[float]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)  # one behind each block
    last: Look | None = None  # behind the last block, kept or not
    wall_us: float = 0.0  # what a sample takes, flush, rest and its share of the spin included
    busy_us: float = 0.0  # what its step keeps the GPU busy
    cpu_us: float = 0.0  # what enqueueing a sample takes
    stretch: float = 1.0  # of the backlog
    starved: str = ""
    late: int = 0  # batches that the GPU reached before they were enqueued, even behind the longest backlog

    def again(self) -> Course:
        """The same candidate without samples."""
        return replace(self, blocks=[], looks=[], last=None)

    @property
    def tick_us(self) -> float:
        """The resolution of the events' clock, divided by a sample's launches."""
        return TICK_US / self.launches

    @property
    def samples(self) -> list[float]:
        return [x for block in self.blocks for x in block]

    @property
    def capped(self) -> bool:
        """Returns whether most of its blocks ran below the highest clock."""
        return 2 * sum(not look.full for look in self.looks) > len(self.looks)


@dataclass(frozen=True)
class Pace:
    """Durations: `warm_up_s` for all candidates together; per candidate at least `least_s` and at most about `most_s`."""

    warm_up_s: float
    least_s: float
    most_s: float

    @property
    def block_us(self) -> float:
        return min(BLOCK_US, self.least_s * 1e6 / MIN_ROUNDS)


class Rounds:
    """Takes the samples. `refuse(name, error)` is called for a candidate whose launch raised; it is then excluded. `rest`: after each
    sample, as a multiple of its GPU time, the same for all candidates."""

    def __init__(
        self, queue: Queue, turn: Turn, refuse: Callable[[str, BaseException], None], look: Callable[[], Look],
        witness: Witness | None = None,
    ) -> None:  # fmt: skip
        self.queue, self.turn, self.refuse, self.look, self.witness = queue, turn, refuse, look, witness
        self.rest = 0.0

    def back_to_back(self, courses: Sequence[Course], pace: Pace) -> list[Course]:
        """Fills the courses' blocks, the same number for each, whatever the clock does; returns those that were not refused."""
        live, orders = list(courses), mirrored_orders(len(courses))
        self.rest = 0.0
        self._begin(live, orders, pace)
        enough = self._enough(pace)
        while live and not enough(live):
            self._round(live, courses, next(orders), pace.block_us, keep=True)
        return live

    def at_full_clock(self, courses: Sequence[Course], pace: Pace) -> list[Course] | None:
        """The same with the clock at its highest after every block. Afterwards `rest` holds the rest that was needed: 0 if the clock stayed
        up in the warm-up and in all rounds. None if no rest is long enough."""
        live, orders = list(courses), mirrored_orders(len(courses))
        self.rest = 0.0
        self._cool()
        self._begin(live, orders, pace)
        if any(course.last is not None and not course.last.full for course in live):
            self.rest = FIRST_REST
        while not self._held(live, courses, orders, pace):
            if self.rest >= MOST_REST:
                return None
            self.rest = self.rest * MORE_REST or FIRST_REST
        return live

    def _held(self, live: list[Course], courses: Sequence[Course], orders: Iterator[Sequence[int]], pace: Pace) -> bool:
        """Samples with this rest. A round is kept where the clock is at its highest before it and behind each of its blocks; False where
        more than a stray one is not."""
        for course in live:
            course.blocks, course.looks = [], []
        if self.rest:
            self._cool()
        enough, kept, dropped, full = self._enough(pace), 0, 0, True
        while live and not enough(live):
            self._round(live, courses, next(orders), pace.block_us, keep=True)
            before, full = full, all(course.looks[-1].full for course in live)
            if before and full:
                kept += 1
                continue
            for course in live:
                del course.blocks[-1], course.looks[-1]
            dropped += 1
            if not self.rest or dropped > 2 + kept // 4:
                return False
        return True

    def _cool(self) -> None:
        """Spins until the clock is at its highest and the driver has no power reason left, or for as long as that could take."""
        began = self.queue.now_us()
        while not self.look().full and self.queue.now_us() - began < MOST_COOL_US:
            self.queue.spin(COOL_US)
            self.queue.wait()

    def _begin(self, live: list[Course], orders: Iterator[Sequence[int]], pace: Pace) -> None:
        """The warm-up, and the proof that the backlog is long enough."""
        courses, began = list(live), self.queue.now_us()
        while live and not (self.queue.now_us() - began >= pace.warm_up_s * 1e6 and all(c.wall_us for c in live)):
            self._round(live, courses, next(orders), pace.block_us, keep=False)
        for course in list(live):
            self._guarded(live, course, lambda course=course: self._prove(course))  # type: ignore[misc]

    def _enough(self, pace: Pace) -> Callable[[list[Course]], bool]:
        """Time passes for all candidates together: their samples are spread over the whole of it."""
        began = self.queue.now_us()

        def enough(live: list[Course]) -> bool:
            rounds, fewest = min(len(c.blocks) for c in live), min(len(c.samples) for c in live)
            if rounds < MIN_ROUNDS or fewest < FEWEST_SAMPLES:
                return False
            passed = (self.queue.now_us() - began) / len(live)
            if passed >= pace.most_s * 1e6:
                return True
            return (
                passed >= pace.least_s * 1e6
                and fewest >= MIN_SAMPLES
                and all(settled(*median_interval(c.samples), c.tick_us) for c in live)
            )

        return enough

    def _round(self, live: list[Course], courses: Sequence[Course], order: Sequence[int], block_us: float, *, keep: bool) -> None:
        for course in [courses[i] for i in order]:
            if course in live:
                self._guarded(live, course, lambda course=course: self._block(course, block_us, keep))  # type: ignore[misc]

    def _guarded(self, live: list[Course], course: Course, work: Callable[[], None]) -> None:
        self.turn(course.name)
        try:
            work()
        except Refused as refused:
            self.queue.wait()  # where the launch broke the GPU itself this raises: no later figure would mean anything
            live.remove(course)
            self.refuse(course.name, refused.__cause__ or refused)

    def _block(self, course: Course, block_us: float, keep: bool) -> None:
        samples: list[float] = []
        if self.witness is not None:
            self.witness.before(course.name)
        left = max(1, int(block_us / course.wall_us)) if course.wall_us else 1
        while left > 0:
            count = min(left, BATCH)
            samples += self.batch(course, count)
            left -= count
        course.last = self.look()  # the GPU is idle now, its clock still that of the last kernel
        if keep:
            course.blocks.append(samples)
            course.looks.append(course.last)
        if self.witness is not None:
            self.witness.after(course.name)

    def batch(self, course: Course, count: int, backlog_factor: float = 1.0) -> list[float]:
        """Launch times of one batch, in us. Taken again, behind twice the backlog, if the GPU reached it too early."""
        for retry in range(RETRIES + 1):
            began = self.queue.now_us()
            times, in_time = self._batch_once(course, count, backlog_factor * 2**retry)
            course.wall_us = (self.queue.now_us() - began) / count
            course.busy_us = median(times) * course.launches
            if in_time:
                return times
        course.late += 1
        return times

    def probe_us(self, launches: Sequence[Launch]) -> float:
        """Approximate GPU time of one of these launches, back to back; used to size graphs and blocks, never reported."""

        def step() -> None:
            for launch in launches:
                launch()

        course = Course("", step, launches=len(launches))
        return max(min(self.batch(course, 1)[0] for _ in range(2)), 0.1)

    def _batch_once(self, course: Course, count: int, backlog_factor: float) -> tuple[list[float], bool]:
        queue, step = self.queue, course.step
        expected = BACKLOG * count * course.cpu_us if course.cpu_us else FIRST_BACKLOG_US
        queue.spin(min(max(expected, LEAST_BACKLOG_US) * course.stretch * backlog_factor, MOST_BACKLOG_US))
        gate = queue.mark()
        began = queue.now_us()
        marks = []
        try:
            for _ in range(count):
                if course.flushed:
                    queue.flush()
                start = queue.mark()
                step()
                marks.append((start, queue.mark()))
                if self.rest:
                    queue.spin(self.rest * course.busy_us)
        except Exception as error:
            raise Refused from error
        in_time = not queue.reached(gate)
        course.cpu_us = max((queue.now_us() - began) / count, 0.9 * course.cpu_us)  # forgets a slow batch in a few
        queue.wait()
        return [queue.elapsed_us(start, end) / course.launches for start, end in marks], in_time

    def _prove(self, course: Course) -> None:
        """Rules: the same with a backlog twice as long must agree. Starving only ever adds time, so only a faster answer behind the
        longer backlog speaks against the shorter one. The backlog is enlarged once; then the candidate is marked."""
        count = min(max(FEWEST_PROOF, int(PROOF_US / course.wall_us)), BATCH)
        for _ in range(2):
            short = median(self.batch(course, count))
            long = median(self.batch(course, count, backlog_factor=2.0))
            if short - long <= max(STARVED * long, STARVED_US / course.launches):
                return
            course.stretch *= 2
        course.starved = f"starved: {short:.2f} us, {long:.2f} us behind twice the backlog"


def mirrored_orders(count: int) -> Iterator[Sequence[int]]:
    """Random orders of `count` candidates from a fixed seed, each followed by its mirror image."""
    rng = np.random.default_rng(SEED)
    while True:
        order = [int(i) for i in rng.permutation(count)]
        yield order
        yield order[::-1]
