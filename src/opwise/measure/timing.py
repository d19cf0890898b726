"""Kernel time cold and warm, launch cost and call cost, of candidates in turns.

Kernel times come from events on the GPU, behind a backlog that is tested to be long enough; costs come from the CPU's clock. Every method
takes all implementations of one workload at once, so that ratios are of interleaved samples. docs/measuring.md gives the reasons and the
calibration of every constant here and in rounds.py.

Power limits large products, so their time has two states (rounds.py): at full clock, with a rest after each launch, and power-capped,
launches back to back. `cold` gives the first, `both` also the second if it differs; all other times are back to back."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .costs import cost_block, cost_course
from .figures import Timing, method_of, paired_ratio, timing_of
from .gpu import CudaQueue, Launch, Queue
from .power import Instruments
from .rounds import MIN_ROUNDS, Course, Pace, Refused, Rounds, Turn, Witness, mirrored_orders
from .stats import median, tied
from .watch import Watch

__all__ = ["Clock", "Timing", "paired_ratio", "tied"]

WARM_UP_S = 0.2  # rules: 200 ms of the kernel itself, the flush in between; here of all candidates of the workload in turns
LEAST_COLD_S, MOST_COLD_S = 0.2, 0.4  # a candidate: rules ask for 0.2 s; the cap fits 120 workloads x 5 candidates into 8 minutes
REWARM_UP_S = 0.05  # warm times follow cold ones: only the caches have to settle
LEAST_WARM_S, MOST_WARM_S = 0.1, 0.2
CAP_WARM_UP_S = 1.5  # the power by which the driver sets the clock is an average of about a second
CPU_S = 0.03
GRAPH_US = 1250.0  # rules: N launches take at least 1 ms; a quarter more, since N comes from an estimate
MOST_NODES = 2000
PROBED = 16
ROTATED_L2 = 5  # rules: N x bytes >= 5 x L2
MOST_SETS = 128  # an event pair's microsecond or two, which each process finds at its own length, are a hundredth of one in each launch


class ClockNotHeld(RuntimeError):
    """No rest keeps the SM clock at its highest: something else uses the GPU, it is too hot, or its limits are low."""


def once(sets: int) -> bool:
    """Returns whether each of so many buffer sets is used only once after a flush: they may fit into the L2 together, so that a second use
    would be warm."""
    return sets >= MOST_SETS


def _silent(name: str) -> None:
    """Nobody asked whose turn it is."""


class Clock:
    """Times launches on one CUDA device, on torch's current stream. `refusals`: the exceptions of candidates, by name."""

    def __init__(self, device: torch.device, monitor: Instruments | None = None, queue: Queue | None = None) -> None:
        """`queue` replaces the GPU, for tests. Raises ValueError for a device that is no GPU: stand-ins have no time."""
        if queue is None and device.type != "cuda":
            raise ValueError(f"Clock: given device {device}, a CUDA device is taken: what runs elsewhere is checked, never timed")
        self.device = device
        self.queue: Queue = queue if queue is not None else CudaQueue(device)
        self.refusals: dict[str, str] = {}
        self.watch = Watch(self.queue, monitor)
        self.witness: Witness | None = None  # of all that is timed from now on

    def rotation(self, nbytes: int) -> int:
        """The number of independent buffer sets for a cold measurement of `nbytes` (in and out): 1 for a flush and a launch between events,
        more for launches unrolled over that many sets in a graph.

        After one set of 5 L2, nothing of it is left in the L2 for the next launch; the same holds for R smaller ones in turns. If MOST_SETS
        do not suffice, there are as many, and each is used `once` after a flush."""
        most = ROTATED_L2 * self.queue.l2_bytes
        if nbytes >= most:
            return 1
        if nbytes * MOST_SETS <= most:
            return MOST_SETS
        sets = max(2, math.ceil(most / nbytes))
        assert sets * nbytes >= most, f"{sets} sets of {nbytes} bytes cannot displace an L2 of {self.queue.l2_bytes}"
        return sets

    def cold(self, candidates: Mapping[str, Sequence[Launch]], turn: Turn = _silent, budget_s: float = MOST_COLD_S,
             warm_up_s: float = WARM_UP_S, *, hold: bool = True) -> dict[str, Timing]:  # fmt: skip
        """Kernel time at full clock, with no operand in the L2. Each candidate: `rotation` launches on separate buffers, which cycle in a
        graph, or from MOST_SETS on run through it `once` per flush.

        `turn(name)` is called before each block of a candidate, and the block is waited for, so that an asynchronous fault is raised in its
        turn. `budget_s` caps a candidate's share of the time. hold: False ignores the clock, back to back.

        Raises ValueError if the numbers of launches differ."""
        with self.queue.ready():
            return self._full(candidates, turn, _cold_pace(budget_s, warm_up_s), hold)[0]

    def both(self, candidates: Mapping[str, Sequence[Launch]], turn: Turn = _silent,
             budget_s: float = MOST_COLD_S) -> tuple[dict[str, Timing], dict[str, Timing]]:  # fmt: skip
        """(full clock, power-capped): as `cold`, and the same launches back to back if their clock is then lower, else {}."""
        with self.queue.ready():
            pace = _cold_pace(budget_s, WARM_UP_S)
            full, courses, rounds = self._full(candidates, turn, pace)
            if full and not rounds.rest:
                return full, {}
            found = rounds.back_to_back([course.again() for course in courses], replace(pace, warm_up_s=CAP_WARM_UP_S))
            return full, {course.name: timing_of(course, method_of(course)) for course in found} if any(c.capped for c in found) else {}

    def sustained_us(self, launch: Launch) -> float:
        """Median of launches back to back, not flushed, once the power cap has settled; for the roof under the cap."""
        with self.queue.ready():
            pace = Pace(CAP_WARM_UP_S, LEAST_WARM_S, MOST_WARM_S)
            (course,) = self._rounds("sustained", _silent, []).back_to_back([Course("", launch)], pace)
            return median(course.samples)

    def warm(self, candidates: Mapping[str, Launch], turn: Turn = _silent, budget_s: float = MOST_WARM_S,
             warm_up_s: float = REWARM_UP_S) -> dict[str, Timing]:  # fmt: skip
        """Kernel time with the L2 as the last launch on the same buffers left it, replayed in a CUDA graph."""
        pace = Pace(warm_up_s, min(LEAST_WARM_S, budget_s / 2), budget_s)
        return self._timed("warm", {name: [launch] for name, launch in candidates.items()}, turn, pace)

    def launch_cost(self, candidates: Mapping[str, Launch], turn: Turn = _silent, budget_s: float = CPU_S) -> dict[str, Timing]:
        """CPU time of one launch. A sample is the mean over a block of launches that fits the launch queue; the GPU is waited for
        between blocks, outside the timed span."""
        return self._cost("launch", candidates, turn, budget_s)

    def call_cost(self, calls: Mapping[str, Callable[[], Tensor]], turn: Turn = _silent, budget_s: float = CPU_S) -> dict[str, Timing]:
        """CPU time of one call, its allocation and the release of what it returned included, taken as `launch_cost` is."""
        return self._cost("call", calls, turn, budget_s)

    def burst_us(self, launch: Launch, count: int, idle_s: float) -> float:
        """Median of `count` launches, not flushed, that follow two others after a pause: faster than under any sustained load."""
        with self.queue.ready():
            launch()
            self.queue.wait()
            time.sleep(idle_s)
            self.queue.spin(2_000.0)
            marks = [self.queue.mark()]
            for _ in range(count + 2):
                launch()
                marks.append(self.queue.mark())
            self.queue.wait()
            return median([self.queue.elapsed_us(a, b) for a, b in itertools.pairwise(marks[2:])])

    # ------------------------------------------------------------------------------------------------------------------------

    def _full(self, candidates: Mapping[str, Sequence[Launch]], turn: Turn, pace: Pace,
              hold: bool = True) -> tuple[dict[str, Timing], list[Course], Rounds]:  # fmt: skip
        """The figures at full clock, {} where no rest holds it; what was timed, and by what."""
        counts = {len(launches) for launches in candidates.values()}
        if len(counts) > 1 or 0 in counts:
            raise ValueError(f"cold: given {sorted(counts)} launches a candidate, `rotation()` of each is taken: one number for all")
        refused: list[str] = []
        rounds = self._rounds("cold", turn, refused)
        if counts == {1}:
            self._first("cold", candidates, turn, refused)
            courses = [Course(name, launches[0], flushed=True) for name, launches in candidates.items() if name not in refused]
        else:
            courses = self._graphs("cold", candidates, turn, rounds, refused)
        found = rounds.at_full_clock(courses, pace) if hold else rounds.back_to_back(courses, pace)
        if found is None:
            courses = [course for course in courses if course.name not in refused]
            for course in courses:
                self._refuse("cold", course.name, ClockNotHeld(f"whatever rest follows a launch, {course.last}"), refused)
            return {}, courses, rounds
        return {course.name: timing_of(course, method_of(course), rounds.rest) for course in found}, found, rounds

    def _timed(self, kind: str, candidates: Mapping[str, Sequence[Launch]], turn: Turn, pace: Pace) -> dict[str, Timing]:
        """Back to back, replayed in a graph."""
        with self.queue.ready():
            refused: list[str] = []
            rounds = self._rounds(kind, turn, refused)
            courses = self._graphs(kind, candidates, turn, rounds, refused)
            return {course.name: timing_of(course, "graph") for course in rounds.back_to_back(courses, pace)}

    def _rounds(self, kind: str, turn: Turn, refused: list[str]) -> Rounds:
        return Rounds(self.queue, turn, lambda name, error: self._refuse(kind, name, error, refused), self.watch.look,
                      self.witness)  # fmt: skip

    def _first(self, kind: str, candidates: Mapping[str, Sequence[Launch]], turn: Turn, refused: list[str]) -> None:
        """One launch of each: what cannot be launched at all is told by what it raises."""
        for name, launches in candidates.items():
            turn(name)
            self._try(kind, name, lambda launches=launches: [launch() for launch in launches], refused)  # type: ignore[misc]

    def _graphs(self, kind: str, candidates: Mapping[str, Sequence[Launch]], turn: Turn, rounds: Rounds,
                refused: list[str]) -> list[Course]:  # fmt: skip
        self._first(kind, candidates, turn, refused)
        courses: list[Course] = []
        for name, launches in candidates.items():
            if name in refused:
                continue
            turn(name)
            self._try(kind, name, lambda n=name, each=launches: courses.append(self._unrolled(n, each, rounds)), refused)  # type: ignore[misc]
        return courses

    def _unrolled(self, name: str, launches: Sequence[Launch], rounds: Rounds) -> Course:
        """Whole turns through the buffer sets, until they take a millisecond; one turn behind a flush where they are used `once`."""
        if once(len(launches)):
            return Course(name, self.queue.capture(launches), flushed=True, launches=len(launches))
        each_us = rounds.probe_us(launches[:1])
        if each_us < GRAPH_US / PROBED:  # the events' own microsecond or two would count: probe many at once
            each_us = rounds.probe_us(list(itertools.islice(itertools.cycle(launches), PROBED)))
        turns = max(1, min(math.ceil(GRAPH_US / (each_us * len(launches))), MOST_NODES // len(launches)))
        unrolled = list(launches) * turns
        return Course(name, self.queue.capture(unrolled), launches=len(unrolled))

    def _cost(self, kind: str, calls: Mapping[str, Callable[[], object]], turn: Turn, budget_s: float) -> dict[str, Timing]:
        with self.queue.ready():
            refused: list[str] = []
            courses: list[Course] = []
            rounds = self._rounds(kind, turn, refused)
            for name, call in calls.items():
                turn(name)
                self._try(kind, name, lambda n=name, c=call: courses.append(cost_course(n, c, rounds)), refused)  # type: ignore[misc]
            orders, began = mirrored_orders(len(courses)), self.queue.now_us()
            while courses and not (len(courses[0].blocks) >= MIN_ROUNDS and self._passed_s(began) >= budget_s * len(courses)):
                for course in [courses[i] for i in next(orders)]:
                    turn(course.name)
                    self._try(kind, course.name, lambda course=course: self._cost_block(course), refused)  # type: ignore[misc]
                if any(course.name in refused for course in courses):
                    courses = [course for course in courses if course.name not in refused]
                    orders = mirrored_orders(len(courses))
            return {course.name: timing_of(course, "cpu") for course in courses}

    def _cost_block(self, course: Course) -> None:
        if self.witness is not None:
            self.witness.before(course.name)
        cost_block(course, self.queue)
        if self.witness is not None:
            self.queue.wait()
            self.witness.after(course.name)

    def _passed_s(self, began_us: float) -> float:
        return (self.queue.now_us() - began_us) / 1e6

    def _try(self, kind: str, name: str, work: Callable[[], object], refused: list[str]) -> None:
        """What a launch raises costs the candidate this measurement. What it did to the GPU is raised by the wait, to the caller."""
        try:
            work()
            failure: BaseException | None = None
        except Refused as error:
            failure = error.__cause__ or error
        except Exception as error:
            failure = error
        self.queue.wait()
        if failure is not None:
            self._refuse(kind, name, failure, refused)

    def _refuse(self, kind: str, name: str, error: BaseException, refused: list[str]) -> None:
        refused.append(name)
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        reason = f"no {kind} time: {type(error).__name__}: {first_line}"
        self.refusals[name] = f"{self.refusals[name]}; {reason}" if name in self.refusals else reason


def _cold_pace(budget_s: float, warm_up_s: float) -> Pace:
    return Pace(warm_up_s, min(LEAST_COLD_S, budget_s / 2), budget_s)
