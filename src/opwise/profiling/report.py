"""One implementation profiled: its cell as in `opwise run`, and where its time goes. Runs in a worker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwise.ops.spec import Workload
from opwise.profiling.allocations import Allocation
from opwise.profiling.rows import KernelRow, LaunchRow, OperatorRow, StageRow
from opwise.record import Record

NEEDS_A_GPU = "kernels with their grid, registers and shared memory, kernel times from a cold and a warm L2, GB/s, TFLOP/s and SOL"


@dataclass(frozen=True)
class Request:
    """What to profile, and which files to write."""

    implementation: str
    workload: str
    device: str
    calls: int = 10
    trace: Path | None = None
    stacks: Path | None = None
    memory: bool = False


@dataclass(frozen=True)
class Report:
    """`record`: the cell as `opwise run` would store it, measured in the same process just before. The rows are the profiler's."""

    request: Request
    record: Record
    bytes: int
    flops: int
    kernels: list[KernelRow] = field(default_factory=list)
    launches: list[LaunchRow] = field(default_factory=list)
    stages: list[StageRow] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return self.request.device != "cpu"

    def launch(self, heat: str) -> LaunchRow | None:
        return next((row for row in self.launches if row.heat == heat), None)

    def apart(self) -> float | None:
        """The profiler's cold launch over the clock's cold figure at full clock, less 1; None if either is missing."""
        row, clock = self.launch("cold"), self.record.kernel_cold_us
        return row.device_us / clock.median - 1 if row and clock else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; units in the names."""
        data = dataclasses.asdict(self)
        data["request"] = {key: str(value) if isinstance(value, Path) else value for key, value in data["request"].items()}
        return data | {"record": json.loads(self.record.to_json()), "cold_profiler_over_clock": self.apart()}


def profiled(turn: Callable[[str, str], None], request: Request) -> Report:
    """The report; also writes the files that the request names. If the implementation cannot be used here, only the record says why."""
    import torch

    from opwise.ops import OPS
    from opwise.profiling import allocations, rows, stacks
    from opwise.profiling.capture import capture
    from opwise.runner.cell import Bench, execute
    from opwise.runner.jobs import Job
    from opwise.runner.worker import record_facts

    device, workload = torch.device(request.device), Workload.parse(request.workload)
    if device.type == "cuda":
        turn("", "calibrate")
        torch.cuda.set_device(device)
    bench = Bench.on(device, record_facts(device))
    job = Job(workload, (request.implementation,), request.device, timed=device.type == "cuda")
    (record,) = execute(job, bench, turn)
    cost = OPS[workload.op].cost(workload)
    report = Report(request, record, cost.bytes, cost.flops)
    if record.status not in ("ok", "wrong"):
        return report
    turn(request.implementation, "profile")
    then = None if bench.clock is None else _repeater(bench.clock, cost.bytes)
    trace = capture(request.implementation, workload, device, calls=request.calls, path=request.trace, then=then)
    kernels, launches = rows.kernels(trace)
    report = dataclasses.replace(report, kernels=kernels, launches=launches, stages=rows.stages(trace), operators=rows.operators(trace))
    if request.stacks is None and not request.memory:
        return report
    turn(request.implementation, "profile with stacks")
    trace = capture(request.implementation, workload, device, calls=request.calls, with_stack=True, profile_memory=request.memory)
    if request.stacks is not None:
        stacks.write(stacks.collapsed(trace), request.stacks, f"{request.implementation} at {workload}: CPU time of {request.calls} calls")
    return dataclasses.replace(report, allocations=allocations.allocations(trace) if request.memory else [])


def _repeater(clock: Any, nbytes: int) -> Callable[[Any], None]:
    from opwise.profiling.repeated import repeat, sets_of

    return lambda stages: repeat(clock.queue, sets_of(stages, clock.rotation(nbytes)))
