"""Calls of one implementation under torch's profiler, in labelled ranges, as a Chrome trace.

    trace = capture("triton_jit/softmax", workload, torch.device("cuda:0"), calls=10, path=Path("softmax.json.gz"))

It runs in the process it is called in. A kernel that faults takes that process's GPU with it, so commands call it in a worker:
`worker.ask("apply", (capture_in_worker, name, str(workload), options))`. The trace opens in Perfetto (ui.perfetto.dev) and in
chrome://tracing.

Kineto's record of the GPU's activity is the whole process's: kernels that CuPy, Numba and Triton launch past torch are in it, each with its
grid, block, registers and shared memory.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from opwise.backends.protocol import Bind, Implementation, Launch
from opwise.ops.spec import Workload

PREFIX = "opwise: "  # of every label, so that they are told from what libraries write into a trace
COMPILE, FIRST, WARM_UP = "compile", "first launch", "warm up"  # once, once, and once a launch that does not count
CALL, ALLOCATE, WRAP, LAUNCH = "call", "allocate", "wrap", "launch"  # a call holds the other three
COLD, WARM, FLUSH = "launch, L2 cold", "launch, L2 warm", "flush the L2"  # of profiling.repeated
LABELS = (COMPILE, FIRST, WARM_UP, CALL, ALLOCATE, WRAP, LAUNCH, COLD, WARM, FLUSH)
LAUNCHING = (FIRST, WARM_UP, LAUNCH, COLD, WARM)  # ranges that hold a launch of the implementation and nothing else
SEED = 1
NOT_A_NUMBER = re.compile(r":\s*[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?)(?=\s*[,}])", re.IGNORECASE)
Trace = dict[str, Any]


def label(name: str) -> record_function:
    """Context manager for a labelled range of CPU time in the trace; it identifies the kernels launched within."""
    return record_function(PREFIX + name)


@dataclass
class Stages:
    """The steps of a call, each in its own labelled range. `inputs` are N(0, 1), like those that are timed."""

    implementation: Implementation
    inputs: tuple[Tensor, ...]
    bind: Bind | None = None

    def compile(self) -> None:
        """Builds and launches once. Raises UnsupportedWorkload, and what a compiler raises."""
        out = self.implementation.op.empty_output(*self.inputs)
        with label(COMPILE):
            self.bind = self.implementation.source.build(*self.inputs, out)
        with label(FIRST):
            self.bind(*self.inputs, out)()
            wait(out.device)

    def call(self) -> Tensor:
        """opwise's call of an implementation, step by step: allocate the output, wrap the tensors, launch."""
        with label(CALL):
            with label(ALLOCATE):
                out = self.implementation.op.empty_output(*self.inputs)
            launch = self.wrapped(out)
            with label(LAUNCH):
                launch()
        return out

    def wrapped(self, out: Tensor) -> Launch:
        if self.bind is None:
            raise RuntimeError("compile() comes before wrapped() and call()")
        with label(WRAP):
            return self.bind(*self.inputs, out)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def capture(
    name: str,
    workload: Workload,
    device: torch.device,
    *,
    calls: int = 10,
    warm_ups: int = 3,
    path: Path | None = None,
    with_stack: bool = False,
    profile_memory: bool = False,
    then: Callable[[Stages], None] | None = None,
) -> Trace:
    """The Chrome trace of compiling `name` (`triton_jit/softmax`) for `workload`, of `warm_ups` launches and of `calls` calls.

    path: file to write, compressed if the name ends in .gz. with_stack: records Python's frames; compiling is then left out, since the
    frames of a compiler written in Python would hide all others. profile_memory: records torch's allocations. then: called after the calls,
    to add to the trace. The trace's own key "opwise" says what was run.

    Raises KeyError for an unknown name, BackendUnavailable, UnsupportedWorkload, ValueError for a workload without elements."""
    from opwise.backends import implementation  # late: it is what a backend's library is imported by

    found = implementation(name, device)  # before the profiler, which imports Triton itself, whether or not for the interpreter
    cost_of_profiling = torch.zeros(1, device=device)  # the CUDA context and CUPTI's start are nobody's
    with workload.precision(), torch.no_grad(), _profiler(device, with_stack, profile_memory) as profiler:
        cost_of_profiling += 1
        wait(device)
        if with_stack:
            stages = _ready(found, workload, device, warm_ups)
        profiler.step()  # from the schedule's warm-up, whose events are dropped, to what is kept
        if not with_stack:
            stages = _ready(found, workload, device, warm_ups)
        for _ in range(calls):
            stages.call()
        wait(device)
        if then is not None:
            then(stages)
            wait(device)
        profiler.step()
    about = {"implementation": name, "workload": str(workload), "device": str(device), "calls": calls, "warm_ups": warm_ups}
    trace = exported(profiler) | {"opwise": about}
    if path is not None:
        write(trace, path)
    return trace


def capture_in_worker(turn: Callable[[str, str], None], name: str, workload: str, device: str, options: Mapping[str, Any]) -> None:
    """`capture` as a worker's request. The trace stays in the file options["path"], since it is too large for the pipe."""
    turn(name, "build")
    capture(name, Workload.parse(workload), torch.device(device), **options)


def _profiler(device: torch.device, with_stack: bool, profile_memory: bool) -> profile:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    options: dict[str, Any] = {}
    if with_stack:
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)  # no frames without it
    return profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        with_stack=with_stack,
        profile_memory=profile_memory,
        acc_events=True,  # there is one cycle; without it torch 2.10 and 2.11 warn that those before are lost
        **options,
    )


def _ready(implementation: Implementation, workload: Workload, device: torch.device, warm_ups: int) -> Stages:
    spec = implementation.op
    inputs = spec.make_inputs(workload, device, SEED)
    if 0 in (spec.empty_output(*inputs).numel(), *(x.numel() for x in inputs)):
        raise ValueError(f"{workload} has no elements, so nothing is launched for it: take a shape without a 0")
    stages = Stages(implementation, inputs)
    stages.compile()
    for _ in range(warm_ups):
        launch = stages.wrapped(spec.empty_output(*inputs))
        with label(WARM_UP):
            launch()
    wait(device)
    return stages


def exported(profiler: profile) -> Trace:
    """The profiler's trace, as it would write it."""
    with tempfile.TemporaryDirectory(prefix="opwise-trace-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: Trace = parsed(file.read_text(encoding="utf-8", errors="replace"))
    # The format numbers processes. Kineto also names some, of marks around the whole recording, and not every viewer takes those.
    trace["traceEvents"] = [event for event in trace["traceEvents"] if isinstance(event.get("pid"), int)]
    return trace


def parsed(text: str) -> Any:
    """Kineto's JSON, which may be invalid: names may hold control characters, and ratios over 0 are written `inf` or `nan`."""
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError:
        return json.loads(NOT_A_NUMBER.sub(": null", text), strict=False)


def write(trace: Trace, path: Path) -> None:
    """Writes JSON, compressed if the name ends in .gz. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data, compresslevel=6) if path.suffix == ".gz" else data)
