"""The backend for each call of a recorded program, the time it saves, and the calls that stay unchanged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from opwise import clocks
from opwise.choosing.asked import NothingMeasured, gpu_of
from opwise.choosing.query import choose_from
from opwise.choosing.ranking import BASELINE, Choice
from opwise.choosing.store import Gpu, Store
from opwise.ops.spec import Workload
from opwise.program.calls import Call, Recording


@dataclass(frozen=True)
class Line:
    """Calls with one answer. choice: None if torch eager keeps them, for the reason in `why`. Times in us per call."""

    what: str  # the workload, or the function that only contains the op, with its sizes
    calls: int
    choice: Choice | None
    why: str

    @property
    def eager_us(self) -> float | None:
        return next((s.us for s in self.choice.ranking if s.backend == BASELINE), None) if self.choice else None

    @property
    def saved_s(self) -> float:
        """Seconds saved against torch eager, over all of its calls."""
        if self.choice is None or self.eager_us is None:
            return 0.0
        return self.calls * max(0.0, self.eager_us - self.choice.chosen.us) * 1e-6


@dataclass(frozen=True)
class Advice:
    """Lines by savings, then by calls. saved_s: of `seconds`, the program's time while it was recorded."""

    gpu: Gpu
    seconds: float
    lines: tuple[Line, ...]

    @property
    def saved_s(self) -> float:
        return sum(line.saved_s for line in self.lines)

    @property
    def choices(self) -> Mapping[Workload, str]:
        """Workload -> backend, for those where torch eager is not the choice."""
        found = [line.choice for line in self.lines if line.choice and line.choice.backend != BASELINE]
        return {choice.workload: choice.backend for choice in found}


def advice(recording: Recording, store: Store, device: str | None, purpose: str = "stream", clock: str = clocks.BOTH) -> Advice:
    """Raises ValueError for an unknown device, NothingMeasured where no GPU is on record."""
    gpu = gpu_of(store, device)
    counted: Mapping[tuple[str, str], list[Call]] = defaultdict(list)
    for call in recording.calls:
        counted[call.name, call.left_to_eager].append(call)
    lines = []
    for (what, why), calls in counted.items():
        number, choice = sum(call.calls for call in calls), None
        if not why and (workload := calls[0].workload) is not None:
            try:
                choice = choose_from(store, workload, gpu, purpose, clock)
            except NothingMeasured as nothing:
                why = str(nothing)
        lines.append(Line(what, number, choice, choice.why if choice else why))
    return Advice(gpu, recording.seconds, tuple(sorted(lines, key=lambda line: (-line.saved_s, -line.calls))))
