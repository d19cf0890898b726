"""Which backend, and why: a ranking by the time that a purpose counts, ties broken by a stated preference, torch eager the yardstick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opwise.measure.stats import TIE
from opwise.record import Record

BASELINE = "torch_eager"

# Fewest requirements first, because of two that cost the same time the one that asks for less is the better one: torch alone; Triton,
# which comes with torch on Linux; CuPy and NVRTC, two wheels; Numba, which takes four; nvcc and a C++ compiler. Others come last.
PREFERENCE = ("torch_eager", "triton_jit", "cupy_raw", "numba_cuda", "torch_inline")

PURPOSES: Mapping[str, str] = {
    "stream": "what one call costs in a busy stream: the greater of call cost and cold kernel time",
    "kernel": "cold kernel time",
    # A captured graph replays with the caches as its launches leave them, which is what the warm time is taken in: a graph's replay.
    "graph": "kernel time in a replayed graph (warm)",
    "call": "CPU time of one call",
}

Time = tuple[float, float, float]  # median, low, high, in us


@dataclass(frozen=True)
class Standing:
    """One backend's place in a ranking. Times in us with their 95 % intervals; `ratio` is its time over the least one's.

    basis: measured, interpolated (between measured shapes) or extrapolated (outside of all of them). stale: why its figures no longer
    tell what would be measured now, "" where they do. `from_records`: those that the time comes from.
    """

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


@dataclass(frozen=True)
class Choice:
    """The answer. `margin`: torch eager's time over the chosen one's, None where torch eager has no figure. `refresh`: the command that
    measures again what is stale, "" where nothing is. `excluded`: backends that could not be chosen, with the reason."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    purpose: str
    device: str
    capability: str
    backend: str
    why: str
    margin: float | None
    ranking: tuple[Standing, ...]
    excluded: Mapping[str, str]
    refresh: str = ""

    @property
    def implementation(self) -> str:
        """As `opwise.implementation` takes it."""
        return f"{self.backend}/{self.op}"

    @property
    def chosen(self) -> Standing:
        return next(s for s in self.ranking if s.backend == self.backend)


def counted(purpose: str, kernel: Time, call: Time) -> Time:
    """The time that a purpose counts. Of two intervals' maximum, the ends are the maxima of the ends."""
    if purpose == "call":
        return call
    if purpose == "stream":
        return max(kernel[0], call[0]), max(kernel[1], call[1]), max(kernel[2], call[2])
    return kernel


def ranked(standings: Sequence[Standing], purpose: str) -> list[Standing]:
    """Fastest first, each with its ratio to the fastest; ties (a ratio within 1 %) in order of preference. Where a kernel's time is not a
    measured one, the cheaper call comes first: should the kernel be shorter than is thought, the call is what the stream waits for."""
    leader = min(standings, key=lambda s: s.us)
    placed = []
    for s in standings:
        ratio = paired_ratio(s, leader, purpose) or s.us / leader.us
        placed.append(replace(s, ratio=ratio, tied=ratio < 1.0 + TIE))
    guessed = _guessed([s for s in placed if s.tied], purpose)

    def place(s: Standing) -> tuple[object, ...]:
        if not s.tied:
            return (1, s.ratio)
        return (0, s.call_us if guessed else 0.0, preference(s.backend))

    return sorted(placed, key=place)


def _guessed(tied: Sequence[Standing], purpose: str) -> bool:
    """Does a tie rest on kernel times that nobody measured?"""
    return purpose == "stream" and any(s.basis != "measured" and s.kernel_us > s.call_us for s in tied)


def paired_ratio(s: Standing, leader: Standing, purpose: str) -> float | None:
    """From launches interleaved in one job, where both times are cold kernel times of one: drift is not in it. None elsewhere."""
    if purpose not in ("stream", "kernel") or (purpose == "stream" and (s.call_us > s.kernel_us or leader.call_us > leader.kernel_us)):
        return None
    if s.basis != "measured" or leader.basis != "measured":
        return None
    one, best = s.from_records[0], leader.from_records[0]
    if one.seed is None or one.seed != best.seed or one.versus_best is None or best.versus_best is None:
        return None
    return one.versus_best[0] / best.versus_best[0]


def preference(backend: str) -> tuple[int, str]:
    return (PREFERENCE.index(backend) if backend in PREFERENCE else len(PREFERENCE), backend)


def sentence(ranking: Sequence[Standing], purpose: str) -> str:
    """Why the first of the ranking is the choice, in one sentence."""
    first, ties, slower = ranking[0], [s for s in ranking[1:] if s.tied], [s for s in ranking if not s.tied]
    figure = f"{first.us:.4g} us" if first.basis == "measured" else f"about {first.us:.3g} us ({first.basis})"
    text = f"{first.backend}: {_FIGURE[purpose](first, figure)}"
    if ties:
        better = "its call costs less" if _guessed([first, *ties], purpose) else "it asks for less to be installed"
        text += f", within 1 % of {_listed([s.backend for s in ties])}, and {better}"
    elif slower:
        text += f", the least; the next is {slower[0].backend}, {slower[0].ratio:.3g} times slower"
    eager = next((s for s in slower if s.backend == BASELINE), None)
    if eager is not None and (ties or eager is not slower[0]):
        text += f"; torch eager is {eager.us / first.us:.3g} times slower"
    return text + "."


_FIGURE: Mapping[str, Callable[[Standing, str], str]] = {
    "stream": lambda s, figure: (
        f"its call costs {figure}, more than its kernel" if s.call_us > s.kernel_us else f"its kernel keeps the stream for {figure}"
    ),
    "kernel": lambda s, figure: f"its kernel takes {figure}",
    "graph": lambda s, figure: f"its replayed kernel takes {figure}",
    "call": lambda s, figure: f"its call costs {figure}",
}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
