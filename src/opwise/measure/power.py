"""Power, from NVML's energy counter: its slope between the first and the last step that was seen.

The counter moves in steps of tens of milliseconds, and what it says at the two ends of a stretch belongs in part to the neighbours. So it
is looked at all along, and only what lies between two of its steps counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from .device import State

LOOK_S = 0.004  # between two looks at the instruments


class Instruments(Protocol):
    """What measure.device.Monitor offers."""

    def sample(self) -> State: ...

    def energy_mj(self) -> float | None: ...


def power_w(readings: Sequence[tuple[float, float]]) -> float | None:
    """readings: (us, mJ) of a counter that moves in steps. Its slope from the first step seen to the last; None with fewer than two."""
    moved = [after for before, after in itertools.pairwise(readings) if after[1] != before[1]]
    if len(moved) < 2:
        return None
    (began, first), (ended, last) = moved[0], moved[-1]
    return (last - first) / (ended - began) * 1e3  # mJ / us is kW
