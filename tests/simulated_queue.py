"""A GPU in simulated time: the clock's policy is tested against what it must measure, which is known here and nowhere else.

The CPU's time passes when it enqueues; the GPU runs one thing after the other and starts none before it was enqueued. A stream that
starves, a launcher that is slow, a cache that is warm and a fault that comes late are all here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

MB = 1 << 20


class GpuFault(RuntimeError):
    """The GPU's own fault, as the driver reports it: at a wait, whoever waits."""


@dataclass
class Kernel:
    """A launch. `cold_us` with foreign lines in the L2, `warm_us` with its own; `after` runs at each launch, on the CPU."""

    queue: SimulatedQueue
    cold_us: float
    cpu_us: float = 6.0
    warm_us: float | None = None
    noise: Callable[[], float] = lambda: 0.0
    after: Callable[[int], None] = lambda count: None
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        self.after(self.count)
        if self.queue.recording is not None:
            self.queue.cpu += self.cpu_us
            self.queue.recording.append(self)
        else:
            self.queue.enqueue(self.duration(), self.cpu_us)

    def duration(self) -> float:
        warm = self.warm_us is not None and self.queue.resident is self
        self.queue.resident = self
        return (self.warm_us if warm and self.warm_us is not None else self.cold_us) * self.queue.drift() + self.noise()


@dataclass
class SimulatedQueue:
    l2_bytes: int = 60 * MB
    spin_scale: float = 1.0  # of what was asked for: under 1 is a spin that was calibrated wrongly
    drift: Callable[[], float] = lambda: 1.0
    share: Callable[[], float] = lambda: 1.0  # of the highest SM clock
    cpu: float = 0.0
    gpu: float = 0.0
    resident: object = None
    recording: list[Kernel] | None = None
    fault: Exception | None = None
    waits: int = 0
    captured: list[int] = field(default_factory=list)  # how many launches each graph has
    spins: list[float] = field(default_factory=list)

    def enqueue(self, us: float, cpu_us: float) -> None:
        self.cpu += cpu_us
        self.gpu = max(self.cpu, self.gpu) + us

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        yield

    def spin(self, us: float) -> None:
        self.spins.append(us)
        self.enqueue(us * self.spin_scale, 4.0)

    def flush(self) -> None:
        self.resident = None
        self.enqueue(64.0, 6.0)

    def mark(self) -> float:
        self.enqueue(0.0, 1.0)
        return self.gpu

    def reached(self, mark: float) -> bool:
        return mark <= self.cpu

    def wait(self) -> None:
        self.waits += 1
        self.cpu = max(self.cpu, self.gpu) + 10.0
        if self.fault is not None:
            raise self.fault

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def now_us(self) -> float:
        return self.cpu

    def clock_share(self) -> float:
        self.enqueue(150.0, 10.0)
        self.wait()
        return self.share()

    def capture(self, launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
        self.recording = []
        try:
            for launch in launches:
                launch()
        finally:
            kernels, self.recording = self.recording, None
        self.captured.append(len(kernels))

        def replay() -> None:
            self.enqueue(sum(kernel.duration() for kernel in kernels), 10.0)

        return replay


class Remembering(Kernel):
    """Its operands stay in the L2, whoever else runs, until they are flushed."""

    seen = False

    def duration(self) -> float:
        us = self.warm_us if self.seen and self.warm_us is not None else self.cold_us
        self.seen = True
        return us


@dataclass
class Governed(SimulatedQueue):
    """A GPU under a power cap: where it is busy for more than `most` of the last tens of milliseconds, its clock falls to `low`."""

    most: float = 0.6
    low: float = 0.75
    load: float = 0.0

    def __post_init__(self) -> None:
        self.share = lambda: self.low if self.load > self.most else 1.0
        self.drift = lambda: 1.0 / self.share()

    def enqueue(self, us: float, cpu_us: float, busy: bool = True) -> None:
        before = self.gpu
        super().enqueue(us, cpu_us)
        self.load *= math.exp(-(self.gpu - us - before) / 20_000.0)
        goal = 1.0 if busy else 0.0
        self.load = goal + (self.load - goal) * math.exp(-us / 20_000.0)

    def spin(self, us: float) -> None:
        self.spins.append(us)
        self.enqueue(us, 4.0, busy=False)
