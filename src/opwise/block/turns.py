"""Times a block and reads its clock and energy: candidates in short turns. Policy only, driven through gpu.Queue.

A turn is a lead-in of the candidate's own replays, so that it sets clock and power, then a stretch between two events. Meanwhile the CPU
reads clock, temperature and NVML's energy counter. Turns go in mirrored random orders, so that temperature favours none. Power is the slope
of the energy counter inside the stretch (measure/power.py)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opwise.measure.device import State
from opwise.measure.gpu import Launch, Queue
from opwise.measure.power import LOOK_S, Instruments, power_w
from opwise.measure.rounds import mirrored_orders
from opwise.measure.stats import median, median_interval, paired, settled
from opwise.record import Interval

GRAPH_US = 10_000.0  # blocks are unrolled into one graph until it takes this long: the GPU never waits for the next replay
MOST_UNROLLED = 100
MIN_ROUNDS = 6
SHARE_BLOCKS = 4  # all their launches and marks stand in the launch queue, of 1024 entries, behind the replays
SHARE_ROUNDS = 6


@dataclass(frozen=True)
class Pace:
    """Durations in seconds. `total_s`: of a candidate, lead-ins included; `warm_up_s`: of all together, in turns."""

    total_s: float = 6.0
    warm_up_s: float = 2.0
    lead_s: float = 0.2
    stretch_s: float = 0.3


@dataclass(frozen=True)
class Stretch:
    """us of one block, and what the instruments read meanwhile; None where they read nothing."""

    block_us: float
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def joules(self) -> float | None:
        return None if self.power_w is None else self.power_w * self.block_us / 1e6


@dataclass(eq=False)
class Course:
    """One candidate's measurement. `steps`: the block's launches by name; `replay` runs `blocks` blocks from a graph.

    `refused`: why it was excluded, "" otherwise."""

    name: str
    steps: Mapping[str, Launch]
    replay: Launch = lambda: None
    blocks: int = 1
    replay_us: float = 1.0
    stretches: list[Stretch] = field(default_factory=list)
    steps_us: dict[str, list[float]] = field(default_factory=dict)
    refused: str = ""

    def run(self) -> None:
        """One block, launch by launch."""
        for launch in self.steps.values():
            launch()


class Turns:
    """Takes the turns. `before(name)` fills the buffers with nan, on the queue; `after(name)` returns what is wrong with the output that a
    turn left, "" if nothing."""

    def __init__(
        self, queue: Queue, instruments: Instruments, pace: Pace, turn: Callable[[str, str], None], before: Callable[[str], None],
        after: Callable[[str], str], pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.queue, self.instruments, self.pace, self.turn = queue, instruments, pace, turn
        self.before, self.after, self.pause = before, after, pause

    def run(self, courses: Sequence[Course]) -> None:
        """Fills the courses' stretches and steps, the same number for each that is not refused."""
        with self.queue.ready():
            for course in courses:
                self._guarded(course, "capture", lambda course=course: self._capture(course))  # type: ignore[misc]
            orders, began = mirrored_orders(len(courses)), self.queue.now_us()
            while self._live(courses) and self.queue.now_us() - began < self.pace.warm_up_s * 1e6:
                self._round(courses, next(orders), "warm-up", lambda course: self._stretch(course, keep=False))
            orders, began, rounds = mirrored_orders(len(courses)), self.queue.now_us(), 0  # anew: whole pairs, wherever the warm-up ended
            while (live := self._live(courses)) and not (rounds % 2 == 0 and rounds >= MIN_ROUNDS and self._over(began, len(live))):
                self._round(courses, next(orders), "timing", lambda course: self._stretch(course, keep=True))
                rounds += 1
            for _ in range(SHARE_ROUNDS):
                self._round(courses, next(orders), "shares", self._apart)

    def _live(self, courses: Sequence[Course]) -> list[Course]:
        return [course for course in courses if not course.refused]

    def _over(self, began: float, candidates: int) -> bool:
        return self.queue.now_us() - began >= self.pace.total_s * candidates * 1e6

    def _round(self, courses: Sequence[Course], order: Sequence[int], phase: str, work: Callable[[Course], None]) -> None:
        for course in (courses[i] for i in order):
            if not course.refused:
                self._guarded(course, phase, lambda course=course: self._checked(course, work))  # type: ignore[misc]

    def _guarded(self, course: Course, phase: str, work: Callable[[], None]) -> None:
        """What a candidate raises costs it its place. What it did to the GPU itself is raised by the wait: nobody's figure would mean
        anything after that."""
        self.turn(course.name, phase)
        try:
            work()
        except Exception as error:
            self.queue.wait()
            first_line = (str(error).strip().splitlines() or ["no message"])[0]
            course.refused = f"{phase}: {type(error).__name__}: {first_line}"

    def _checked(self, course: Course, work: Callable[[Course], None]) -> None:
        self.before(course.name)
        work(course)
        course.refused = self.after(course.name)

    def _capture(self, course: Course) -> None:
        """Whole blocks in one graph. The estimate of their number comes from a graph of one."""
        one = self.queue.capture([course.run])
        start = self.queue.mark()
        one()
        one()
        end = self.queue.mark()
        self.queue.wait()
        course.blocks = max(1, min(math.ceil(2 * GRAPH_US / self.queue.elapsed_us(start, end)), MOST_UNROLLED))
        course.replay = self.queue.capture([course.run] * course.blocks) if course.blocks > 1 else one
        course.replay_us = self.queue.elapsed_us(start, end) / 2 * course.blocks

    def _stretch(self, course: Course, keep: bool) -> None:
        self._replays(course, self.pace.lead_s)
        start = self.queue.mark()
        replays = self._replays(course, self.pace.stretch_s)
        end = self.queue.mark()
        while not self.queue.reached(start):
            self.pause(LOOK_S)
        looks = []
        while not self.queue.reached(end):
            looks.append((self.queue.now_us(), self.instruments.energy_mj(), self.instruments.sample()))
            self.pause(LOOK_S)
        self.queue.wait()
        elapsed_us = self.queue.elapsed_us(start, end)
        course.replay_us = elapsed_us / replays
        if keep:
            course.stretches.append(stretch(course.replay_us / course.blocks, looks))

    def _replays(self, course: Course, seconds: float) -> int:
        count = max(1, round(seconds * 1e6 / course.replay_us))
        for _ in range(count):
            course.replay()
        return count

    def _apart(self, course: Course) -> None:
        """Some blocks launch by launch with an event between two steps, right behind replays that keep the GPU busy until all are
        enqueued: in the clock that the block runs in."""
        for lead_s in (self.pace.lead_s, 4 * self.pace.lead_s):
            self._replays(course, lead_s)
            marks = [self.queue.mark()]
            for _ in range(SHARE_BLOCKS):
                for launch in course.steps.values():
                    launch()
                    marks.append(self.queue.mark())
            in_time = not self.queue.reached(marks[0])
            self.queue.wait()
            if in_time:
                break
        else:
            return  # the GPU waited for the CPU: what an event saw is no kernel's time
        for name, (start, end) in zip(itertools.cycle(course.steps), itertools.pairwise(marks), strict=False):
            course.steps_us.setdefault(name, []).append(self.queue.elapsed_us(start, end))


def stretch(block_us: float, looks: Sequence[tuple[float, float | None, State]]) -> Stretch:
    """looks: (now in us, counter in mJ, state), taken while the stretch ran."""
    states = [state for _, _, state in looks]
    clocks = [s.sm_clock_mhz for s in states if s.sm_clock_mhz is not None]
    heat = [s.temperature_c for s in states if s.temperature_c is not None]
    reasons = dict.fromkeys(reason for s in states for reason in s.throttle)
    return Stretch(
        block_us, power_w([(at, mj) for at, mj, _ in looks if mj is not None]), sum(clocks) / len(clocks) if clocks else None,
        heat[-1] if heat else None, tuple(reasons),
    )  # fmt: skip


def timed(course: Course) -> Interval:
    """us of a block: the stretches' median with its interval."""
    samples = [s.block_us for s in course.stretches]
    middle, low, high = median_interval(samples)
    return Interval(middle, low, high, len(samples), "graph", settled(middle, low, high), rounds=tuple(samples))


def over(course: Course, baseline: Course) -> tuple[float, float, float]:
    """(median, low, high) of a course's time over the baseline's, paired by round."""
    return paired([s.block_us for s in course.stretches], [s.block_us for s in baseline.stretches])


def steps_us(course: Course) -> dict[str, float]:
    """Median us of each step; empty if they could not be taken."""
    return {name: median(samples) for name, samples in course.steps_us.items()}


def middle(values: Iterator[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
