"""How `opwise block` measures, in simulated time: turns, energy, ratios and shares are those of the truth, which is known here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from simulated_queue import Governed, GpuFault, Kernel, SimulatedQueue

from opwise.block.turns import MIN_ROUNDS, Course, Pace, Turns, medians, middle, over, over_full, stretch, timed
from opwise.measure.device import State
from opwise.measure.power import power_w
from opwise.measure.timing import Clock

PACE = Pace(total_s=1.0, warm_up_s=0.5, lead_s=0.05, stretch_s=0.1)
TICK_US = 20_000.0  # of the energy counter


@dataclass
class PoweredQueue(SimulatedQueue):
    """Knows what it drew: `watts` while something runs, which the turn sets, and 100 when idle."""

    watts: float = 0.0
    busy: list[tuple[float, float, float]] = field(default_factory=list)

    def enqueue(self, us: float, cpu_us: float) -> None:
        super().enqueue(us, cpu_us)
        if us:
            self.busy.append((self.gpu - us, self.gpu, self.watts))

    def drawn_mj(self, now: float) -> float:
        extra = sum((w - 100.0) * max(0.0, min(now, end) - start) for start, end, w in self.busy)
        return (100.0 * now + extra) / 1e3


class Meter:
    """NVML's counter in steps of 20 ms, and a clock that is lower where more is drawn."""

    def __init__(self, queue: PoweredQueue, tells: bool = True) -> None:
        self.queue, self.tells = queue, tells

    def sample(self) -> State:
        return State(2500.0 - self.queue.watts, 60.0, None, ("power cap",)) if self.tells else State()

    def energy_mj(self) -> float | None:
        return self.queue.drawn_mj(self.queue.cpu // TICK_US * TICK_US) if self.tells else None


class Lab:
    """Candidates with a product and a gelu each, and who had which turn."""

    def __init__(self, tells: bool = True, **queue: object) -> None:
        self.queue = PoweredQueue(**queue)  # type: ignore[arg-type]
        self.meter = Meter(self.queue, tells)
        self.said: list[tuple[str, str]] = []
        self.watts: dict[str, float] = {}
        self.wrong: dict[str, int] = {}  # turns after which a candidate's output is wrong
        self.turns: dict[str, int] = {}

    def course(self, name: str, product_us: float, watts: float = 600.0, **kernel: object) -> Course:
        self.watts[name] = watts
        product = Kernel(self.queue, product_us, **kernel)  # type: ignore[arg-type]
        return Course(name, {"up": product, "gelu": Kernel(self.queue, 200.0), "residual 2": Kernel(self.queue, 300.0)})

    def before(self, name: str) -> None:
        self.queue.watts = self.watts[name]

    def after(self, name: str) -> str:
        self.turns[name] = self.turns.get(name, 0) + 1
        return "wrong in the timed runs: 1 element" if self.turns[name] == self.wrong.get(name) else ""

    def pause(self, seconds: float) -> None:
        self.queue.cpu += seconds * 1e6

    def run(self, *courses: Course, pace: Pace = PACE) -> Sequence[Course]:
        clock = Clock(torch.device("cuda"), self.meter, self.queue)
        turns = Turns(clock, self.meter, pace, lambda *said: self.said.append(said), self.before, self.after, self.pause)
        turns.run(courses)
        return courses


def test_time_clock_power_and_joules_are_the_candidates_own() -> None:
    lab = Lab()
    quick, slow = lab.run(lab.course("torch_eager", 1500.0, watts=700.0), lab.course("triton_jit", 1700.0, watts=500.0))
    for course, us, watts in ((quick, 2000.0, 700.0), (slow, 2200.0, 500.0)):
        assert timed(course).median == pytest.approx(us)
        assert timed(course).samples == len(course.stretches) >= MIN_ROUNDS
        assert middle(s.power_w for s in course.stretches) == pytest.approx(watts, rel=0.1)  # steps of 20 ms, seen up to 4 ms late
        assert middle(s.joules for s in course.stretches) == pytest.approx(us * watts / 1e6, rel=0.1)
        assert middle(s.sm_clock_mhz for s in course.stretches) == pytest.approx(2500.0 - watts)
        assert {s.throttle for s in course.stretches} == {("power cap",)}
    assert over(slow, quick) == pytest.approx((1.1, 1.1, 1.1))
    assert quick.blocks == 5, "a graph is 10 ms of blocks"


def test_candidates_take_turns_in_mirrored_orders_for_the_time_that_was_asked_for() -> None:
    lab = Lab()
    courses = lab.run(*(lab.course(name, 1500.0) for name in "abcd"))
    turns = [name for name, phase in lab.said if phase == "timing"]
    rounds = [turns[i : i + 4] for i in range(0, len(turns), 4)]
    assert all(sorted(taken) == list("abcd") for taken in rounds)
    assert all(second == first[::-1] for first, second in zip(rounds[::2], rounds[1::2], strict=True))
    assert len(set(map(tuple, rounds))) > 2
    assert {len(course.stretches) for course in courses} == {len(rounds)}
    assert len(turns) * (PACE.lead_s + PACE.stretch_s) == pytest.approx(4 * PACE.total_s, rel=0.25)


def test_a_drift_of_the_clock_is_in_no_ratio() -> None:
    lab = Lab()
    lab.queue.drift = lambda: 1.0 + lab.queue.gpu / 20e6
    first, second = lab.run(lab.course("a", 1500.0), lab.course("b", 1700.0))
    samples = [s.block_us for s in first.stretches]
    assert max(samples) / min(samples) > 1.05
    assert over(second, first)[0] == pytest.approx(1.1, rel=0.005)


def test_shares_are_of_the_steps_and_tile_the_block() -> None:
    lab = Lab()
    (course,) = lab.run(lab.course("a", 1500.0, cpu_us=10.0))
    assert medians(course.steps_us) == pytest.approx({"up": 1500.0, "gelu": 200.0, "residual 2": 300.0})


def test_where_the_gpu_waits_for_the_cpu_there_are_no_shares() -> None:
    lab = Lab()
    (course,) = lab.run(lab.course("a", 1500.0, cpu_us=100_000.0))
    assert timed(course).median == pytest.approx(2000.0), "a graph needs no launches"
    assert medians(course.steps_us) == {}


def test_at_full_clock_a_block_is_timed_alone_and_its_steps_behind_a_rest() -> None:
    lab = Lab(tells=False)
    lab.queue = Governed()  # type: ignore[assignment]
    quick, slow = lab.run(lab.course("torch_eager", 1500.0), lab.course("triton_jit", 1700.0))
    assert timed(quick).median == pytest.approx(2000.0 / 0.75, rel=0.02), "back to back the clock is lower"
    for course, us in ((quick, 2000.0), (slow, 2200.0)):
        assert course.full is not None
        assert course.full.rest_us > 0
        assert course.full.median_us == pytest.approx(us)
        assert medians(course.full_steps_us) == pytest.approx({"up": us - 500.0, "gelu": 200.0, "residual 2": 300.0})
    assert over_full(slow, quick) == pytest.approx((1.1, 1.1, 1.1))


def test_where_no_rest_holds_the_clock_there_is_no_figure_at_full_clock() -> None:
    lab = Lab()  # its meter gives the power cap as a reason always
    quick, slow = lab.run(lab.course("torch_eager", 1500.0), lab.course("triton_jit", 1700.0))
    assert quick.full is slow.full is over_full(slow, quick) is None
    assert not quick.refused


def test_what_is_wrong_after_a_turn_takes_no_further_part() -> None:
    lab = Lab()
    lab.wrong["b"] = 9
    good, bad = lab.run(lab.course("a", 1500.0), lab.course("b", 1500.0))
    assert bad.refused == "wrong in the timed runs: 1 element"
    assert not good.refused
    assert lab.turns["b"] == 9 < lab.turns["a"]
    assert timed(good).median == pytest.approx(2000.0)


def test_a_fault_of_the_gpu_is_raised_in_the_turn_of_who_caused_it() -> None:
    lab = Lab()

    def breaks(count: int) -> None:
        lab.queue.fault = GpuFault("an illegal memory access")

    with pytest.raises(GpuFault):
        lab.run(lab.course("a", 1500.0), lab.course("b", 1500.0, after=breaks))
    assert lab.said[-1][0] == "b"


def test_power_is_the_counters_slope_between_the_steps_that_were_seen() -> None:
    readings = [(0.0, 5.0), (4.0, 5.0), (8.0, 10.0), (12.0, 10.0), (18.0, 16.0), (22.0, 16.0)]
    assert power_w(readings) == pytest.approx((16.0 - 10.0) / (18.0 - 8.0) * 1e3)
    assert power_w(readings[:4]) is None, "one step: how long it stands for is not known"
    assert power_w([]) is None
    assert stretch(2000.0, [(at, mj, State(1500.0 + at, 50.0 + at)) for at, mj in readings]).sm_clock_mhz == pytest.approx(
        1510.67, abs=0.01
    )
