"""Joules in simulated time: what a planted power curve comes to, and what is said where the instruments tell nothing."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from simulated_queue import MB, Governed, Kernel

from opwise.measure.device import State
from opwise.measure.energy import Energy, Meter, NoEnergy, measured
from opwise.measure.timing import MOST_SETS, Clock
from opwise.ops import Workload
from opwise.record import CAPPED, FULL, Record
from opwise.runner import energy as runner_energy
from opwise.runner.jobs import Entry, Job
from opwise.runner.supervisor import WorkerLost

CPU = torch.device("cpu")
IDLE_W, SPIN_W, FLUSH_W = 100.0, 180.0, 500.0
TICK_US = 20_000.0  # of the energy counter
SOFTMAX = Workload.parse("softmax/5x33/float32")


@dataclass
class Powered(Governed):
    """Draws `watts` in launches, SPIN_W in spins, FLUSH_W in flushes, else IDLE_W; it knows how much that was at any time."""

    most: float = 2.0  # no cap
    watts: float = 600.0
    ends: list[float] = field(default_factory=list)
    drawn_uj: list[float] = field(default_factory=list)  # above IDLE_W, up to each of the ends
    now_w: float | None = None

    def enqueue(self, us: float, cpu_us: float, busy: bool = True) -> None:
        super().enqueue(us, cpu_us, busy)
        if us:
            above = (self.watts if self.now_w is None else self.now_w) - IDLE_W
            self.drawn_uj.append((self.drawn_uj[-1] if self.ends else 0.0) + above * us)
            self.ends.append(self.gpu)

    def _at(self, watts: float, work: Callable[[], None]) -> None:
        self.now_w = watts
        work()
        self.now_w = None

    def spin(self, us: float) -> None:
        self._at(SPIN_W, lambda: super(Powered, self).spin(us))

    def flush(self) -> None:
        self._at(FLUSH_W, lambda: super(Powered, self).flush())

    def drawn_mj(self, now: float) -> float:
        return (IDLE_W * now + self.drawn_uj[bisect.bisect_right(self.ends, now) - 1]) / 1e3


@dataclass
class Counter:
    """NVML's counter in steps of 20 ms. `last_us`: it stands still after that."""

    queue: Powered
    last_us: float = float("inf")
    tells: bool = True

    def sample(self) -> State:
        return State(1980.0 * self.queue.share(), 60.0, 300.0, ())

    def energy_mj(self) -> float | None:
        return self.queue.drawn_mj(min(self.queue.cpu, self.last_us) // TICK_US * TICK_US) if self.tells else None


def meter_of(queue: Powered, **counter: Any) -> Meter:
    instruments = Counter(queue, **counter)

    def pause(seconds: float) -> None:
        queue.cpu += seconds * 1e6

    clock = Clock(CPU, instruments, queue)  # type: ignore[arg-type]
    with queue.ready():
        queue.spin(1000.0)
    return Meter(clock, instruments, pause=pause)


@pytest.mark.parametrize(("us", "sets"), [(2000.0, 1), (50.0, 4)])
def test_joules_are_power_times_time_of_a_launch(us: float, sets: int) -> None:
    queue = Powered(watts=600.0)

    def loaded(count: int) -> None:
        assert count > 1 or queue.recording is None, "its first launch is captured"

    joules, capped = meter_of(queue).of([Kernel(queue, us, after=loaded) for _ in range(sets)])
    assert joules == pytest.approx(us * 600e-6, rel=0.01)
    assert capped is None
    assert max(queue.captured) * us >= 1250.0, "a graph is long against the launch of the next"


def test_a_flush_is_subtracted() -> None:
    queue = Powered(watts=300.0)
    joules, _ = meter_of(queue).of([Kernel(queue, 2.0)] * MOST_SETS)
    assert joules == pytest.approx(2.0 * 300e-6, rel=0.03)


def test_under_the_power_cap_there_are_two_energies_and_the_rests_are_subtracted() -> None:
    queue = Powered(watts=700.0, most=0.6, low=0.75)
    joules, capped = meter_of(queue).of([Kernel(queue, 2000.0)])
    assert joules == pytest.approx(2000.0 * 700e-6, rel=0.02)
    assert capped == pytest.approx(2000.0 / 0.75 * 700e-6, rel=0.02)
    rested = meter_of(tight := Powered(watts=700.0, most=0.3, low=0.75)).of([Kernel(tight, 2000.0)])[0]
    assert rested == pytest.approx(joules, rel=0.03), "longer rests change nothing"
    assert meter_of(never := Powered(most=0.001)).of([Kernel(never, 2000.0)])[0] is None


def test_the_idle_power_is_of_a_gpu_with_nothing_to_do() -> None:
    assert meter_of(Powered()).idle_w() == pytest.approx(IDLE_W, rel=0.01)


@pytest.mark.parametrize(
    ("counter", "why"), [({"tells": False}, "NVML tells no energy here"), ({"last_us": 1e6}, "NVML's energy counter stood still for 1")]
)
def test_without_a_counter_that_moves_there_is_no_figure(counter: dict[str, Any], why: str) -> None:
    meter = meter_of(queue := Powered(), **counter)
    with pytest.raises(NoEnergy, match=why):
        meter.of([Kernel(queue, 2000.0)])
    with pytest.raises(NoEnergy, match=why):
        meter.idle_w()


def test_where_the_gpu_waits_for_the_cpu_there_is_no_figure() -> None:
    meter = meter_of(queue := Powered())
    meter.pause = lambda seconds: setattr(queue, "cpu", queue.cpu + 1e5)
    with pytest.raises(NoEnergy, match="the GPU waited for the CPU"):
        meter.of([Kernel(queue, 2000.0)])


class Launching(Powered):
    """Launches what it is given, once, as kernels of 50 us."""

    def capture(self, launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
        for launch in launches:
            launch()
        return lambda: self.enqueue(50.0 * len(launches), 10.0)


def test_a_cell_is_built_on_buffers_of_its_own_or_says_why_not() -> None:
    meter = meter_of(Launching(l2_bytes=60 * MB, watts=600.0))
    assert measured(meter, CPU, "torch_eager/softmax", SOFTMAX, print).joules == pytest.approx(50 * 600e-6, rel=0.01)
    missing = measured(meter, CPU, "nobody/softmax", SOFTMAX, print)
    assert missing.joules is None
    assert missing.energy_note.startswith("no energy: ")


def test_a_lost_worker_costs_its_own_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Worker] = []

    class Worker:
        def __init__(self, device: str, setup: object) -> None:
            self.killed = False
            started.append(self)

        def ask(self, kind: str, request: tuple[Any, ...]) -> Energy:
            assert not self.killed
            if request[2].startswith("triton"):
                raise WorkerLost("an illegal memory access", ("", ""))
            return Energy(1.0, None, 100.0)

        def kill(self) -> None:
            self.killed = True

    monkeypatch.setattr(runner_energy, "Worker", Worker)
    names = ("torch_eager/softmax", "triton_jit/softmax", "cupy_raw/softmax", "numba_cuda/softmax")
    catalogue = {n.split("/")[0]: Entry(n.split("/")[0], reason="not here" if n.startswith("numba") else "") for n in names}
    said: list[str] = []
    found = runner_energy.all_energy([Job(SOFTMAX, names, "cuda:0")], catalogue, "cuda:0", None, said.append)
    assert {name: e.joules for (name, _), e in found.items()} == dict(zip(names[:3], (1.0, None, 1.0), strict=True))
    assert found[names[1], str(SOFTMAX)].energy_note == "no energy: an illegal memory access"
    assert [worker.killed for worker in started] == [True, True]
    assert said[1] == "energy: 1 of 3 cells, softmax/5x33/float32 triton_jit"
    assert runner_energy.all_energy([Job(SOFTMAX, names, "cpu")], catalogue, "cpu", None, print) == {}, "a stand-in draws nothing of a GPU"


def test_records_keep_the_energy_and_are_as_before_where_nobody_asked() -> None:
    record = Record.of("triton_jit/softmax", SOFTMAX, status="ok", **Energy(0.5, None, 90.0)._asdict())
    assert Record.from_json(record.to_json()) == record
    assert (record.energy_j(FULL), record.energy_j(CAPPED)) == (0.5, 0.5)
    assert dataclasses.replace(record, joules=None, capped_joules=0.7).energy_j(CAPPED) == 0.7
    note = Record.of("triton_jit/softmax", SOFTMAX, status="ok", energy_note="no energy: it is so")
    assert Record.from_json(note.to_json()) == note
    unasked = Record.of("triton_jit/softmax", SOFTMAX, status="ok")
    assert not set(Energy._fields) & set(unasked.to_json().split('"'))
