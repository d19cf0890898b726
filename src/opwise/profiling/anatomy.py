"""One op at one workload in every backend: where each spends its time, from the import to the kernel.

import, first call: in a fresh process each, once with empty compiler caches, once with full ones. allocate, wrap: CPU time of the steps of
a call, by the clock of launch and call costs. The rest: the records that `opwise run` would store, all backends side by side in one
worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from opwise.ops.spec import Workload
from opwise.record import Record
from opwise.runner import Job, Patience, Worker, WorkerLost, run_jobs
from opwise.runner.first_call import cold_then_cached
from opwise.runner.jobs import Entry
from opwise.runner.survey import Survey

Turn = Callable[[str, str], None]
CORES_A_COMPILE = 4  # nvcc and ninja take several; fewer would make one backend wait for another's compiler
FIRST_PARTS = ("import_s", "compile_s", "first_launch_s")


@dataclass(frozen=True)
class Anatomy:
    """One backend's row, in seconds and microseconds as the names end. None: not measured, and `reason` says why.

    `cold` and `cached`: the parts of a first call with empty and with full compiler caches. `import_s`: beyond torch and opwise. `call_us`:
    the CPU time of a user's call; beyond allocate, wrap and launch it is the look-up of the built kernel. With `own_call` the call is a
    library's own function (torch eager's), which has no such steps; wrap and launch are then of its form that writes into an output.
    `kernel_cold_us` and `limit_us`: at full clock; `kernel_capped_us`: only if the power cap changes the time."""

    implementation: str
    status: str
    reason: str = ""
    stand_in: str | None = None
    cold: Mapping[str, float] | None = None
    cached: Mapping[str, float] | None = None
    allocate_us: float | None = None
    wrap_us: float | None = None
    launch_us: float | None = None
    call_us: float | None = None
    kernel_cold_us: float | None = None
    kernel_warm_us: float | None = None
    limit_us: float | None = None
    own_call: bool = False
    kernel_capped_us: float | None = None

    @property
    def backend(self) -> str:
        return self.implementation.partition("/")[0]

    @property
    def first_cold_s(self) -> float | None:
        return first_call_s(self.cold)

    @property
    def first_cached_s(self) -> float | None:
        return first_call_s(self.cached)

    @property
    def lookup_us(self) -> float | None:
        """The call time beyond its steps, at least 0, since each figure has its own error; None without steps or if one is missing."""
        steps = (self.allocate_us, self.wrap_us, self.launch_us)
        if self.own_call or self.call_us is None or any(step is None for step in steps):
            return None
        return max(self.call_us - sum(step for step in steps if step is not None), 0.0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"first_cold_s": self.first_cold_s, "first_cached_s": self.first_cached_s, "lookup_us": self.lookup_us}


def first_call_s(parts: Mapping[str, float] | None) -> float | None:
    """The sum of the parts; None if only the import could be measured."""
    return sum(parts[name] for name in FIRST_PARTS) if parts and set(FIRST_PARTS) <= set(parts) else None


def anatomies(found: Survey, workload: Workload, first: bool = True, progress: Callable[[str], None] = lambda _: None) -> list[Anatomy]:
    """A row per backend that has the op, in the catalogue's order. `first`: also imports and first calls, which compile each backend.

    First calls of several backends run at once if there are cores for it, and nothing else is timed meanwhile."""
    entries = [e for e in found.catalogue.values() if not e.available or "" in e.variants.get(workload.op, {})]
    here = [e for e in entries if e.available]
    firsts: dict[str, Any] = {}
    if first:
        progress("imports and first calls, compiler caches empty, then full")
        with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) // CORES_A_COMPILE)) as pool:
            firsts = dict(zip([e.backend for e in here], pool.map(lambda e: _first(found, e, workload), here), strict=True))
    records: dict[str, Record] = {}
    steps: dict[str, dict[str, float]] = {}
    if found.device != "cpu":
        names = tuple(f"{e.backend}/{workload.op}" for e in here)
        for event in run_jobs([Job(workload, names, found.device)], found.device, setup=found.setup, facts=found.facts):
            if event.turn is not None:
                progress(f"{event.turn[0].split('/')[0]} {event.turn[1]}")
            records |= {record.backend: record for record in event.records}
        progress("allocate and wrap")
        steps = _steps(found, [f"{name}/{workload.op}" for name, record in records.items() if record.status == "ok"], workload)
    return [_row(e, workload, firsts.get(e.backend), records.get(e.backend), steps.get(e.backend, {})) for e in entries]


def _first(found: Survey, entry: Entry, workload: Workload) -> tuple[Any, Any] | str:
    """The parts of a first call, caches empty and full; or why there are none. Of what a stand-in would run, the import alone."""
    measured = entry.stand_in in (None, "cpu")
    try:
        return cold_then_cached(found.device, found.setup, "apply", (first_parts, entry.backend, str(workload), found.device, measured))
    except WorkerLost as lost:
        return lost.reason


def first_parts(turn: Turn, backend: str, workload: str, device_name: str, launched: bool) -> dict[str, float]:
    """In a fresh worker: seconds of import and, with `launched`, of compiling and of the first launch until its end."""
    import torch

    from opwise.backends import implementation
    from opwise.profiling.capture import SEED, wait

    device, wanted = torch.device(device_name), Workload.parse(workload)
    torch.zeros(1, device=device)  # the CUDA context is torch's price, not the backend's
    wait(device)
    turn(f"{backend}/{wanted.op}", "build")
    began = time.perf_counter()
    found = implementation(f"{backend}/{wanted.op}", device)
    seconds = {"import_s": time.perf_counter() - began}
    if not launched:
        return seconds
    with wanted.precision(), torch.no_grad():
        inputs = found.op.make_inputs(wanted, device, SEED)
        out = found.op.empty_output(*inputs)
        wait(device)
        began = time.perf_counter()
        launch = found.prepare(*inputs, out=out)
        built = time.perf_counter()
        launch()
        wait(device)
        return seconds | {"compile_s": built - began, "first_launch_s": time.perf_counter() - built}


def _steps(found: Survey, names: Sequence[str], workload: Workload) -> dict[str, dict[str, float]]:
    """Backend -> us of `allocate` and `wrap`; empty where the worker is lost, whose loss the records have told already."""
    if not names:
        return {}
    try:
        with Worker(found.device, found.setup) as worker:
            answer: dict[str, dict[str, float]] = worker.ask("apply", (steps_of, tuple(names), str(workload), found.device), Patience())
    except WorkerLost:
        return {}
    return answer


def steps_of(turn: Turn, names: Sequence[str], workload: str, device_name: str) -> dict[str, dict[str, float]]:
    """In a worker with a GPU: us of `allocate` and `wrap` of all implementations in turns; and `own_call`, 1 or 0."""
    import torch

    from opwise.backends import implementation
    from opwise.measure.timing import Clock
    from opwise.profiling.capture import SEED

    device, wanted = torch.device(device_name), Workload.parse(workload)
    torch.cuda.set_device(device)
    clock = Clock(device)
    calls: dict[str, Callable[[], Any]] = {}
    found_us: dict[str, dict[str, float]] = {}
    with wanted.precision(), torch.no_grad():
        for name in names:
            turn(name, "build")
            found = implementation(name, device)
            inputs = found.op.make_inputs(wanted, device, SEED)
            out = found.op.empty_output(*inputs)
            bind = found.source.build(*inputs, out)
            bind(*inputs, out)()
            found_us[found.backend] = {"own_call": float(found.source.call is not None)}
            calls[f"{name} wrap"] = lambda bind=bind, inputs=inputs, out=out: bind(*inputs, out)  # type: ignore[misc]
            calls[f"{name} allocate"] = allocation(inputs[0], out)
        torch.cuda.synchronize(device)
        times = clock.launch_cost(calls, lambda name: turn(name.split()[0], "steps"))
    for name, timing in times.items():
        implementation_name, step = name.split()
        found_us[implementation_name.partition("/")[0]][step] = timing.median_us
    return found_us


def allocation(like: Any, out: Any) -> Callable[[], Any]:
    """The allocation that a call makes: Implementation uses the faster of torch's two ways if input and output are alike."""
    import torch

    if like.shape == out.shape:
        return lambda: torch.empty_like(like)
    shape, dtype, device = out.shape, out.dtype, out.device
    return lambda: torch.empty(shape, dtype=dtype, device=device)


def _row(entry: Entry, workload: Workload, first: Any, record: Record | None, steps: Mapping[str, float]) -> Anatomy:
    name = f"{entry.backend}/{workload.op}"
    if not entry.available:
        return Anatomy(name, entry.broken or "unavailable", ": ".join(filter(None, (entry.reason, entry.remedy))))
    cold, cached = first if isinstance(first, tuple) else (None, None)
    trouble = first if isinstance(first, str) else ""
    if record is None:
        return Anatomy(name, "failed" if trouble else "needs a GPU", trouble, entry.stand_in, cold, cached)
    middles = {field: interval.median for field, interval in _intervals(record) if interval is not None}
    reason = "; ".join(filter(None, (record.reason, trouble)))
    return Anatomy(
        name, record.status, reason, record.stand_in, cold, cached,
        steps.get("allocate"), steps.get("wrap"), limit_us=record.limit_us, own_call=bool(steps.get("own_call")), **middles,
    )  # fmt: skip


def _intervals(record: Record) -> Iterator[tuple[str, Any]]:
    for field in ("launch_us", "call_us", "kernel_cold_us", "kernel_capped_us", "kernel_warm_us"):
        yield field, getattr(record, field)
