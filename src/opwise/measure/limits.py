"""The measured roofs of this GPU: memory bandwidth, peak flop rates, and the launch time of an empty kernel.

A roof is the best of several methods, measured by the same clock, in the same way and at the same number of bytes as the workload that it
limits: a roof that one of the project's own kernels exceeds was too low. Without Triton, only torch's methods are tried."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .gpu import Launch
from .timing import Clock

# A roof needs no interval of 0.5 %: it is the least of several medians, and 120 workloads hold about 50 different numbers of bytes.
ROOF_BUDGET_S = 0.04
ROOF_WARM_UP_S = 0.03
GRANULE = 64  # bytes: whole 16-byte accesses of 4 lanes, whatever the workload's size
MOST_BYTES = 4 << 30  # larger workloads are scaled from here: bandwidth stopped growing long before
# Grids of one block, of a multiple of 16 and of neither, in each of the shapes: Triton compiles in which of them a number is.
LOADED_WORDS = (512, 16 * 4096, 17 * 4096)
NEGLIGIBLE = 0.001  # of the bytes: mean writes one element, which needs no roof of its own
FLOPS_BOUND = 4.0  # a product that takes this many times what its bytes take at 1 GiB's bandwidth needs no memory roof
FEW_FLOPS = 4.0  # a byte: every GPU does more than twice as many in the time that it takes to move one
SMALL_PEAK = 1e12  # flop/s: under any GPU's
PEAK_SIZES = (2048, 4096, 8192)
PEAK_LAUNCHES = 8
PEAK_IDLE_S = 0.2  # a pause before each: the clock is at its highest, and the burst ends before the power cap takes hold
PEAK_DTYPES = {
    "fma": (torch.float32, "highest"),
    "tensor_float16": (torch.float16, "highest"),
    "tensor_bfloat16": (torch.bfloat16, "highest"),
    "tensor_tfloat32": (torch.float32, "high"),
}


def peak_counts(flops: int, nbytes: int, launch_us: float) -> bool:
    """Returns whether arithmetic can be the limit of a workload, on any GPU. If not, its unit's peak is not needed."""
    return flops > FEW_FLOPS * nbytes and flops / SMALL_PEAK * 1e6 > launch_us


class Roofs:
    """Roofs of the clock's device, each measured on first use and kept."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.device = clock, clock.device
        self._ours = _our_kernels()
        self._moved: dict[tuple[str, int], float] = {}  # (copy | read | write, bytes) -> us
        self._peaks: dict[str, float] = {}
        self._capped_peaks: dict[str, float] = {}
        self._launch: dict[str, float] = {}  # method -> us

    def memory_us(self, read_bytes: int, write_bytes: int) -> float:
        """The least time to read and write these bytes: pairs of both at the speed of a copy, the rest at that of reading or writing, all
        measured at the total number of bytes; never under an empty launch."""
        total = read_bytes + write_bytes
        if total == 0:
            return self.launch_us()
        copied = 2 * min(read_bytes, write_bytes)
        shares = {"copy": copied / total, "read" if read_bytes > write_bytes else "write": (total - copied) / total}
        wanted = {kind: share for kind, share in shares.items() if share >= NEGLIGIBLE}
        moved = sum(share * self._moved_us(kind, total) for kind, share in wanted.items())
        return max(moved / sum(wanted.values()), self.launch_us(total))

    def peak(self, unit: str) -> float:
        """Flop/s of `fma` (float32), `tensor_float16`, `tensor_bfloat16` or `tensor_tfloat32`. Raises KeyError for another unit."""
        if unit not in PEAK_DTYPES:
            raise KeyError(f"unknown unit {unit!r}: known are {', '.join(PEAK_DTYPES)}")
        if unit not in self._peaks:
            self._peaks[unit] = self._measured_peak(unit)
        return self._peaks[unit]

    def capped_peak(self, unit: str) -> float:
        """Flop/s of cuBLAS back to back, once the power cap has settled: the best of PEAK_SIZES. Unlike `peak` no bound: a kernel that
        draws less power is faster under the cap. Raises KeyError for another unit."""
        if unit not in PEAK_DTYPES:
            raise KeyError(f"unknown unit {unit!r}: known are {', '.join(PEAK_DTYPES)}")
        if unit not in self._capped_peaks:
            self._capped_peaks[unit] = max(2.0 * n**3 / us for n, us in self._products(unit, self.clock.sustained_us)) * 1e6
        return self._capped_peaks[unit]

    def launch_us(self, nbytes: int = 0) -> float:
        """An empty kernel, timed as a workload of `nbytes`: between events, or in a graph."""
        method = "graph" if self.clock.rotation(nbytes) > 1 else "events"
        if method not in self._launch:
            launch = self._ours.empty(self.device) if self._ours is not None else _touch(self.device)
            timing = self._cold({"empty": [launch] * (2 if method == "graph" else 1)})
            self._launch[method] = min(timing.values())
        return self._launch[method]

    def limit_us(self, read_bytes: int, write_bytes: int, flops: int, unit: str, *, capped: bool = False) -> float:
        """max(bytes / bandwidth, flops / peak), us, never under an empty launch. capped: with the peak under the power cap."""
        total = read_bytes + write_bytes
        launch_us = self.launch_us(total)
        if not peak_counts(flops, total, launch_us):
            return self.memory_us(read_bytes, write_bytes)
        arithmetic_us = flops / (self.capped_peak(unit) if capped else self.peak(unit)) * 1e6
        if arithmetic_us > launch_us + FLOPS_BOUND * self._moved_us("copy", 1 << 30) * total / (1 << 30):
            return arithmetic_us
        return max(self.memory_us(read_bytes, write_bytes), arithmetic_us, launch_us)

    def as_dict(self) -> dict[str, float]:
        """All roofs measured so far, units in the names."""
        found = {f"empty_launch_{method}_us": us for method, us in sorted(self._launch.items())}
        found |= {f"{kind}_{total}_bytes_gb_per_s": total / us / 1e3 for (kind, total), us in sorted(self._moved.items())}
        found |= {f"peak_{unit}_tflop_per_s": peak / 1e12 for unit, peak in sorted(self._peaks.items())}
        return found | {f"capped_peak_{unit}_tflop_per_s": peak / 1e12 for unit, peak in sorted(self._capped_peaks.items())}

    # ------------------------------------------------------------------------------------------------------------------------

    def _moved_us(self, kind: str, total: int) -> float:
        measured = min(total, MOST_BYTES)
        key = (kind, measured)
        if key not in self._moved:
            self._moved[key] = self._measured_move(kind, measured)
        return self._moved[key] * total / measured

    def _measured_move(self, kind: str, total: int) -> float:
        """us of the fastest way, over as many sets of buffers as the clock wants of a workload with these bytes."""
        each = total // 2 if kind == "copy" else total
        words = max(1, math.ceil(each / GRANULE)) * GRANULE // 4
        sets = []
        for _ in range(self.clock.rotation(total)):
            x = torch.empty(words, device=self.device).normal_()  # zeros draw less power and can run faster
            sets.append(self._ways(kind, x))
        return min(self._cold({name: [ways[name] for ways in sets] for name in sets[0]}).values())

    def _ways(self, kind: str, x: Tensor) -> Mapping[str, Launch]:
        if kind == "copy":
            y = torch.empty_like(x)
            return {"driver": _bound(y.copy_, x), "torch": _bound(torch.neg, x, out=y)} | self._own("copies", x, y)
        if kind == "read":
            one = torch.empty((), device=self.device)
            return {"torch": _bound(torch.sum, x, dim=0, out=one)} | self._own("reads", x)
        return {"driver": _bound(x.zero_), "torch": _bound(x.fill_, 1.0)} | self._own("writes", x)

    def _own(self, kind: str, *buffers: Tensor) -> dict[str, Launch]:
        return dict(getattr(self._ours, kind)(*buffers)) if self._ours is not None else {}

    def _cold(self, candidates: Mapping[str, Sequence[Launch]]) -> dict[str, float]:
        """Raises RuntimeError where no way works: a limit made of nothing would make every time look impossible."""
        timings = self.clock.cold(candidates, budget_s=ROOF_BUDGET_S, warm_up_s=ROOF_WARM_UP_S, hold=False)
        reasons = {name: self.clock.refusals.pop(name, "") for name in candidates}
        if not timings:
            raise RuntimeError(f"no roof can be measured on {self.device}: {reasons}")
        return {name: timing.median_us for name, timing in timings.items()}

    def _measured_peak(self, unit: str) -> float:
        best = max(2.0 * n**3 / us for n, us in self._products(unit, self._burst_us))
        if unit == "fma" and self._ours is not None:  # cuBLAS reaches three quarters of what chains of FMA alone do
            launch, flops = self._ours.fma(self.device)
            best = max(best, flops / self._burst_us(launch))
        return best * 1e6

    def _products(self, unit: str, us_of: Callable[[Launch], float]) -> Iterator[tuple[int, float]]:
        """(n, us) of cuBLAS's n x n x n."""
        dtype, precision = PEAK_DTYPES[unit]
        with _precision(precision):
            for n in PEAK_SIZES:
                a, b = (torch.randn(n, n, device=self.device).to(dtype) for _ in range(2))
                yield n, us_of(_bound(torch.mm, a, b, out=torch.empty_like(a)))

    def _burst_us(self, launch: Launch) -> float:
        return self.clock.burst_us(launch, PEAK_LAUNCHES, PEAK_IDLE_S)


def load_kernels(device: torch.device) -> None:
    """Compiles and loads the kernels that measure roofs, so that none is built while another GPU is timed."""
    if (ours := _our_kernels()) is None:
        return
    ours.empty(device)()
    ours.fma(device)[0]()
    for words in LOADED_WORDS:
        x, y = (torch.zeros(words, device=device) for _ in range(2))
        for _, launch in itertools.chain(ours.copies(x, y), ours.reads(x), ours.writes(y)):
            launch()


def _our_kernels() -> Any:
    """The module of Triton kernels, None where Triton is missing."""
    try:
        return importlib.import_module(".triton_roofs", __package__)
    except ImportError:
        return None


def _touch(device: torch.device) -> Launch:
    """The least that torch can launch."""
    x = torch.zeros(1, device=device)
    return _bound(torch.neg, x, out=torch.empty_like(x))


def _bound(function: Callable[..., Any], *arguments: Any, **options: Any) -> Launch:
    def launch() -> None:
        function(*arguments, **options)

    return launch


@contextlib.contextmanager
def _precision(value: str) -> Iterator[None]:
    """torch's own switch for TF32 products, put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
