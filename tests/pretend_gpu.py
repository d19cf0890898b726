"""A place whose GPU is the CPU: the code of experiments that need a GPU runs, and its times are of nothing that anyone is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from opwise.measure.timing import Clock
from opwise.ops.spec import Cost
from opwise.seeds.place import Place


class PretendQueue:
    """Runs each launch where it is enqueued."""

    def __init__(self, l2_bytes: int = 0) -> None:
        self.l2_bytes = l2_bytes

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        yield

    def spin(self, us: float) -> None: ...

    def flush(self) -> None: ...

    def wait(self) -> None: ...

    def mark(self) -> float:
        return self.now_us()

    def reached(self, mark: float) -> bool:
        return False

    def elapsed_us(self, start: float, end: float) -> float:
        return max(end - start, 1e-3)

    def now_us(self) -> float:
        return time.perf_counter_ns() / 1e3

    def clock_share(self) -> float:
        return 1.0

    def capture(self, launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
        return lambda: [launch() for launch in launches] and None


class PretendEvent:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: PretendEvent) -> float:
        return max((end.at - self.at) * 1e3, 1e-6)


class PretendPlace(Place):
    def __init__(self, l2_bytes: int = 0) -> None:
        super().__init__(torch.device("cpu"))
        self.clock = Clock(self.device, queue=PretendQueue(l2_bytes))

    def wait(self) -> None: ...

    def limit_us(self, work: Cost) -> float:
        return work.bytes / 1e6
