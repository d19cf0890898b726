"""A seat without a worker, and a clock that says what it is told: jobs are carried out as a worker does, but for the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from stand_ins import FakeSeat
from tuned_tables import FACTS

from opwise.measure.timing import Timing
from opwise.runner import Event, Job, WorkerLost
from opwise.runner.cell import Bench, execute
from opwise.runner.seat import JobLost


class PlayedClock:
    """Says what each configuration takes. It launches once, since the buffers that were timed are checked."""

    refusals: Mapping[str, str] = {}

    def __init__(self, us: Callable[[str], float]) -> None:
        self.us = us

    def rotation(self, nbytes: int) -> int:
        return 1

    def both(self, candidates: Mapping[str, Any], turn: Any, budget_s: float) -> tuple[dict[str, Timing], dict[str, Timing]]:
        found = {}
        for name in candidates:
            us = self.us(name.partition(":")[2])
            for launch in candidates[name]:
                launch()
            found[name] = Timing(us, us * 0.999, us * 1.001, 40, True, "events", rounds_us=(us,) * 8)
        return found, {}

    def call_cost(self, calls: Any, turn: Any) -> dict[str, Timing]:
        return {}

    def limit_us(self, *work: Any) -> float:
        return 0.001


class InProcess(FakeSeat):
    """A seat without a worker: jobs are executed here, as a worker executes them."""

    us: Callable[[str], float] = staticmethod(lambda name: 10.0)
    lost: frozenset[str] = frozenset()

    def start(self) -> Any:
        self.setup()
        return super().start()

    def run(self, job: Job) -> Iterator[Event]:
        if str(job.workload) in self.lost:
            raise JobLost(job, WorkerLost("the GPU fell off the bus", ("", "calibrate")))
        clock: Any = PlayedClock(type(self).us)
        facts = {name: FACTS[name] for name in ("device", "capability", "driver", "versions", "commit", "dirty", "gpu")}
        yield Event(job, records=tuple(execute(job, Bench(torch.device("cpu"), facts, clock, clock), lambda name, phase: None)))
