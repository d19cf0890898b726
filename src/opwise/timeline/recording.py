"""Records calls of one implementation for a timeline, in a worker, since a fault ends the use of its process's GPU.

The profiler is that of `opwise profile` (opwise.profiling.capture), which labels each step of a few calls; a label costs several us. Here a
thousand calls run in one range with nothing between them, to show how long they wait for each other, and everything before the range is cut
away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from opwise.backends import probe
from opwise.backends.protocol import UnsupportedWorkload
from opwise.ops.spec import Workload
from opwise.profiling import capture
from opwise.runner import Patience, Worker
from opwise.timeline.trace import ABOUT

LABEL = "timeline"
WARM_UPS = 20  # calls after the build, before the range: allocator, lazily loaded modules, clocks out of their sleep
RECORD_S = 900.0  # a build of a whole extension is in it


def recorded(
    name: str, workload: Workload, device: str, calls: int, path: Path, setup: Callable[[], None] | None = None
) -> None:  # fmt: skip
    """Records `calls` calls of `name` (`triton_jit/softmax`) on N(0, 1) into `path`, compressed where it ends in .gz. `setup` runs first in
    the worker.

    Raises WorkerLost with the reason: what the backend, the compiler or the GPU said.
    """
    with Worker(device, setup) as worker:
        worker.ask("apply", (_record, name, str(workload), device, calls, str(path)), Patience(RECORD_S, RECORD_S))


def _record(turn: Callable[[str, str], None], name: str, workload: str, device: str, calls: int, path: str) -> None:
    """In the worker."""
    turn(name, "build")
    stand_in = probe(name.partition("/")[0], torch.device(device)).stand_in
    if stand_in not in (None, "cpu"):
        raise UnsupportedWorkload(f"{name} would run in its stand-in ({stand_in}), whose time means nothing: take a GPU, or torch_eager")
    repeated = partial(call_repeatedly, calls=calls)
    trace = capture.capture(name, Workload.parse(workload), torch.device(device), calls=0, warm_ups=1, then=repeated)
    about = {"implementation": name, "workload": workload, "device": device, "calls": calls}
    capture.write(cut(trace) | {ABOUT: about}, Path(path))


def call_repeatedly(stages: capture.Stages, calls: int) -> None:
    """A user's call, repeated: torch's own function if the implementation is one, as in `opwise run`."""
    function = stages.implementation.source.call or stages.implementation
    inputs, device = stages.inputs, stages.inputs[0].device
    for _ in range(WARM_UPS):
        function(*inputs)
    capture.wait(device)
    with capture.label(LABEL):
        for _ in range(calls):
            function(*inputs)
    capture.wait(device)


def cut(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace without anything before the range. The GPU was idle there, so no activity reaches into the range."""
    events = trace["traceEvents"]
    labelled = [e for e in events if e.get("ph") == "X" and e.get("name") == capture.PREFIX + LABEL]
    start = min(e["ts"] for e in labelled)  # the range is there once more on the GPU, where it begins later
    return trace | {"traceEvents": [e for e in events if e.get("ph") == "M" or e.get("ts", start) >= start]}
