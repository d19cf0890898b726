"""Times a block in both states of the clock and reads its energy: candidates in short turns. Policy only, driven through gpu.Queue.

Back to back, as a model runs it, a large block reaches the power cap. Then measure.timing.Clock times one block at a time at full clock,
behind a flush of the L2 and with a rest after it.

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
from opwise.measure.figures import Timing, paired_ratio
from opwise.measure.gpu import Launch
from opwise.measure.power import LOOK_S, Instruments, power_w
from opwise.measure.rounds import mirrored_orders
from opwise.measure.stats import median, median_interval, paired, settled
from opwise.measure.timing import Clock
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
    """One candidate's measurement. `steps`: the block's launches by name; `one` runs a block from a graph, `replay` runs `blocks` of them.

    full: of one block at full clock, None where no rest holds it. refused: why it was excluded, "" otherwise."""

    name: str
    steps: Mapping[str, Launch]
    one: Launch = lambda: None
    replay: Launch = lambda: None
    blocks: int = 1
    replay_us: float = 1.0
    stretches: list[Stretch] = field(default_factory=list)
    steps_us: dict[str, list[float]] = field(default_factory=dict)
    full: Timing | None = None
    full_steps_us: dict[str, list[float]] = field(default_factory=dict)
    refused: str = ""

    def run(self) -> None:
        """One block, launch by launch."""
        for launch in self.steps.values():
            launch()


class Turns:
    """Takes the turns. `before(name)` fills the buffers with nan, on the queue; `after(name)` returns what is wrong with the output that a
    turn left, "" if nothing."""

    def __init__(
        self, clock: Clock, instruments: Instruments, pace: Pace, turn: Callable[[str, str], None], before: Callable[[str], None],
        after: Callable[[str], str], pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.clock, self.queue, self.instruments, self.pace, self.turn = clock, clock.queue, instruments, pace, turn
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
            self._full_clock(self._live(courses))
            for _ in range(SHARE_ROUNDS):
                self._round(courses, next(orders), "shares at full clock", self._apart_rested)

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
        one = course.one = self.queue.capture([course.run])
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
        self._step_by_step(course, lambda seconds: self._replays(course, seconds), SHARE_BLOCKS, course.steps_us)

    def _apart_rested(self, course: Course) -> None:
        """The same of one block behind a spin: the clock has recovered by then, and one block is too short to reach the power cap."""
        self._step_by_step(course, lambda seconds: self.queue.spin(seconds * 1e6), 1, course.full_steps_us)

    def _step_by_step(self, course: Course, lead: Callable[[float], object], blocks: int, found: dict[str, list[float]]) -> None:
        for lead_s in (self.pace.lead_s, 4 * self.pace.lead_s):
            lead(lead_s)
            marks = [self.queue.mark()]
            for _ in range(blocks):
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
            found.setdefault(name, []).append(self.queue.elapsed_us(start, end))

    def _full_clock(self, courses: Sequence[Course]) -> None:
        """Fills `full`. The buffers are filled with nan before each block of samples, and the output is judged after it."""
        by_name = {course.name: course for course in courses}
        self.clock.witness = _Witness(self, by_name)
        found = self.clock.cold({name: [course.one] for name, course in by_name.items()}, lambda name: self.turn(name, "full clock"))
        self.clock.witness = None
        for name, course in by_name.items():
            course.full = found.get(name)


@dataclass(frozen=True)
class _Witness:
    """measure.rounds.Witness: what a candidate left wrong excludes it."""

    turns: Turns
    courses: Mapping[str, Course]

    def before(self, name: str) -> None:
        self.turns.before(name)

    def after(self, name: str) -> None:
        course = self.courses[name]
        course.refused = course.refused or self.turns.after(name)


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


def over_full(course: Course, baseline: Course) -> tuple[float, float, float] | None:
    """As `over`, at full clock; None where one of them has no such time."""
    return paired_ratio(course.full, baseline.full) if course.full and baseline.full else None


def medians(steps_us: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median us of each step; empty if they could not be taken."""
    return {name: median(samples) for name, samples in steps_us.items()}


def middle(values: Iterator[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
