"""Launches: CPU time of the call, GPU time of its work, and the delay until it begins.

The three counts are those of Holistic Trace Analysis, `get_cuda_kernel_launch_stats`, with its cut-offs by default: short kernels (the GPU
finishes before the launching call), runtime outliers (the call took more than 50 us), launch-delay outliers (more than 100 us from the
call's end to the kernel's start). HTA 0.6.1 counts calls of cudaLaunchKernel, cudaLaunchKernelExC, cudaMemcpyAsync and cudaMemsetAsync
only; here a launch is every API call of the runtime or the driver with linked GPU activity, so those of Triton, CuPy and Numba count too. A
graph's launch is one launch: its GPU time is the sum of its nodes', its delay that of the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from opwise.timeline.trace import Activity, Call, short


@dataclass(frozen=True)
class Cutoffs:
    """us above which a call, or a delay, is an outlier. The defaults are HTA's runtime_cutoff and launch_delay_cutoff."""

    call_us: float = 50.0
    delay_us: float = 100.0


DEFAULTS = Cutoffs()


@dataclass(frozen=True, slots=True)
class Launch:
    """One API call and its GPU activities; ns."""

    call: Call
    activities: tuple[Activity, ...]

    @property
    def cpu(self) -> int:
        return self.call.end - self.call.start

    @property
    def gpu(self) -> int:
        return sum(a.ns for a in self.activities)

    @property
    def delay(self) -> int:
        """From the call's end to the first start on the GPU; 0 if the GPU began before the call returned, as in HTA."""
        return max(0, min(a.start for a in self.activities) - self.call.end)

    @property
    def kernel(self) -> str:
        """A kernel's short name; for a graph its first node and the number of nodes."""
        first = short(self.activities[0].name)
        return first if len(self.activities) == 1 else f"{first} and {len(self.activities) - 1} more"


def short_kernels(launches: Iterable[Launch], cutoffs: Cutoffs) -> list[Launch]:
    return [launch for launch in launches if launch.gpu < launch.cpu <= cutoffs.call_us * 1e3]


def runtime_outliers(launches: Iterable[Launch], cutoffs: Cutoffs) -> list[Launch]:
    return [launch for launch in launches if launch.cpu > cutoffs.call_us * 1e3]


def delay_outliers(launches: Iterable[Launch], cutoffs: Cutoffs) -> list[Launch]:
    return [launch for launch in launches if launch.delay > cutoffs.delay_us * 1e3]


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile and greatest of some times, us, and their sum."""

    median: float
    high: float
    most: float
    total: float

    @classmethod
    def of(cls, ns: Sequence[int]) -> Spread:
        us = np.asarray(ns, dtype=np.float64) / 1e3
        return cls(float(np.median(us)), float(np.quantile(us, 0.95)), float(us.max()), float(us.sum()))


@dataclass(frozen=True)
class Launches:
    """The launches of one kernel by one kind of call, or all (both names are then ""). Times in us."""

    kernel: str
    by: str
    count: int
    cpu: Spread
    gpu: Spread
    delay: Spread
    short_kernels: int
    runtime_outliers: int
    delay_outliers: int

    @classmethod
    def of(cls, launches: Sequence[Launch], cutoffs: Cutoffs, kernel: str = "", by: str = "") -> Launches:
        return cls(
            kernel,
            by,
            len(launches),
            Spread.of([launch.cpu for launch in launches]),
            Spread.of([launch.gpu for launch in launches]),
            Spread.of([launch.delay for launch in launches]),
            len(short_kernels(launches, cutoffs)),
            len(runtime_outliers(launches, cutoffs)),
            len(delay_outliers(launches, cutoffs)),
        )


def launches(activities: Iterable[Activity]) -> list[Launch]:
    """Every call that launched one of the activities, in the order of the calls."""
    by_call: dict[int, list[Activity]] = {}
    calls: dict[int, Call] = {}
    for activity in activities:
        if activity.launch is not None:
            calls[id(activity.launch)] = activity.launch  # by identity: two calls may look alike
            by_call.setdefault(id(activity.launch), []).append(activity)
    return sorted((Launch(calls[key], tuple(found)) for key, found in by_call.items()), key=lambda launch: launch.call.start)


def by_kernel(found: Sequence[Launch], cutoffs: Cutoffs) -> list[Launches]:
    """One row per kernel and kind of call, the longest total GPU time first."""
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in found:
        groups.setdefault((launch.kernel, launch.call.name), []).append(launch)
    rows = [Launches.of(group, cutoffs, kernel, by) for (kernel, by), group in groups.items()]
    return sorted(rows, key=lambda row: -row.gpu.total)
