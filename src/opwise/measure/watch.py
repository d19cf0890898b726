"""Reads the SM clock by two instruments: a spin of known cycles shows at once whether it has dropped; the driver gives MHz and reasons,
with a lag of up to 0.2 s on an H200."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .device import POWER_REASONS, State
from .gpu import Queue
from .power import Instruments

FULL_CLOCK = 0.98  # of the highest that the driver has said: an H100 and an H200 step by 15 MHz of 1980
FULL_SPIN = 0.92  # of the quickest spin: behind a kernel that draws 600 W a spin is up to 2 % slower on an H200 and 5 % on an H100, both at
# the 1980 MHz that they hold; under the power cap it is 10 % slower and more
ASK_US = 30_000.0  # how old the driver's word may be: it is renewed every 100 ms, and asking takes 0.35 ms


@dataclass(frozen=True)
class Look:
    """The clock at one moment. share: of the highest, by a spin. state: the driver's report; highest_mhz: the highest SM clock that it has
    reported so far, None if none."""

    share: float
    state: State = field(default_factory=State)
    highest_mhz: float | None = None

    @property
    def full(self) -> bool:
        """Returns whether both instruments report full clock; the driver counts if it reports anything."""
        said = self.state.sm_clock_mhz
        low = said is not None and self.highest_mhz is not None and said < FULL_CLOCK * self.highest_mhz
        return self.share >= FULL_SPIN and not low and not self.capped_by

    @property
    def capped_by(self) -> list[str]:
        return [reason for reason in self.state.throttle if reason in POWER_REASONS]

    def __str__(self) -> str:
        said = f"; {self.state.sm_clock_mhz:.0f} of {self.highest_mhz:.0f} MHz by the driver" if self.highest_mhz else ""
        return f"{self.share:.3f} of the highest SM clock by a spin{said}; {', '.join(self.capped_by) or 'no power reason'}"


class Watch:
    """Reads the clock of an idle GPU, which is still that of its last kernel."""

    def __init__(self, queue: Queue, monitor: Instruments | None) -> None:
        self.queue, self.monitor = queue, monitor
        self._state, self._asked_us, self._highest_mhz = State(), -math.inf, 0.0

    def look(self) -> Look:
        share, now = self.queue.clock_share(), self.queue.now_us()
        if self.monitor is not None and now - self._asked_us >= ASK_US:
            self._state, self._asked_us = self.monitor.sample(), self.queue.now_us()
            self._highest_mhz = max(self._highest_mhz, self._state.sm_clock_mhz or 0.0)
        return Look(share, self._state, self._highest_mhz or None)
