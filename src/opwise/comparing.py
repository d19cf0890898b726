"""Is A faster than B? Of two implementations within a run, or of two runs: workload by workload, with the interval of the ratio.

Within a run the paired ratio is taken where the run holds it: `versus_best` of one is that of the pair where the other is the fastest.
Everything else is unpaired, made of the two medians' intervals: the ends are the ratio of the ends that lie farthest apart, which is wider
than 95 % asks for. What drifts between two runs, clocks and heat, is in no interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from opwise.measure.stats import TIE
from opwise.record import Interval, Record

FASTER, SLOWER, SAME, UNDECIDED, NOTHING = "faster", "slower", "same", "undecided", "not compared"
VERDICTS = (FASTER, SLOWER, SAME, UNDECIDED, NOTHING)
TIMES: dict[str, Callable[[Record], Interval | None]] = {
    "kernel": lambda r: r.kernel_cold_us,
    "warm": lambda r: r.kernel_warm_us,
    "launch": lambda r: r.launch_us,
    "call": lambda r: r.call_us,
}


@dataclass(frozen=True)
class Comparison:
    """A against B at one workload. `ratio` is A's time over B's: under 1, A is faster. Where there is none, `reason` says why."""

    workload: str
    a: str
    b: str
    verdict: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    paired: bool = False
    a_us: float | None = None
    b_us: float | None = None
    a_device: str = ""
    b_device: str = ""
    reason: str = ""


def verdict(ratio: float, low: float, high: float) -> str:
    """From A's side: faster or slower by 1 % or more with an interval that leaves 1 out; same where the whole interval is within
    1 %; undecided otherwise: more samples would tell. Exchanging A and B exchanges faster and slower and nothing else."""
    if high < 1 and ratio * (1 + TIE) <= 1:
        return FASTER
    if low > 1 and ratio >= 1 + TIE:
        return SLOWER
    return SAME if low * (1 + TIE) >= 1 and high <= 1 + TIE else UNDECIDED


def compare(a: Record, b: Record, what: str = "kernel", *, one_run: bool = False) -> Comparison:
    """Two cells of one workload; `one_run` where both were measured interleaved."""
    both = Comparison(str(a.workload), a.implementation, b.implementation, NOTHING, a_device=a.device, b_device=b.device)
    x, y = TIMES[what](a), TIMES[what](b)
    missing = [_without(side, r, what) for side, r, time in (("A", a, x), ("B", b, y)) if r.status != "ok" or time is None]
    if missing or x is None or y is None or min(x.low, y.low) <= 0:
        return replace(both, reason="; ".join(missing) or "a time of 0 us has no ratio")
    pair = _paired(a, b) if one_run and what == "kernel" else None
    ratio, low, high = pair or (x.median / y.median, x.low / y.high, x.high / y.low)
    return replace(both, verdict=verdict(ratio, low, high), ratio=ratio, low=low, high=high, paired=pair is not None,
                   a_us=x.median, b_us=y.median)  # fmt: skip


def _without(side: str, r: Record, what: str) -> str:
    return f"{side} is {r.status}: {r.reason}" if r.status != "ok" else f"{side} has no {what} time"


def _paired(a: Record, b: Record) -> tuple[float, float, float] | None:
    """The paired ratio of a/b, where one of them is what the run measured all others against."""
    if a.versus_best and b.versus_best and all(math.isfinite(v) and v > 0 for v in (*a.versus_best, *b.versus_best)):
        if _is_best(b):
            return a.versus_best
        if _is_best(a):
            ratio, low, high = b.versus_best
            return 1 / ratio, 1 / high, 1 / low
    return None


def _is_best(r: Record) -> bool:
    return r.versus_best == (1.0, 1.0, 1.0)


def implementations(records: Sequence[Record], a: str, b: str, what: str = "kernel") -> Iterator[Comparison]:
    """Of one run, in its order: A and B are `triton_jit/softmax`, `torch_eager/square:pow`, or a backend, which stands for all its ops."""
    others = {str(r.workload): r for r in records if fits(b, r)}
    for r in records:
        if fits(a, r) and str(r.workload) in others:
            yield compare(r, others[str(r.workload)], what, one_run=True)


def fits(name: str, r: Record) -> bool:
    return name == r.implementation or (name == r.backend and not r.variant)


def runs(a: Sequence[Record], b: Sequence[Record], what: str = "kernel") -> Iterator[Comparison]:
    """Of two runs: every implementation at every workload that both hold; the last of each, where a run holds it twice."""
    others = {(r.implementation, str(r.workload)): r for r in b}
    for (name, workload), r in {(r.implementation, str(r.workload)): r for r in a}.items():
        if (name, workload) in others:
            yield compare(r, others[name, workload], what)


def counted(found: Sequence[Comparison]) -> str:
    counts = Counter(c.verdict for c in found)
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
