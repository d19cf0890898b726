"""Kinds of GPU activity: computation, communication and memory operations; how long each ran, alone and beside the others.

Kinds go by name, as in Holistic Trace Analysis (HTA, 0.6.1): NCCL's kernels communicate, copies and fills are memory operations, all other
kernels compute. The figures are those of its `get_gpu_kernel_breakdown`, `get_temporal_breakdown` and `get_comm_comp_overlap`. Where HTA
groups kernels as "others" it takes least, greatest and mean of the kernels' sums; here they are always those of single runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opwise.timeline.trace import Activity

COMPUTATION, COMMUNICATION, MEMORY = KINDS = ("computation", "communication", "memory")
COMMUNICATES = re.compile(r"nccl|hccl|.*ncclKernel")
OTHERS = "others"
MOST_KERNELS, SHARE = 10, 0.8  # HTA's num_kernels and duration_ratio


@dataclass(frozen=True)
class Kinds:
    """`together`: the kinds that ran at once, in the order of KINDS -> ns in which exactly these ran. `idle` is the rest of `span`, ns."""

    span: int
    together: Mapping[tuple[str, ...], int]

    @property
    def busy(self) -> int:
        return sum(self.together.values())

    @property
    def idle(self) -> int:
        return self.span - self.busy

    def ran(self, *kinds: str) -> int:
        """ns in which all of these ran, whatever else ran."""
        return sum(ns for key, ns in self.together.items() if set(kinds) <= set(key))

    @property
    def overlap(self) -> float | None:
        """The share of the communication time that computation hid; None without communication."""
        whole = self.ran(COMMUNICATION)
        return self.ran(COMMUNICATION, COMPUTATION) / whole if whole else None


@dataclass(frozen=True)
class KernelTimes:
    """All runs of one kernel, or of several as OTHERS. us; `deviation` is the sample's, 0 for a single run."""

    name: str
    kind: str
    count: int
    total: float
    mean: float
    least: float
    greatest: float
    deviation: float


def kind(activity: Activity) -> str:
    if activity.kind != "kernel":
        return MEMORY
    return COMMUNICATION if COMMUNICATES.match(activity.name) else COMPUTATION


def kinds(activities: Sequence[Activity]) -> Kinds:
    """All activities as of one GPU, as HTA takes the GPUs of a trace. Raises ValueError for none."""
    if not activities:
        raise ValueError("kinds: given no activities, at least one is taken: what never ran has no kind")
    changes = sorted(change for a in activities for change in ((a.start, 1, kind(a)), (a.end, -1, kind(a))))
    running = dict.fromkeys(KINDS, 0)
    together: dict[tuple[str, ...], int] = {}
    before = changes[0][0]
    for at, change, of in changes:
        if at > before and (key := tuple(k for k in KINDS if running[k])):
            together[key] = together.get(key, 0) + at - before
        before, running[of] = at, running[of] + change
    return Kinds(changes[-1][0] - changes[0][0], dict(sorted(together.items(), key=lambda item: -item[1])))


def added(parts: Iterable[Kinds]) -> Kinds:
    """The sums over several ranks."""
    span, together = 0, dict[tuple[str, ...], int]()
    for part in parts:
        span += part.span
        for key, ns in part.together.items():
            together[key] = together.get(key, 0) + ns
    return Kinds(span, dict(sorted(together.items(), key=lambda item: -item[1])))


def kernel_times(activities: Sequence[Activity], most: int = MOST_KERNELS, share: float = SHARE) -> list[KernelTimes]:
    """Kind by kind, the greatest total first. In a kind with more than `most` kernels, those after the first `most`, or after the quantile
    `share` of the running sum of their times (HTA's rule), are grouped as OTHERS."""
    found: list[KernelTimes] = []
    for of in KINDS:
        by_name: dict[str, list[int]] = {}
        for activity in activities:
            if kind(activity) == of:
                by_name.setdefault(activity.name, []).append(activity.ns)
        ranked = sorted(by_name.items(), key=lambda item: -sum(item[1]))
        kept = len(ranked)
        if kept > most:
            sums = np.cumsum([sum(times) for _, times in ranked])
            kept = min(most, int((sums <= np.quantile(sums, share)).sum()))
        others = [ns for _, times in ranked[kept:] for ns in times]
        found += [_times(name, of, times) for name, times in (*ranked[:kept], *([(OTHERS, others)] if others else []))]
    return found


def _times(name: str, of: str, ns: Sequence[int]) -> KernelTimes:
    us = np.asarray(ns, dtype=np.float64) / 1e3
    deviation = float(us.std(ddof=1)) if len(us) > 1 else 0.0
    return KernelTimes(name, of, len(us), float(us.sum()), float(us.mean()), float(us.min()), float(us.max()), deviation)
