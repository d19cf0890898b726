"""One implementation's state within a job, and the record fields from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from opwise.backends.protocol import Implementation, Launch
from opwise.measure.timing import Timing, paired_ratio
from opwise.measure.validate import Verdict
from opwise.ops.spec import Cost
from opwise.record import Interval

IMPOSSIBLE = 0.95  # a cold time under this share of the limit is a defect of the measurement


@dataclass
class Candidate:
    """One implementation's state within a job."""

    implementation: Implementation
    verdict: Verdict
    output: Tensor
    prepare_s: float
    extra_bytes: int | None
    kernels: tuple[str, ...] = ()  # that ran, in a stand-in
    launches: list[Launch] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    times: dict[str, Timing] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def outcome_fields(candidate: Candidate) -> dict[str, Any]:
    """Record fields of the verdict. A wrong result never has a time."""
    return {
        "status": "ok" if candidate.verdict.ok else "wrong",
        "reason": "; ".join(filter(None, [candidate.verdict.reason, *candidate.notes])),
        "error_ratio": candidate.verdict.error_ratio,
        "prepare_s": round(candidate.prepare_s, 6),
        "extra_bytes": candidate.extra_bytes,
        "kernels": candidate.kernels,
    }


@dataclass(frozen=True)
class Limits:
    """us: by the roofs at full clock; capped_us: by the peak under the power cap, None if it slows no candidate."""

    us: float
    capped_us: float | None = None


def time_fields(candidate: Candidate, cost: Cost, limits: Limits | None, fastest: Mapping[str, Timing]) -> dict[str, Any]:
    """Times in us, SOL, rates, clocks, in both states. A time below what the roofs allow is refused, and the cell with it.

    fastest: the least of all candidates for each kind of time, "cold" and "capped"."""
    times = candidate.times
    fields: dict[str, Any] = {
        "limit_us": limits.us if limits is not None else None,
        "kernel_warm_us": interval_of(times.get("warm")),
        "launch_us": interval_of(times.get("launch")),
        "call_us": interval_of(times.get("call")),
    }
    if limits is None:
        return fields
    cold: dict[str, Any] = {}
    for kind, made in (("cold", _full_fields), ("capped", _capped_fields)):
        if (timing := times.get(kind)) is None:
            continue
        if timing.median_us < IMPOSSIBLE * limits.us:
            reason = f"the measurement is refused: {kind} {timing.median_us:.2f} us is less than the limit of {limits.us:.2f} us allows"
            return fields | {"status": "failed", "reason": reason}
        cold |= made(timing, cost, limits, fastest[kind])
    return fields | cold


def _full_fields(timing: Timing, cost: Cost, limits: Limits, fastest: Timing) -> dict[str, Any]:
    return {
        "kernel_cold_us": interval_of(timing),
        "versus_best": paired_ratio(timing, fastest),
        "rest_us": timing.rest_us or None,
        "sol": limits.us / timing.median_us,
        "gb_per_s": cost.bytes / timing.median_us / 1e3,
        "tflop_per_s": cost.flops / timing.median_us / 1e6,
        "sm_clock_mhz": timing.sm_clock_mhz,
        "temperature_c": timing.temperature_c,
        "power_w": timing.power_w,
        "throttle": timing.throttle,
    }


def _capped_fields(timing: Timing, cost: Cost, limits: Limits, fastest: Timing) -> dict[str, Any]:
    return {
        "kernel_capped_us": interval_of(timing),
        "capped_versus_best": paired_ratio(timing, fastest),
        "capped_limit_us": limits.capped_us,
        "capped_sol": limits.capped_us / timing.median_us if limits.capped_us is not None else None,
        "capped_tflop_per_s": cost.flops / timing.median_us / 1e6,
        "capped_sm_clock_mhz": timing.sm_clock_mhz,
        "capped_power_w": timing.power_w,
        "capped_throttle": timing.throttle,
    }


def interval_of(timing: Timing | None) -> Interval | None:
    """A timing's median with its interval, as records keep it."""
    if timing is None:
        return None
    return Interval(
        timing.median_us, timing.low_us, timing.high_us, timing.samples, timing.method, timing.converged, timing.note, timing.rounds_us
    )


def worse(a: Verdict, b: Verdict) -> Verdict:
    """The worse of two verdicts: wrong before right, then the larger error."""
    return a if (a.ok, -a.error_ratio) < (b.ok, -b.error_ratio) else b
