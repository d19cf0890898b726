"""Checks an output: every element against a float64 reference and an elementwise bound, in a buffer that shows stray writes.

Everything works in chunks on the output's own device, so that more than 2^31 elements need no second copy. Nothing is sampled: every
element is checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Launch = Callable[[], None]

GUARD_BYTES = 64 * 1024  # a band on each side: the beginning of any run past either end falls into it
GUARD_BYTE = 0xA5  # no kernel writes it by chance: as float32 -2.9e-16, as float16 -0.022, as bfloat16 -2.9e-16
SENTINEL = 24576.0  # finite, exact in every dtype, and far from what N(0, 1) inputs lead to
# About 2 ms on any GPU, longer than an idle CPU needs to enqueue poison and launch behind it, and what a busy one is given instead.
SPINS_CYCLES = (4_000_000, 16_000_000, 64_000_000, 256_000_000)
BIAS = 0.5  # of the bound: what errors may have in common, see `judge`
DEVIATIONS = 7.0  # of the mean error of elements that err independently: passed by chance once in 10^11 outputs
_INT_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Verdict:
    """`error_ratio` is the largest |out - r| / bound: at most 1 when right, inf if a nan or an inf is out of place or a write is stray or
    missing. `reason` is one line, "" when right. `lean`: the mean signed error over the output, see `judge`."""

    ok: bool
    error_ratio: float
    reason: str = ""
    lean: float = 0.0


def overflow_threshold(dtype: torch.dtype) -> float:
    """The least magnitude that rounds to nearest to inf: half a unit in the last place above the largest finite number."""
    info = torch.finfo(dtype)
    power = info.max / (2.0 - info.eps)  # largest = (2 - eps) 2^e
    return info.max + 0.5 * info.eps * power


def judge(out: Tensor, reference64: Tensor, bound64: Tensor, bias: float = BIAS) -> Verdict:
    """out: any floating dtype; reference64, bound64: float64, of out's shape, on any device.

    nan must be where the reference is nan, inf where the reference, rounded to out's dtype, is inf; an element whose reference is within
    its bound of the overflow threshold may be either. All others must be within the bound. Raises TypeError or ValueError for an invalid
    reference or bound, since a check that cannot fail must not pass.

    An output within the bound everywhere may still be biased, by skipped terms or by truncation. So the mean over the output of (out - r)
    sign(r) / bound must be within `bias`, the allowance for errors that elements share (a row's sum, a tensor core's truncation), plus
    DEVIATIONS / sqrt(elements) of the ratios' root mean square, the allowance for independent ones. Here r is rounded to out's dtype: if
    inputs have few values, the output's roundings are not independent."""
    for name, x in (("reference64", reference64), ("bound64", bound64)):
        if x.dtype != torch.float64:
            raise TypeError(f"judge: {name} is {x.dtype}, float64 is taken: compute it from inputs cast by .double()")
        if x.shape != out.shape:
            raise ValueError(f"judge: {name} has shape {tuple(x.shape)}, out has {tuple(out.shape)}: give it the output's shape")
    wrong, worst, first = 0, 0.0, ""
    signed, squared = 0.0, 0.0
    threshold = overflow_threshold(out.dtype)
    for start, (o, r, b) in _chunks(out, reference64, bound64):
        wide = o.double()
        ratio = _ratios(wide, r, b, threshold)
        bad = ~(ratio <= 1.0)  # so that a nan ratio is bad
        leaning = _leaning(wide, r, b, out.dtype)
        count, largest, unsound, part, norm = torch.stack(
            [bad.sum(), ratio.nan_to_num(nan=math.inf, posinf=math.inf).max(), _unsound(r, b).sum(), leaning.sum(), leaning.norm()]
        ).tolist()
        signed, squared = signed + part, squared + norm**2
        if unsound:
            raise ValueError(f"judge: {int(unsound)} bounds are nan or negative where the reference is finite: mend the error bound")
        if count and not wrong:
            at = int(bad.nonzero()[0])
            got, expected, allowed = (float(x[at]) for x in (o, r, b))
            first = f"first at {_unravel(start + at, out.shape)}: got {got:.9g}, expected {expected:.9g}, bound {allowed:.3g}"
        wrong, worst = wrong + int(count), max(worst, float(largest))
    if wrong:
        return Verdict(False, worst, f"{wrong} of {out.numel()} elements wrong, {first}")
    n = max(out.numel(), 1)
    lean, allowed = signed / n, bias + DEVIATIONS * math.sqrt(squared) / n
    if abs(lean) > allowed:
        reason = f"errors lean to one side: their mean is {lean:.3g} of the bound, {allowed:.3g} is allowed"
        return Verdict(False, worst, reason, lean)
    return Verdict(True, worst, lean=lean)


def _ratios(o: Tensor, r: Tensor, b: Tensor, threshold: float) -> Tensor:
    """|o - r| / b elementwise; 0 where both are the same nan or inf, inf where their classes differ."""
    # An infinite output stands for everything from the threshold on: it is off by what the reference lacks to reach it.
    lacks = (threshold - r * o.sign()).clamp_min(0.0)
    error = torch.where(o.isinf(), lacks, (o - r).abs())
    ratio = torch.where(error == 0.0, 0.0, error / b)  # 0 / 0 is right
    ratio = torch.where(r.isinf(), torch.where(o == r, 0.0, math.inf), ratio)
    return torch.where(r.isnan() | o.isnan(), torch.where(r.isnan() & o.isnan(), 0.0, math.inf), ratio)


def _leaning(o: Tensor, r: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """(o - r) / b with r rounded to the output's dtype, positive away from zero; 0 where either is no finite number, or neither is off."""
    off = o - r.to(dtype)
    return off.mul_(r.sign()).div_(b).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _unsound(r: Tensor, b: Tensor) -> Tensor:
    return r.isfinite() & ~(b >= 0.0)


class Guarded:
    """An uninitialised tensor whose first byte is 256-byte aligned (plus `offset` elements), with a guard band on both sides."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, offset: int = 0, guard: int = GUARD_BYTE):
        shape = tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        self._guard = guard
        self._bytes = torch.empty(nbytes + 2 * GUARD_BYTES + 512, dtype=torch.uint8, device=device)
        aligned = -(self._bytes.data_ptr() + GUARD_BYTES) % 256 + GUARD_BYTES
        self._begin = aligned + offset * dtype.itemsize
        self._end = self._begin + nbytes
        self.tensor = self._bytes[self._begin : self._end].view(dtype).view(shape)
        self._bytes[: self._begin].fill_(guard)
        self._bytes[self._end :].fill_(guard)

    def poison(self, value: float) -> None:
        """Fills the tensor on the current stream, so that elements that a kernel skips show."""
        self.tensor.fill_(value)

    def intact(self) -> str:
        """ "", or what was overwritten."""
        found = []
        for where, band in (("before the start", self._bytes[: self._begin].flip(0)), ("after the end", self._bytes[self._end :])):
            touched = (band != self._guard).nonzero()
            if touched.numel():
                found.append(f"{touched.shape[0]} bytes {where} of the output were overwritten, the nearest {int(touched[0])} bytes away")
        return "; ".join(found)


def fingerprint(tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """A hash of the bytes, shapes and dtypes: if it is equal before and after, nothing was written.

    Computed on the device and read once per tensor. Two sums of the words, one plain and one of words mixed with their position, both in
    wrapping 64-bit integers: a single changed element always changes the first, exchanged ones the second."""
    prints = []
    for x in tensors:
        x = x.detach()
        words = x.contiguous().view(-1).view(_INT_VIEW[x.element_size()])
        total = torch.zeros(2, dtype=torch.int64, device=x.device)
        for start, (part,) in _chunks(words):
            word = part.long()
            place = torch.arange(start + 1, start + 1 + word.numel(), device=x.device)
            mixed = (word ^ (place * 0x5851F42D4C957F2D)) * 0x2545F4914F6CDD1D
            total += torch.stack([word.sum(), (mixed ^ (mixed >> 29)).sum()])
        prints.append((*total.tolist(), *x.shape, x.element_size()))
    return tuple(prints)


def check(prepare: Callable[..., Launch], inputs: Sequence[Tensor], reference64: Tensor, bound64: Tensor, *, offset: int = 0) -> Verdict:
    """Runs `prepare(*inputs, out=t)` and its launch twice into a guarded output, `offset` elements off alignment; returns the worse
    verdict.

    Once over nan on the current stream; once over a finite sentinel on a side stream behind a spin, where work on any other stream runs
    before the poison and is lost. Then it checks that guard bands and inputs are unchanged. Exceptions of `prepare` and of the launch
    propagate."""
    before = fingerprint(inputs)
    guarded = Guarded(reference64.shape, inputs[0].dtype, inputs[0].device, offset=offset)
    launch = prepare(*inputs, out=guarded.tensor)
    verdicts = []
    for value, run in ((math.nan, _run_here), (SENTINEL, _run_aside)):
        run(guarded, value, launch)
        verdict = judge(guarded.tensor, reference64, bound64)
        if not verdict.ok:
            unwritten = told_unwritten(guarded.tensor, value, reference64)
            verdict = Verdict(False, math.inf, f"{verdict.reason}; {unwritten}") if unwritten else verdict
        verdicts.append(verdict)
    if inputs[0].is_cuda:
        torch.cuda.synchronize(inputs[0].device)  # stray work on any stream is over before the bands are looked at
    verdicts += [Verdict(False, math.inf, stray) for stray in (guarded.intact(),) if stray]
    if fingerprint(inputs) != before:
        verdicts.append(Verdict(False, math.inf, "an input was overwritten"))
    return max(verdicts, key=lambda verdict: (not verdict.ok, verdict.error_ratio))


def _run_here(guarded: Guarded, value: float, launch: Launch) -> None:
    guarded.poison(value)
    launch()
    if guarded.tensor.is_cuda:
        torch.cuda.current_stream(guarded.tensor.device).synchronize()


def _run_aside(guarded: Guarded, value: float, launch: Launch) -> None:
    """The launch has run before, so that no module is left to load behind the spin."""
    device = guarded.tensor.device
    if device.type != "cuda":
        _run_here(guarded, value, launch)
        return
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for cycles in SPINS_CYCLES:
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            spun = side.record_event()
            guarded.poison(value)
            launch()
            in_time = not spun.query()  # else the poison may have come before what ran elsewhere; so it is where a launch waits
        torch.cuda.synchronize(device)
        if in_time:
            return


def told_unwritten(out: Tensor, value: float, reference64: Tensor) -> str:
    """ "" where all is written. Over nan, a kernel that writes nan looks like one that writes nothing."""
    count = _unwritten(out, value, reference64)
    return f"{count} unwritten{' or nan' if math.isnan(value) else ''}" if count else ""


def _unwritten(out: Tensor, value: float, reference64: Tensor) -> int:
    """How many elements still hold the poison where the truth is something else."""
    count = 0
    for _, (o, r) in _chunks(out, reference64):
        same = o.isnan() & ~r.isnan() if math.isnan(value) else (o == value) & (r != value)
        count += int(same.sum())
    return count


def agree(outputs: Mapping[str, Tensor], bound64: Tensor) -> dict[tuple[str, str], float]:
    """Pairwise largest |a - b| / (2 bound): at most 1 for two right outputs. A wrong reference shows as all outputs against it.

    An inf beside a finite number counts as the overflow threshold; a nan beside anything else as inf."""
    return {(a, b): _disagreement(outputs[a], outputs[b], bound64) for a, b in itertools.combinations(outputs, 2)}


def _disagreement(a: Tensor, b: Tensor, bound64: Tensor) -> float:
    worst = 0.0
    for _, (x, y, bound) in _chunks(a, b, bound64):
        one, other = (_as_finite(z.double(), overflow_threshold(z.dtype)) for z in (x, y))
        apart = (one - other).abs()
        ratio = torch.where(apart == 0.0, 0.0, apart / (2.0 * bound))
        ratio = torch.where(one.isnan() & other.isnan(), 0.0, ratio)
        worst = max(worst, float(ratio.nan_to_num(nan=math.inf, posinf=math.inf).max()))
    return worst


def _as_finite(x: Tensor, threshold: float) -> Tensor:
    return torch.where(x.isinf(), x.sign() * threshold, x)


def _chunks(*tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """(first index, flat pieces on the first tensor's device). A row-major tensor is not copied."""
    device = tensors[0].device
    size = 2**25 if device.type == "cuda" else 2**20  # 256 MiB of float64 a temporary on a GPU, the L2's size on a CPU
    flat = [x.reshape(-1) for x in tensors]
    for start in range(0, flat[0].numel(), size):
        yield start, tuple(x[start : start + size].to(device) for x in flat)


def _unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    place: list[int] = []
    for n in reversed(shape):
        index, rest = divmod(index, n)
        place.insert(0, rest)
    return tuple(place)
