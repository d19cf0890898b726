"""Decides whether a ranking is settled beyond one process. A 95 % interval covers one process; another process of the same kernels may lie
outside it.

A ranking of two implementations at a workload is settled if at least LEAST processes rank them alike with a margin. A fourth value lies
outside the range of three in one case of two, so the ratios' own spread is added on either side before they are compared with 1 %."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opwise import clocks
from opwise.clocks import Triple
from opwise.measure.stats import TIE, tied
from opwise.record import CAPPED, FULL, STATES, Interval, Record

LEAST = 3  # processes
FASTER, SLOWER, SAME = "faster", "slower", "tied"


def each_process(record: Record) -> list[Record]:
    """One record per process of this record, with its median cold times in us and its ratios only."""
    if record.processes == 1:
        return [record]

    def of(process: int) -> Record:
        us = {state: found[process] for state, found in record.us_by_process.items()}
        versus = {state: found[process] for state, found in record.versus_by_process.items()}
        full, capped = (None if (t := us.get(state)) is None else Interval(t, t, t, 1) for state in STATES)
        return replace(record, kernel_cold_us=full, kernel_capped_us=capped, versus_best=versus.get(FULL),
                       capped_versus_best=versus.get(CAPPED), processes=1, us_by_process={}, versus_by_process={})  # fmt: skip

    return [of(process) for process in range(record.processes)]


def ratios(one: Record, other: Record, states: Sequence[str]) -> list[Triple]:
    """The paired ratio of two records of one job in each process; none if one process lacks it."""
    if one.processes != other.processes:
        return []
    found = [clocks.paired(a, b, states) for a, b in zip(each_process(one), each_process(other), strict=True)]
    known = [ratio for ratio in found if ratio is not None]
    return known if len(known) == len(found) else []


def outcome(found: Sequence[Triple]) -> str:
    """What paired ratios with their intervals, one per process, settle: FASTER, SLOWER or SAME; "" if they are too few or undecided.

    SLOWER: in each the ratio's interval is above 1, and the ratios widened by their own spread are at least 1 % above. FASTER: its mirror.
    SAME: the ratios widened by their own spread are within 1 %."""
    if len(found) < LEAST:
        return ""
    logs = [math.log(ratio) for ratio, _, _ in found]
    spread, edge = max(logs) - min(logs), math.log1p(TIE)
    low, high = min(logs) - spread, max(logs) + spread
    if low >= edge and all(end > 1 for _, end, _ in found):
        return SLOWER
    if high <= -edge and all(end < 1 for _, _, end in found):
        return FASTER
    return SAME if -edge < low and high < edge else ""


def settled(one: Record, other: Record, states: Sequence[str]) -> str:
    """`outcome` of two records of one job over these states of the clock, for `one` relative to `other`; "" if not settled."""
    return outcome(ratios(one, other, states))


def apart(found: Sequence[Triple]) -> bool:
    """Returns whether all ratios, of processes or runs, are above 1 by at least 1 %; true for a single ratio, which nothing contradicts."""
    return len(found) < 2 or min(ratio for ratio, _, _ in found) >= 1 + TIE


def settled_of(group: Sequence[Record]) -> set[str]:
    """Of one workload's records in a run, the implementations whose rank is settled in each state: against the fastest, and for the fastest
    against all others."""
    timed = [r for r in group if r.timed]
    unsettled: set[str] = set()
    for state in states_of(timed):
        best = next((r for r in timed if r.versus(state) == (1.0, 1.0, 1.0)), None)
        for r in timed:
            if best is None or (r is not best and not settled(r, best, (state,))):
                unsettled |= {r.implementation, best.implementation if best else ""}
    return {r.implementation for r in timed if len(timed) > 1} - unsettled


def states_of(timed: Sequence[Record]) -> tuple[str, ...]:
    """The states in which any of a workload's timed records was taken; capped only if the cap changes a time."""
    taken = {FULL: any(r.kernel_cold_us for r in timed), CAPPED: any(r.kernel_capped_us for r in timed)}
    return tuple(state for state in STATES if taken[state])


@dataclass(frozen=True)
class Agreement:
    """Two runs' pairs of implementations at a workload, state by state: how many both rank, how many are settled in both, and which of
    these differ in the second run; `changed`: how many of those not settled in both differ."""

    pairs: int
    settled: int
    flips: tuple[str, ...]
    changed: int

    def __str__(self) -> str:
        if not self.settled:
            none = f"rankings of two: none of {self.pairs} is settled in both runs (--processes {LEAST})"
            return f"{none}; {self.changed} come out otherwise in B"
        flips = f"{len(self.flips)} of these flip" if self.flips else "none of these flips"
        others = f"of the other {self.pairs - self.settled}, {self.changed} come out otherwise in B"
        return f"rankings of two: {self.settled} of {self.pairs} are settled in both runs, and {flips}; {others}"


def agreement(a: Sequence[Record], b: Sequence[Record]) -> Agreement:
    """Compares the rankings of two runs. Faster, slower and tied are three outcomes; any change between them counts."""
    there = {(str(r.workload), r.implementation): r for r in b if r.timed}
    pairs = known = changed = 0
    flips = []
    by_workload: dict[str, list[Record]] = {}
    for r in a:
        if r.timed and (str(r.workload), r.implementation) in there:
            by_workload.setdefault(str(r.workload), []).append(r)
    for workload, group in by_workload.items():
        for one, other in itertools.combinations(group, 2):
            mates = there[workload, one.implementation], there[workload, other.implementation]
            for state in states_of([one, other, *mates]):
                ranks = _rank(one, other, state), _rank(*mates, state)
                if not all(ranks):
                    continue
                pairs += 1
                found = settled(one, other, (state,)), settled(*mates, (state,))
                known += all(found)
                changed += not all(found) and ranks[0] != ranks[1]
                if all(found) and found[0] != found[1]:
                    names = f"{one.implementation} beside {other.implementation}"
                    flips.append(f"{workload}, {clocks.TOLD[state]}: {names} is {found[0]} in A, {found[1]} in B")
    return Agreement(pairs, known, tuple(flips), changed)


def _rank(one: Record, other: Record, state: str) -> str:
    ratio = clocks.paired(one, other, (state,))
    return "" if ratio is None else SAME if tied(*ratio) else FASTER if ratio[0] < 1 else SLOWER
