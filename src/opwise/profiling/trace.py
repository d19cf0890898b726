"""Reads a Chrome trace: labelled ranges, the GPU's activities and the range that launched each of them, and defects of the trace.

Times are in us on the trace's own clock. The events are those that Kineto writes: `user_annotation` for a label, `cpu_op` for an operator,
`cuda_runtime` and `cuda_driver` for a call that launches, `kernel`, `gpu_memset` and `gpu_memcpy` for GPU activities. A launch and its
activity share a correlation number."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwise.profiling.capture import LAUNCHING, PREFIX, Trace

ON_GPU = ("kernel", "gpu_memset", "gpu_memcpy")
API = ("cuda_runtime", "cuda_driver")
DURATION, INSTANT = "X", "i"
SLACK_US = 0.002  # of the stamps' rounding
PHASES = frozenset("XBEiIMCsftPNODbneSTpFRc")  # all that the format knows


@dataclass(frozen=True)
class Range:
    """A labelled span of the CPU's time."""

    label: str
    start: float
    end: float

    @property
    def us(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Activity:
    """One kernel, memset or copy on the GPU. `within`: the index of the labelled range that launched it, None if none.

    `api_us`: CPU time of the call that launched it, None if the trace lacks that call. `facts`: Kineto's arguments."""

    name: str
    start: float
    us: float
    within: int | None
    api_us: float | None
    facts: Mapping[str, Any]

    @property
    def end(self) -> float:
        return self.start + self.us


def events(trace: Trace, *categories: str) -> list[dict[str, Any]]:
    """Events with a duration, by their start; of two that start together the longer one comes first, since it contains the other."""
    found = [e for e in trace["traceEvents"] if e.get("ph") == DURATION and e.get("cat") in categories]
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def ranges(trace: Trace, *labels: str) -> list[Range]:
    """opwise's own ranges, in order; those with these labels, or all."""
    found = [e for e in events(trace, "user_annotation") if e["name"].startswith(PREFIX)]
    every = [Range(e["name"].removeprefix(PREFIX), e["ts"], e["ts"] + e["dur"]) for e in found]
    return [r for r in every if not labels or r.label in labels]


def innermost(spans: Sequence[Range], at: float) -> int | None:
    """The index of the last-begun range that contains the moment; `spans` in order of their starts."""
    for i in range(bisect.bisect_right(spans, at, key=lambda span: span.start) - 1, -1, -1):
        if at <= spans[i].end:
            return i
    return None


def activities(trace: Trace, spans: Sequence[Range]) -> list[Activity]:
    """All GPU activities, in order, each with the range that launched it.

    Matched by correlation if the trace holds the launching call. Launches that are not recorded have none: their activities are assigned,
    in order and evenly, to the neighbouring launches that launched nothing else."""
    calls = {e["args"]["correlation"]: e for e in events(trace, *API) if "correlation" in e.get("args", {})}
    done = sorted(events(trace, *ON_GPU), key=lambda e: float(e["ts"]))
    places: list[int | None] = []
    known: list[bool] = []
    for event in done:
        call = calls.get(event.get("args", {}).get("correlation"))
        known.append(call is not None)
        places.append(innermost(spans, call["ts"]) if call is not None else None)
    _place_the_unknown(places, known, [i for i, span in enumerate(spans) if span.label in LAUNCHING])
    return [
        Activity(e["name"], e["ts"], e["dur"], place, _api_us(calls, e), e.get("args", {})) for e, place in zip(done, places, strict=True)
    ]


def _api_us(calls: Mapping[Any, Mapping[str, Any]], event: Mapping[str, Any]) -> float | None:
    call = calls.get(event.get("args", {}).get("correlation"))
    return None if call is None else float(call["dur"])


def _place_the_unknown(places: list[int | None], known: Sequence[bool], launching: Sequence[int]) -> None:
    """Runs of unknown places, each between two known ones."""
    i = 0
    while i < len(places):
        if known[i]:
            i += 1
            continue
        end = next((k for k in range(i, len(places)) if known[k]), len(places))
        before = max((p for p in places[:i] if p is not None), default=-1)
        after = min((p for p in places[end:] if p is not None), default=max(launching, default=-1) + 1)
        empty = [p for p in launching if before < p < after]
        for k in range(i, end):
            places[k] = empty[(k - i) * len(empty) // (end - i)] if empty else None
        i = end


def self_times(found: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...], float]]:
    """(event, its enclosing events from the outermost on, its time without its children's), for events of one thread in order.

    Two that overlap in part are siblings: a label begins within the Python function that marks it, which ends right after."""
    stack: list[Mapping[str, Any]] = []
    own: dict[int, float] = {}
    rows: list[tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]]] = []
    for event in found:
        end = event["ts"] + event["dur"]
        while stack and end > stack[-1]["ts"] + stack[-1]["dur"] + SLACK_US:
            stack.pop()
        if stack:
            own[id(stack[-1])] -= event["dur"]
        own[id(event)] = event["dur"]
        rows.append((event, tuple(stack)))
        stack.append(event)
    return [(event, parents, max(own[id(event)], 0.0)) for event, parents in rows]


def problems(trace: Mapping[str, Any]) -> list[str]:
    """Defects that keep a viewer from opening the Chrome trace; empty for a good one. Reports the first of each kind."""
    found = trace.get("traceEvents")
    if not isinstance(found, list):
        return ["traceEvents is no list"]
    said: dict[str, str] = {}
    for i, event in enumerate(found):
        if not isinstance(event, dict):
            said.setdefault("object", f"event {i} is no object")
            continue
        phase = event.get("ph")
        if phase not in PHASES:
            said.setdefault("phase", f"event {i} has the phase {phase!r}")
        if not isinstance(event.get("name"), str):
            said.setdefault("name", f"event {i} has no name")
        if phase != "M" and not isinstance(event.get("ts"), (int, float)):
            said.setdefault("ts", f"event {i} has no time ts")
        if phase == DURATION and not (isinstance(event.get("dur"), (int, float)) and event["dur"] >= 0):
            said.setdefault("dur", f"event {i} has the duration {event.get('dur')!r}")
        if not all(key in event for key in ("pid", "tid")):
            said.setdefault("place", f"event {i} has no pid or no tid")
    if not any(isinstance(event, dict) and event.get("ph") == DURATION for event in found):
        said.setdefault("empty", "there is no event with a duration")
    return list(said.values())
