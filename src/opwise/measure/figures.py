"""A candidate's measured figure: a median with its interval, and the GPU's state meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .rounds import MIN_SAMPLES, Course
from .stats import median, median_interval, paired, settled

CPU_SETTLED = 0.02  # of the median: an interpreter's calls scatter by more than kernels do


@dataclass(frozen=True)
class Timing:
    """A median with its bootstrap 95 % interval, us of one launch. `rounds_us`: the blocks' medians in round order, the same number for all
    candidates of one call. `converged`: the interval is within 0.5 % (2 % for CPU costs) and there are 30 samples. `note`: anomalies.
    `rest_us`: the pause after each launch. SM clock and power are medians over the blocks, `throttle` all reasons that the driver gave
    after one; None and () if unknown."""

    median_us: float
    low_us: float
    high_us: float
    samples: int
    converged: bool
    method: str
    note: str = ""
    rounds_us: tuple[float, ...] = ()
    rest_us: float = 0.0
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


def paired_ratio(a: Timing, b: Timing) -> tuple[float, float, float]:
    """(median, low, high) of a's over b's rounds, with a bootstrap 95 % interval; see `tied`.

    Raises ValueError unless both come from one call."""
    return paired(a.rounds_us, b.rounds_us)


def method_of(course: Course) -> str:
    return "events" if course.flushed and course.launches == 1 else "graph"


def timing_of(course: Course, method: str, rest: float = 0.0) -> Timing:
    samples = course.samples
    middle, low, high = median_interval(samples)
    late_note = f"{course.late} batches began before they were enqueued" if course.late else ""
    narrow = max(high - middle, middle - low) <= CPU_SETTLED * middle if method == "cpu" else settled(middle, low, high, course.tick_us)
    launches = len(samples) * (course.launches if method == "cpu" else 1)  # a sample of CPU cost is a mean over that many
    converged = narrow and launches >= MIN_SAMPLES and not course.starved
    states = [look.state for look in course.looks]
    return Timing(
        middle, low, high, len(samples), converged, method, "; ".join(filter(None, (course.starved, late_note))),
        rounds_us=tuple(median(block) for block in course.blocks),
        rest_us=rest * course.busy_us / course.launches,
        sm_clock_mhz=_median_of(state.sm_clock_mhz for state in states),
        power_w=_median_of(state.power_w for state in states),
        temperature_c=_median_of(state.temperature_c for state in states),
        throttle=tuple(dict.fromkeys(reason for state in states for reason in state.throttle if reason != "idle")),
    )  # fmt: skip


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
