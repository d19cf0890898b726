"""Power from NVML's energy counter: its slope between the first and the last observed step.

The counter moves in steps of tens of milliseconds, so its values at the two ends of a stretch include time outside. It is read throughout,
and only the span between two of its steps counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from .device import State

LOOK_S = 0.004  # between two looks at the instruments


class Instruments(Protocol):
    """The methods of measure.device.Monitor that are used."""

    def sample(self) -> State: ...

    def energy_mj(self) -> float | None: ...


def power_w(readings: Sequence[tuple[float, float]]) -> float | None:
    """readings: (us, mJ) of a counter that moves in steps. Its slope in W from the first observed step to the last; None with fewer than
    two."""
    moved = [after for before, after in itertools.pairwise(readings) if after[1] != before[1]]
    if len(moved) < 2:
        return None
    (began, first), (ended, last) = moved[0], moved[-1]
    return (last - first) / (ended - began) * 1e3  # mJ / us is kW
