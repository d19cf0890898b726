"""Joules of a launch: replays back to back for a second, one candidate at a time, since power is the whole GPU's.

A stretch is a sequence of periods. A period is launches on rotating buffers from a graph, as for cold times; then, if timing needs it, a
rest that keeps the clock at its highest; and a flush, if the buffer sets may fit into the L2. The first part of a stretch lets clock, power
and temperature settle. In the rest of it, power is the slope of NVML's energy counter (power.py), and a period's energy is power times its
GPU time. Rest and flush are measured alone in the same way and subtracted.

Joules are gross: what the whole GPU draws while the kernel runs, its idle power included."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch

from opwise.backends import implementation
from opwise.measure.device import Monitor
from opwise.measure.gpu import Launch
from opwise.measure.power import LOOK_S, Instruments, power_w
from opwise.measure.rounds import COOL_US, FIRST_BACKLOG_US, FIRST_REST, MORE_REST, MOST_COOL_US, MOST_REST
from opwise.measure.sameness import SEED
from opwise.measure.timing import CAP_WARM_UP_S, GRAPH_US, MOST_NODES, Clock, once
from opwise.ops import OPS
from opwise.ops.spec import Workload

SECONDS = 1.0  # of a stretch that count: the counter's steps are seen up to LOOK_S late
# Enqueued at once, and one portion always stands behind that which runs: long against what may hold up the CPU, short against SECONDS, as
# no step of the counter is seen while the CPU enqueues.
PORTION_US = 20_000.0
IDLE_SETTLE_S = 2.0  # an idle GPU's clock and power fall in steps


class Energy(NamedTuple):
    """joules: of one launch at full clock; capped_joules: back to back, None if the power cap changes nothing; idle_w: W of the GPU with an
    idle context. None if not measured; energy_note says why."""

    joules: float | None = None
    capped_joules: float | None = None
    idle_w: float | None = None
    energy_note: str = ""


class NoEnergy(RuntimeError):
    """The counter, or the clock, gives no figure; the message says why."""


class Stretch(NamedTuple):
    """us of one period, W over all of them, and whether the clock was at its highest after the last."""

    us: float
    watts: float
    full: bool

    @property
    def joules(self) -> float:
        return self.us * self.watts / 1e6


class Meter:
    """Takes the stretches on one GPU. `pause` sleeps for so many seconds; tests replace it by simulated time."""

    def __init__(
        self, clock: Clock, instruments: Instruments, seconds: float = SECONDS, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.clock, self.queue, self.instruments, self.seconds, self.pause = clock, clock.queue, instruments, seconds, pause

    def idle_w(self) -> float:
        """W of the GPU with nothing enqueued. Raises NoEnergy."""
        with self.queue.ready():
            self.queue.wait()
            self.pause(IDLE_SETTLE_S)
            readings, until = [], self.queue.now_us() + self.seconds * 1e6
            while self.queue.now_us() < until:
                readings.append((self.queue.now_us(), self.instruments.energy_mj()))
                self.pause(LOOK_S)
            return slope(readings)

    def of(self, launches: Sequence[Launch], turn: Callable[[str], None] = lambda phase: None) -> tuple[float | None, float | None]:
        """(joules, capped_joules) of one of these launches, as in Energy; the first is None if no rest holds the clock.

        launches: on as many buffer sets as `Clock.rotation` says. turn: called with each phase before it. Raises NoEnergy, and what a
        launch raises."""
        flush = [self.queue.flush] if once(len(launches)) else []
        with self.queue.ready():
            for launch in launches:  # the first may compile, load and allocate, which a capture forbids
                launch()
            self.queue.wait()
            turn("energy: graph")
            step, count = self._graph(launches)
            self._cool()
            turn("energy: back to back")
            found = self._stretch([step, *flush])
            around = self._around(flush)
            back_to_back = (found.joules - around.joules) / count
            if found.full:
                return back_to_back, None
            rest = FIRST_REST
            while rest <= MOST_REST:
                turn(f"energy: rests of {rest:.2g}")
                resting: list[Launch] = [partial(self.queue.spin, rest * (found.us - around.us)), *flush]
                self._cool()
                held = self._stretch([step, *resting])
                if held.full:
                    turn("energy: rests alone")
                    return (held.joules - self._around(resting).joules) / count, back_to_back
                rest *= MORE_REST
            return None, back_to_back

    def _graph(self, launches: Sequence[Launch]) -> tuple[Launch, int]:
        """Whole turns through the buffer sets until they take about a millisecond, one turn where they are used `once` behind a flush; and
        how many launches that is."""
        one = self.queue.capture(launches)
        if once(len(launches)):
            return one, len(launches)
        turns = max(1, min(math.ceil(GRAPH_US / self._estimate_us([one])), MOST_NODES // len(launches)))
        return (self.queue.capture(list(launches) * turns) if turns > 1 else one), turns * len(launches)

    def _around(self, steps: Sequence[Launch]) -> Stretch:
        return self._stretch(steps) if steps else Stretch(0.0, 0.0, True)

    def _estimate_us(self, steps: Sequence[Launch]) -> float:
        """About what one period takes."""
        self.queue.spin(FIRST_BACKLOG_US)
        start = self.queue.mark()
        for step in (*steps, *steps):
            step()
        end = self.queue.mark()
        self.queue.wait()
        return max(self.queue.elapsed_us(start, end) / 2, 0.1)

    def _stretch(self, steps: Sequence[Launch]) -> Stretch:
        """Periods of these steps: CAP_WARM_UP_S of them that do not count, then at least `seconds`. Raises NoEnergy."""
        queue, portion = self.queue, max(1, round(PORTION_US / self._estimate_us(steps)))
        marks, late = [queue.mark()], 0

        def enqueue() -> None:
            for _ in range(portion):
                for step in steps:
                    step()
            marks.append(queue.mark())

        enqueue()
        enqueue()
        for seconds in (CAP_WARM_UP_S, self.seconds):
            readings, first, late = [], len(marks) - 1, 0
            until = queue.now_us() + seconds * 1e6
            while queue.now_us() < until:
                while not queue.reached(marks[-2]):
                    readings.append((queue.now_us(), self.instruments.energy_mj()))
                    self.pause(LOOK_S)
                late += queue.reached(marks[-1])
                enqueue()
        queue.wait()
        full = self.clock.watch.look().full  # at once: an idle GPU's clock is still that of its last kernel
        portions = len(marks) - 1 - first
        if late > portions // 10:
            raise NoEnergy(f"the GPU waited for the CPU in {late} of {portions} portions of {portion} replays")
        return Stretch(queue.elapsed_us(marks[first], marks[-1]) / (portions * portion), slope(readings), full)

    def _cool(self) -> None:
        """Spins until the clock is at its highest, or for as long as that could take."""
        until = self.queue.now_us() + MOST_COOL_US
        while not self.clock.watch.look().full and self.queue.now_us() < until:
            self.queue.spin(COOL_US)
            self.queue.wait()


def slope(readings: Sequence[tuple[float, float | None]]) -> float:
    """W, from (us, mJ) readings, None if NVML gives none. Raises NoEnergy."""
    told = [(at, mj) for at, mj in readings if mj is not None]
    if not told:
        raise NoEnergy("NVML tells no energy here: nvidia-ml-py is missing, or this GPU has no counter")
    if (watts := power_w(told)) is None:
        raise NoEnergy(f"NVML's energy counter stood still for {(told[-1][0] - told[0][0]) / 1e6:.2g} s")
    return watts


@cache
def bench(device_name: str, seconds: float) -> tuple[Meter, float | None, str]:
    """(meter, idle W, why there is none) of this process, whose GPU has done nothing yet."""
    device = torch.device(device_name)
    torch.cuda.set_device(device)
    monitor = Monitor(device)
    meter = Meter(Clock(device, monitor), monitor, seconds)
    try:
        return meter, meter.idle_w(), ""
    except NoEnergy as error:
        return meter, None, str(error)


def energy(turn: Callable[[str, str], None], device_name: str, name: str, text: str, seconds: float = SECONDS) -> Energy:
    """Energy of an implementation at a workload, on a CUDA device; a worker's request ("apply"), one worker at a time on a GPU.

    If it does not build, or fails, the result says why. Raises GPU faults: the process cannot continue after one."""
    turn(name, "energy: idle")
    meter, idle_w, why = bench(device_name, seconds)
    if why:
        return Energy(energy_note=why)
    turn(name, "build")
    found = measured(meter, torch.device(device_name), name, Workload.parse(text), lambda phase: turn(name, phase))
    torch.cuda.synchronize(torch.device(device_name))
    return found._replace(idle_w=idle_w)


def measured(meter: Meter, device: torch.device, name: str, workload: Workload, turn: Callable[[str], None]) -> Energy:
    """An Energy without idle_w, which `energy` adds."""
    spec = OPS[workload.op]
    try:
        with workload.precision(), torch.no_grad():
            inputs, built = spec.make_inputs(workload, device, SEED), implementation(name, device)
            sets = [inputs, *(tuple(x.clone() for x in inputs) for _ in range(meter.clock.rotation(spec.cost(workload).bytes) - 1))]
            joules, capped = meter.of([built.prepare(*each, out=spec.empty_output(*each)) for each in sets], turn)
    except Exception as error:  # a broken kernel costs its own cell
        told = str(error) if isinstance(error, NoEnergy) else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return Energy(energy_note=f"no energy: {told}")
    return Energy(joules, capped, energy_note="" if joules is not None else "no energy at full clock: no rest holds it")
