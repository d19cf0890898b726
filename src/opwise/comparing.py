"""Compares two implementations within a run, or two runs, workload by workload, with the interval of the ratio.

Within a run the paired ratio is used if the run holds it: `versus_best` is that of the pair if the other is the fastest. All other ratios
are unpaired, from the two medians' intervals: the ends are the ratios of the ends that lie farthest apart, which is wider than 95 %. Drift
of clocks and temperature between two runs is in no interval. Where the power cap changes a cold kernel time, it is compared state by
state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from opwise.clocks import BOTH, TOLD, alike
from opwise.measure.stats import TIE
from opwise.record import CAPPED, FULL, Interval, Record

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
    """A against B at one workload. `ratio` is A's time over B's: under 1, A is faster. Without a ratio, `reason` says why.

    `state`: of the clock, for a cold kernel time: full or capped; both if the power cap changes neither side's time; "" for other times,
    and if a side is not ok."""

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
    state: str = ""


def verdict(ratio: float, low: float, high: float) -> str:
    """From A's side: faster or slower by 1 % or more if the interval excludes 1; same if the whole interval is within 1 %; undecided
    otherwise, when more samples would help. Exchanging A and B only exchanges faster and slower."""
    if high < 1 and ratio * (1 + TIE) <= 1:
        return FASTER
    if low > 1 and ratio >= 1 + TIE:
        return SLOWER
    return SAME if low * (1 + TIE) >= 1 and high <= 1 + TIE else UNDECIDED


def compare(a: Record, b: Record, what: str = "kernel", *, one_run: bool = False, state: str = FULL) -> Comparison:
    """Compares two cells of one workload. `one_run`: both were measured interleaved. `state`: that of a kernel's time."""
    cold = what == "kernel"
    both = Comparison(str(a.workload), a.implementation, b.implementation, NOTHING, a_device=a.device, b_device=b.device,
                      state=_named(a, b, state) if cold else "")  # fmt: skip
    x, y = (r.kernel_us(state) if cold else TIMES[what](r) for r in (a, b))
    missing = [_without(side, r, what, state) for side, r, time in (("A", a, x), ("B", b, y)) if r.status != "ok" or time is None]
    if missing or x is None or y is None or min(x.low, y.low) <= 0:
        return replace(both, reason="; ".join(missing) or "a time of 0 us has no ratio")
    pair = _paired(a, b, state) if one_run and cold else None
    ratio, low, high = pair or (x.median / y.median, x.low / y.high, x.high / y.low)
    return replace(both, verdict=verdict(ratio, low, high), ratio=ratio, low=low, high=high, paired=pair is not None,
                   a_us=x.median, b_us=y.median)  # fmt: skip


def in_states(a: Record, b: Record, what: str = "kernel", *, one_run: bool = False) -> Iterator[Comparison]:
    """One comparison; for a kernel's cold time that the power cap changes, one in each state in which either was timed."""
    timed = [r for r in (a, b) if r.timed]
    states = [FULL]
    if what == "kernel" and a.status == b.status == "ok" and any(r.kernel_capped_us is not None for r in timed):
        states = [state for state in (FULL, CAPPED) if any(r.kernel_us(state) is not None for r in timed)]
    for state in states:
        yield compare(a, b, what, one_run=one_run, state=state)


def _named(a: Record, b: Record, state: str) -> str:
    if a.status != "ok" or b.status != "ok":
        return ""
    return BOTH if a.kernel_capped_us is None and b.kernel_capped_us is None else state


def _without(side: str, r: Record, what: str, state: str) -> str:
    if r.status != "ok":
        return f"{side} is {r.status}: {r.reason}"
    return f"{side} has no {what} time" + (f" {TOLD[state]}" if what == "kernel" and r.timed else "")


def _paired(a: Record, b: Record, state: str) -> tuple[float, float, float] | None:
    """The paired ratio of a/b, where one of them is what the run measured all others against."""
    x, y = a.versus(state), b.versus(state)
    if x and y and alike(a, b, state) and all(math.isfinite(v) and v > 0 for v in (*x, *y)):
        if y == _BEST:
            return x
        if x == _BEST:
            ratio, low, high = y
            return 1 / ratio, 1 / high, 1 / low
    return None


_BEST = (1.0, 1.0, 1.0)


def implementations(records: Sequence[Record], a: str, b: str, what: str = "kernel") -> Iterator[Comparison]:
    """Comparisons within one run, in its order. A and B are `triton_jit/softmax`, `torch_eager/square:pow`, or a backend, for all its
    ops."""
    others = {str(r.workload): r for r in records if fits(b, r)}
    for r in records:
        if fits(a, r) and str(r.workload) in others:
            yield from in_states(r, others[str(r.workload)], what, one_run=True)


def fits(name: str, r: Record) -> bool:
    return name == r.implementation or (name == r.backend and not r.variant)


def runs(a: Sequence[Record], b: Sequence[Record], what: str = "kernel") -> Iterator[Comparison]:
    """Comparisons of two runs: every implementation at every workload that both hold, the last record where a run has several."""
    others = {(r.implementation, str(r.workload)): r for r in b}
    for (name, workload), r in {(r.implementation, str(r.workload)): r for r in a}.items():
        if (name, workload) in others:
            yield from in_states(r, others[name, workload], what)


def counted(found: Sequence[Comparison]) -> str:
    counts = Counter(c.verdict for c in found)
    return ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
