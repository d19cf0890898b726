"""Memory that calls take from torch's allocator, by source place.

Memory from elsewhere (CuPy's pool, Numba's, the driver's) does not show; the suite's backends use torch's allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opwise.profiling import trace as reading
from opwise.profiling.capture import CALL, PREFIX, Trace

CUDA = 1  # Kineto's device type
NOT_A_PLACE = ("<built-in", "torch/autograd/profiler.py", "torch/_ops.py", "torch/utils/_contextlib.py")


@dataclass(frozen=True)
class Allocation:
    """Bytes requested at one place: `count` and `total_bytes` over all calls, `bytes` of one, `held` of the count not freed."""

    stage: str
    place: str
    operator: str
    device: str
    count: int
    bytes: int
    total_bytes: int
    held: int


def allocations(trace: Trace) -> list[Allocation]:
    """The allocations within calls, the most bytes first. Needs a trace with memory; places need one with stacks."""
    spans = reading.ranges(trace)
    calls = reading.ranges(trace, CALL)
    frames = reading.events(trace, "python_function", "cpu_op")
    instants = sorted((e for e in trace["traceEvents"] if e.get("name") == "[memory]"), key=lambda e: float(e["ts"]))
    groups: dict[tuple[str, str, str, str, int], list[bool]] = {}
    for i, event in enumerate(instants):
        size, at = int(event["args"].get("Bytes", 0)), float(event["ts"])
        if size <= 0 or not any(call.start <= at <= call.end for call in calls):
            continue
        held = not any(e["args"].get("Addr") == event["args"].get("Addr") and e["args"].get("Bytes", 0) < 0 for e in instants[i + 1 :])
        within = reading.innermost(spans, at)
        stage = spans[within].label if within is not None else ""
        device = "GPU" if event["args"].get("Device Type") == CUDA else "CPU"
        thread = [e for e in frames if (e["pid"], e["tid"]) == (event["pid"], event["tid"])]
        groups.setdefault((stage, *_place(thread, at), device, size), []).append(held)
    rows = [
        Allocation(stage, place, operator, device, len(held), size, size * len(held), sum(held))
        for (stage, place, operator, device, size), held in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.total_bytes)


def _place(frames: Sequence[Mapping[str, Any]], at: float) -> tuple[str, str]:
    """(the innermost Python function that is nobody's wrapper, the outermost torch operator) that were running then; "" for none."""
    running = [e for e in frames if e["ts"] <= at <= e["ts"] + e["dur"]]
    functions = [e["name"] for e in running if e["cat"] == "python_function" and not any(part in e["name"] for part in NOT_A_PLACE)]
    operators = [e["name"] for e in running if e["cat"] == "cpu_op" and not e["name"].startswith(PREFIX)]
    return functions[-1] if functions else "", operators[0] if operators else ""
