"""CPU operators: for traces without GPU activity, and to explain host waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opwise.timeline.trace import Call


@dataclass(frozen=True)
class Operator:
    """All calls of one operator. us; `own_us` is the time not spent in operators that it called on the same thread."""

    name: str
    count: int
    us: float
    own_us: float


def operators(calls: Sequence[Call]) -> list[Operator]:
    """One row per operator, the most own time first. The calls are in the order they began, the outer of two first."""
    count: dict[str, int] = {}
    total: dict[str, int] = {}
    own: dict[str, int] = {}
    stacks: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        length = call.end - call.start
        stack = stacks.setdefault(call.thread, [])
        while stack and stack[-1].end <= call.start:
            stack.pop()
        if stack:
            own[stack[-1].name] -= length
        stack.append(call)
        count[call.name] = count.get(call.name, 0) + 1
        total[call.name] = total.get(call.name, 0) + length
        own[call.name] = own.get(call.name, 0) + length
    rows = [Operator(name, n, total[name] / 1e3, own[name] / 1e3) for name, n in count.items()]
    return sorted(rows, key=lambda row: -row.own_us)
