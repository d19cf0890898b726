"""One implementation on its way through a job, and the record fields that come out of it."""

from __future__ import annotations

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
    """One implementation on its way through a job."""

    implementation: Implementation
    verdict: Verdict
    output: Tensor
    prepare_s: float
    extra_bytes: int | None
    launches: list[Launch] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    times: dict[str, Timing] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def outcome_fields(candidate: Candidate) -> dict[str, Any]:
    """The verdict and what was learnt beside it. A wrong result never carries a time."""
    return {
        "status": "ok" if candidate.verdict.ok else "wrong",
        "reason": "; ".join(filter(None, [candidate.verdict.reason, *candidate.notes])),
        "error_ratio": candidate.verdict.error_ratio,
        "prepare_s": round(candidate.prepare_s, 6),
        "extra_bytes": candidate.extra_bytes,
    }


def time_fields(candidate: Candidate, cost: Cost, limit_us: float | None, fastest: Timing | None) -> dict[str, Any]:
    """Times in us, SOL, rates. A cold time that the roofs do not allow is refused, and the cell with it."""
    times = candidate.times
    fields: dict[str, Any] = {
        "limit_us": limit_us,
        "kernel_warm_us": _interval(times.get("warm")),
        "launch_us": _interval(times.get("launch")),
        "call_us": _interval(times.get("call")),
    }
    cold = times.get("cold")
    if cold is None or limit_us is None or fastest is None:
        return fields
    if cold.median_us < IMPOSSIBLE * limit_us:
        reason = f"the measurement is refused: {cold.median_us:.2f} us is less than the limit of {limit_us:.2f} us allows"
        return fields | {"status": "failed", "reason": reason}
    return fields | {
        "kernel_cold_us": _interval(cold),
        "sol": limit_us / cold.median_us,
        "gb_per_s": cost.bytes / cold.median_us / 1e3,
        "tflop_per_s": cost.flops / cold.median_us / 1e6,
        "versus_best": paired_ratio(cold, fastest),
    }


def _interval(timing: Timing | None) -> Interval | None:
    if timing is None:
        return None
    return Interval(
        timing.median_us, timing.low_us, timing.high_us, timing.samples, timing.method, timing.converged, timing.note, timing.rounds_us
    )


def worse(a: Verdict, b: Verdict) -> Verdict:
    """Wrong before right, then the larger error."""
    return a if (a.ok, -a.error_ratio) < (b.ok, -b.error_ratio) else b
