"""A Chrome trace, as torch.profiler (Kineto) writes it, read into GPU activities, the calls that launched them, and CPU operators.

Kineto writes every activity as a complete event (`"ph": "X"`) with `ts` and `dur` in us, fractions down to a ns, and says what it is by
`cat`: `kernel`, `gpu_memcpy` and `gpu_memset` on the GPU; `cuda_runtime` and `cuda_driver` for API calls on the CPU; `cpu_op` for
operators. A GPU activity and the call that launched it hold the same `args.correlation`, which CUPTI hands out: torch and nvcc's launches
are calls of the runtime (cudaLaunchKernel), Triton's, CuPy's and Numba's are calls of the driver (cuLaunchKernelEx, cuLaunchKernel). The
kernels of a CUDA graph all hold that of one cudaGraphLaunch. The container is Chrome's "Trace Event Format": an object with `traceEvents`,
or a bare array, whose closing bracket may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from opwise.timeline import sanity
from opwise.timeline.container import TAKEN, NotATrace, document

# Category in the file -> kind here. Those with a capital are what Kineto wrote before torch 2.
GPU_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset"}
OPERATORS = ("cpu_op", "operator")
RANGES = ("user_annotation",)
MOST_US = 2**63 // 1000
ABOUT = "opwise_timeline"  # a key beside traceEvents: what `opwise timeline` recorded, and how many calls
Timed = tuple[Mapping[str, Any], int, int]  # an event, its start and its end


@dataclass(frozen=True, slots=True)
class Call:
    """An API call or an operator on a CPU thread. Times in ns on the trace's clock."""

    name: str
    start: int
    end: int
    thread: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel, copy or fill on a GPU's stream. Times in ns; `bytes` and `gb_per_s` of a copy or a fill, None if not in the trace."""

    kind: str
    name: str
    device: str
    stream: str
    start: int
    end: int
    launch: Call | None = None
    bytes: int | None = None
    gb_per_s: float | None = None

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """`activities` in the order they started, `operators` and `ranges` (labels, such as ProfilerStep#3) in the order they began.

    `devices`: number -> the GPU's name. `skipped`: number of complete events without a valid time. `about`: what `opwise timeline` wrote
    about a trace that it recorded. `rank`: of the process in a distributed job, else None. `notes`: repairs, and events that were left out
    for impossible times."""

    name: str
    activities: tuple[Activity, ...]
    operators: tuple[Call, ...] = ()
    ranges: tuple[Call, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def unlinked(self) -> tuple[Activity, ...]:
        """GPU activities without a launch in the trace: recording began in between, or CUPTI did not record that kind of call."""
        return tuple(a for a in self.activities if a.launch is None)


def read(path: Path) -> Trace:
    """Raises NotATrace for a file that is torn, no JSON, or no trace; OSError if it cannot be read."""
    found, mended = document(path)
    trace = parse(path.name, found)
    return replace(trace, notes=(*mended, *trace.notes))


def parse(name: str, found: Any) -> Trace:
    """The trace in a JSON document: an object with `traceEvents`, or a bare array of events. Raises NotATrace."""
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        held = f"an object with {', '.join(list(found)[:4]) or 'nothing'}" if isinstance(found, dict) else type(found).__name__
        raise NotATrace(f"{name} is no trace: it holds {held} and no list `traceEvents`; {TAKEN}")
    complete = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    if not complete:
        raise NotATrace(f"{name} holds no complete event (ph X) among {len(events)}: nothing was recorded, or by another program; {TAKEN}")
    stated = [(e, *span) for e in complete if (span := _span(e))]
    timed, far = sanity.apart(stated)
    calls = _api_calls(timed)
    activities = [_activity(e, start, end, calls) for e, start, end in timed if _category(e) in GPU_KINDS]
    activities.sort(key=lambda a: (a.start, a.launch.start if a.launch else 0))
    activities, overlong = sanity.overlong(activities)
    return Trace(
        name,
        tuple(activities),
        _called(timed, OPERATORS),
        _called(timed, RANGES),
        _devices(found),
        len(complete) - len(stated),
        about if isinstance(found, dict) and isinstance(about := found.get(ABOUT), dict) else {},
        rank if isinstance(found, dict) and isinstance(rank := _held(found, "distributedInfo").get("rank"), int) else None,
        (*far, *overlong),
    )


def within(trace: Trace, label: str) -> Trace:
    """The activities launched in the ranges whose name contains `label`; those without a launch count by their start. Raises NotATrace for
    no such range."""
    ranges = [r for r in trace.ranges if label in r.name]
    if not ranges:
        known = ", ".join(dict.fromkeys(r.name for r in trace.ranges)) or "none"
        raise NotATrace(f"{trace.name} has no range with {label!r} in its name: it has {known[:300]}")

    def inside(moment: int) -> bool:
        return any(r.start <= moment <= r.end for r in ranges)

    return replace(
        trace,
        activities=tuple(a for a in trace.activities if inside(a.launch.start if a.launch else a.start)),
        operators=tuple(o for o in trace.operators if inside(o.start)),
        ranges=tuple(ranges),
        about={},  # the number of calls is that of the whole
    )


def _span(event: Mapping[str, Any]) -> tuple[int, int] | None:
    """Start and end in whole ns, which is what Kineto's clock counts in: sums and comparisons are then exact."""
    start, length = _ns(event.get("ts")), _ns(event.get("dur"))
    return (start, start + length) if start is not None and length is not None and length >= 0 else None


def _ns(us: Any) -> int | None:
    if isinstance(us, bool) or not isinstance(us, int | float | Decimal) or not -MOST_US < us < MOST_US:
        return None
    return round(us * 1000)


def _number(value: Any) -> float | None:
    """Where there is one, of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return float(value) if 0 <= value <= 2**63 else None


def _category(event: Mapping[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def _is_api(category: str) -> bool:
    return category.endswith(("runtime", "driver"))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return _held(event, "args")


def _held(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of that name; an empty one where there is none or something else."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _api_calls(timed: Iterable[Timed]) -> dict[Any, Call]:
    """By correlation id. Of two calls of one id the outer counts: the other was made by it."""
    found: dict[Any, Call] = {}
    for event, start, end in timed:
        key = _arguments(event).get("correlation") if _is_api(_category(event)) else None
        if isinstance(key, int | str) and key and (key not in found or start < found[key].start):
            found[key] = _call(event, start, end)
    return found


def _called(timed: Iterable[Timed], categories: Sequence[str]) -> tuple[Call, ...]:
    """Those of the categories in the order they began, the outer of two first."""
    found = [_call(*event) for event in timed if _category(event[0]) in categories]
    return tuple(sorted(found, key=lambda call: (call.start, -call.end)))


def _call(event: Mapping[str, Any], start: int, end: int) -> Call:
    return Call(str(event.get("name", "")), start, end, (str(event.get("pid", "")), str(event.get("tid", ""))))


def _activity(event: Mapping[str, Any], start: int, end: int, calls: Mapping[Any, Call]) -> Activity:
    arguments = _arguments(event)
    size, rate = _number(arguments.get("bytes")), _number(arguments.get("memory bandwidth (GB/s)"))
    return Activity(
        GPU_KINDS[_category(event)],
        str(event.get("name", "")),
        str(arguments.get("device", event.get("pid", ""))),
        str(arguments.get("stream", event.get("tid", ""))),
        start,
        end,
        calls.get(key) if isinstance(key := arguments.get("correlation"), int | str) else None,
        int(size) if size is not None else None,
        rate,
    )


def _devices(found: Any) -> dict[str, str]:
    listed = found.get("deviceProperties") if isinstance(found, dict) else None
    properties = [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []
    return {str(p.get("id", i)): str(p.get("name", "")) for i, p in enumerate(properties)}


def short(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters: `at::native::reduce_kernel`."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    if name.startswith(("Memcpy", "Memset")):
        return name
    ends = [i for i in (plain.find("<"), plain.find("(")) if i > 0]
    return plain[: min(ends)] if ends else plain
