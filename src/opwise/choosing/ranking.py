"""Ranks backends by the time or energy that a purpose counts, breaks ties by a fixed preference, and compares with torch eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opwise import clocks, settling
from opwise.choosing import by_energy
from opwise.choosing.by_energy import ENERGY
from opwise.clocks import Triple
from opwise.measure.stats import TIE
from opwise.ops.spec import Workload
from opwise.record import CAPPED, FULL, STATES, Record

BASELINE = "torch_eager"

# Fewest requirements first, because of two that cost the same time the one that asks for less is the better one: torch alone; Triton,
# which comes with torch on Linux; CuPy and NVRTC, two wheels; Numba, which takes four; nvcc and a C++ compiler. Others come last.
PREFERENCE = ("torch_eager", "triton_jit", "cupy_raw", "numba_cuda", "torch_inline")

LEAD = 0.05  # over torch eager, of kernel times that nobody measured: they are 5 to 12 % off at the median (docs/choosing.md)

PURPOSES: Mapping[str, str] = {
    "stream": "what one call costs in a busy stream: the greater of call cost and cold kernel time",
    "kernel": "cold kernel time",
    # A captured graph replays with the caches as its launches leave them, which is what the warm time is taken in: a graph's replay. Its
    # launches are back to back, so that large products are power-capped in it.
    "graph": "kernel time in a replayed graph (warm; its launches are back to back, so power-capped)",
    "call": "CPU time of one call",
    ENERGY: "mJ of a launch, where opwise run --energy measured it",
}

Time = tuple[float, float, float]  # median, low, high, in us
Seen = Callable[[Record, Record, Sequence[str]], Sequence[Triple]]  # ratios of two records' kernels, one a process


@dataclass(frozen=True)
class Standing:
    """One backend's place in a ranking. Times in us with their 95 % intervals; `ratio` is its time over the least one's.

    For the purpose energy it is ranked by `mj`: mJ of a launch over the states that the ranking compares; `full_mj` and `capped_mj` are
    those of each state, and `us` is its kernel time. For other purposes all `mj` are None.

    `kernel_us` is the kernel time that counts, over the states that the ranking compares; `full_us` is the cold one at full clock, None if
    unknown, `capped_us` the one under the power cap, the same if the cap changes nothing; both None for a graph. basis: measured,
    interpolated (between measured shapes), extrapolated (outside all of them), or predicted (from another GPU of the same compute
    capability). stale: why its figures may no longer hold, else "". `from_records`: the records behind the time. `tied`: within 1 % of the
    fastest, or not that much slower in every known run and process. across: the spread of its cold kernel time over stored runs, if
    requested."""

    backend: str
    us: float
    low: float
    high: float
    kernel_us: float
    call_us: float
    basis: str
    stale: str
    ratio: float = 1.0
    tied: bool = True
    from_records: tuple[Record, ...] = ()
    full_us: float | None = None
    capped_us: float | None = None
    mj: float | None = None
    full_mj: float | None = None
    capped_mj: float | None = None
    across: str = ""

    @property
    def counts(self) -> float:
        """The figure it is ranked by: mJ or us."""
        return self.us if self.mj is None else self.mj

    @property
    def unit(self) -> str:
        return "us" if self.mj is None else "mJ"

    @property
    def capped_only(self) -> bool:
        """Returns whether the figure that counts is unknown at full clock."""
        return self.in_state(FULL) is None and self.in_state(CAPPED) is not None

    def in_state(self, state: str) -> float | None:
        """Its kernel time in one of record.STATES, in us, or its energy in mJ if ranked by that."""
        full, capped = (self.full_us, self.capped_us) if self.mj is None else (self.full_mj, self.capped_mj)
        return full if state == FULL else capped


@dataclass(frozen=True)
class Choice:
    """The answer. `backend`: among batch-invariant kernels also a variant, such as "cupy_raw:invariant". `over_eager`: torch eager's time
    (or energy, for that purpose) over the chosen one's; `over_next`: the runner-up's; None if unknown. `refresh`: the command that measures
    stale figures again, else "". `excluded`: backends that could not be chosen, with the reason. `clock`: the requested one of
    clocks.CLOCKS; `states`: those in which the ranking compares kernels, () for a graph. settled: whether the choice is the same in every
    process, "" for times that were not taken side by side. For CPU tensors, which torch eager computes, `ranking` is empty."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    purpose: str
    device: str
    capability: str
    backend: str
    why: str
    over_eager: float | None
    over_next: float | None
    ranking: tuple[Standing, ...]
    excluded: Mapping[str, str]
    refresh: str = ""
    clock: str = clocks.BOTH
    states: tuple[str, ...] = ()
    layout: str = ""
    settled: str = ""

    @property
    def workload(self) -> Workload:
        return Workload(self.op, self.shape, self.dtype, self.layout)

    @property
    def implementation(self) -> str:
        """The name for `opwise.implementation`."""
        backend, colon, variant = self.backend.partition(":")
        return f"{backend}/{self.op}{colon}{variant}"

    @property
    def chosen(self) -> Standing:
        return next(s for s in self.ranking if s.backend == self.backend)


def counted(purpose: str, kernel: Time, call: Time) -> Time:
    """The time that a purpose counts. The interval of a maximum has the maxima of the ends."""
    if purpose == "call":
        return call
    if purpose == "stream":
        return max(kernel[0], call[0]), max(kernel[1], call[1]), max(kernel[2], call[2])
    return kernel


def ranked(
    standings: Sequence[Standing], purpose: str, states: Sequence[str] = STATES, seen: Seen = settling.ratios
) -> list[Standing]:  # fmt: skip
    """Fastest first, each with its ratio to the fastest. Ties (a ratio within 1 %, for energies 5 %, or not above it in any of the pair's
    `seen` ratios) go in order of preference. Among times that were not measured, the cheaper call comes first: if the kernel is shorter
    than predicted, the stream waits for the call. A lead over torch eager from such times counts from 5 % on."""
    leader = min(standings, key=lambda s: s.counts)
    placed = []
    for s in standings:
        ratio, open_ = s.counts / leader.counts, False
        if (pair := paired(s, leader, purpose)) and (found := clocks.paired(*pair, states)):
            ratio, open_ = found[0], s is not leader and not settling.apart(seen(*pair, states))
        placed.append(replace(s, ratio=ratio, tied=ratio < 1.0 + tie(purpose) or open_))
    guessed = _guessed([s for s in placed if s.tied], purpose)

    def place(s: Standing) -> tuple[object, ...]:
        if s.backend == BASELINE and s.ratio < 1.0 + LEAD and _guessed([s, leader], purpose):
            return (-1,)
        if not s.tied:
            return (1, s.ratio)
        return (0, s.call_us if guessed else 0.0, preference(s.backend))

    return sorted(placed, key=place)


def tie(purpose: str) -> float:
    """The ratio, less 1, below which two tie."""
    return by_energy.TIE if purpose == ENERGY else TIE


def _guessed(tied: Sequence[Standing], purpose: str) -> bool:
    """Does a tie rest on kernel times that nobody measured?"""
    return purpose == "stream" and any(s.basis != "measured" and s.kernel_us > s.call_us for s in tied)


def paired(s: Standing, leader: Standing, purpose: str) -> tuple[Record, Record] | None:
    """The records of both, if their times are cold kernel times interleaved in one job, so that drift is not in the ratio; else None."""
    if purpose not in ("stream", "kernel") or (purpose == "stream" and (s.call_us > s.kernel_us or leader.call_us > leader.kernel_us)):
        return None
    if s.basis != "measured" or leader.basis != "measured":
        return None
    one, best = s.from_records[0], leader.from_records[0]
    return None if one.seed is None or one.seed != best.seed else (one, best)


def preference(backend: str) -> tuple[int, str]:
    name = backend.partition(":")[0]
    return (PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE), backend)


def sentence(ranking: Sequence[Standing], purpose: str, states: Sequence[str] = STATES, clock: str = clocks.BOTH) -> str:
    """Why the first of the ranking is the choice, in one sentence. `states`: those compared, of those that `clock` names."""
    first, ties, slower = ranking[0], [s for s in ranking[1:] if s.tied], [s for s in ranking if not s.tied]
    more = "times as much" if purpose == ENERGY else "times slower"
    text = f"{first.backend}: {_cause(first, purpose)} {_figure(first, purpose, states, two=differ(ranking))}"
    if purpose == "stream" and first.call_us > first.kernel_us:
        text += ", more than its kernel"
    if not first.tied:
        faster = min(ranking, key=lambda s: s.ratio)
        text += f", within 5 % of {faster.backend}: at a shape that was not measured that is no lead"
    elif ties:
        better = "its call costs less" if _guessed([first, *ties], purpose) else "it asks for less to be installed"
        near = all(s.ratio < 1.0 + tie(purpose) for s in (first, *ties))
        how = f"within {100 * tie(purpose):.0f} % of" if near else "by what is known of runs and processes not to be told from"
        text += f", {how} {_listed([s.backend for s in ties])}, and {better}"
    elif slower:
        text += f", the least; the next is {slower[0].backend}, {slower[0].ratio:.3g} {more}"
    eager = next((s for s in slower if s.backend == BASELINE), None)
    if eager is not None and (ties or eager is not slower[0]):
        text += f"; torch eager is {eager.counts / first.counts:.3g} {more}"
    return text + _by_state(ranking, purpose, states, clock) + "."


def differ(ranking: Sequence[Standing]) -> bool:
    """Returns whether the power cap changes any figure that counts, as far as known."""
    return any(s.in_state(FULL) != s.in_state(CAPPED) for s in ranking)


def _cause(s: Standing, purpose: str) -> str:
    if purpose == "stream":
        return "its call costs" if s.call_us > s.kernel_us else "its kernel keeps the stream for"
    takes = {"kernel": "its kernel takes", "graph": "its replayed kernel takes", "call": "its call costs", ENERGY: "its launch draws"}
    return takes[purpose]


def _figure(s: Standing, purpose: str, states: Sequence[str], *, two: bool) -> str:
    """The time, or energy, that counts and, of a kernel's where it is not the same in both, its state."""
    about, basis = ("", "") if s.basis == "measured" else ("about ", f" ({s.basis})")

    def figure(value: float) -> str:
        return f"{value:.3g}" if about else f"{value:.4g}"

    text, full, capped = f"{about}{figure(s.counts)} {s.unit}", s.in_state(FULL), s.in_state(CAPPED)
    if purpose in ("graph", "call") or (purpose == "stream" and s.call_us > s.kernel_us) or not two:
        return text + basis
    if len(states) == 1:
        return f"{text} {clocks.TOLD[states[0]]}{basis}"
    if full is None or capped is None or full == capped:
        return f"{text} in both states of the clock{basis}"
    return f"{about}{figure(full)} {s.unit} at full clock, {figure(capped)} power-capped{basis}: geometric mean {figure(s.counts)} {s.unit}"


def _by_state(ranking: Sequence[Standing], purpose: str, states: Sequence[str], clock: str) -> str:
    """What else is to be said of the states: which is the fastest in which, where it is not the choice in both; or which could not be
    asked."""
    if purpose not in ("stream", "kernel", ENERGY):
        return ""
    what, best = ("energy", "draws the least") if purpose == ENERGY else ("time", "is the fastest")
    if lacking := [s.backend for s in ranking if s.capped_only and clock == clocks.BOTH]:
        of = f" of {_listed(lacking)}" if len(lacking) < len(ranking) else ""
        return f"; no {what} at full clock{of} is on record, so all are compared power-capped"
    if len(states) < 2 or not differ(ranking):
        return ""
    fastest = {state: _fastest(ranking, purpose, state) for state in states}
    if set(fastest.values()) == {ranking[0].backend}:
        return ""
    return f"; {clocks.TOLD[FULL]} {fastest[FULL]} {best}, {clocks.TOLD[CAPPED]} {fastest[CAPPED]}"


def _fastest(ranking: Sequence[Standing], purpose: str, state: str) -> str:
    """In one state; the choice, where it is tied."""

    def value(s: Standing) -> float:
        kernel = s.in_state(state) or 0.0
        return max(kernel, s.call_us) if purpose == "stream" else kernel

    least = min(ranking, key=value)
    return ranking[0].backend if value(ranking[0]) < value(least) * (1.0 + tie(purpose)) else least.backend


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
