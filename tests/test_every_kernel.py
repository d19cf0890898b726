"""scripts/every_kernel.py: which launches of a trace are of kernels not seen before. On a GPU, over real launches too."""

from __future__ import annotations

import math
from typing import Any

import pytest
from script_modules import script
from support import needs_gpu

from opwise.backends import BACKENDS
from opwise.ops import OPS, Workload
from opwise.profiling.capture import LAUNCH, PREFIX

every_kernel = script("every_kernel")


def trace_of(*launches: list[tuple[str, int]]) -> dict[str, Any]:
    """A launch is a list of (kernel, registers)."""
    events: list[dict[str, Any]] = []
    for i, kernels in enumerate(launches):
        start = 100.0 * i
        events.append({"ph": "X", "cat": "user_annotation", "name": PREFIX + LAUNCH, "ts": start, "dur": 50.0})
        for j, (name, registers) in enumerate(kernels):
            args = {"correlation": 10 * i + j, "block": [128, 1, 1], "registers per thread": registers, "shared memory": 0}
            events.append({"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": start + 1 + j, "dur": 1.0, "args": args})
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": start + 60 + j, "dur": 1.0, "args": args})
    return {"traceEvents": events}


def of(*dtypes: str) -> list[Workload]:
    return [Workload("mean", (8, 8), dtype) for dtype in dtypes]


def test_new_is_another_name_another_build_or_another_dtype() -> None:
    one, wide, two = ("mean_kernel", 32), ("mean_kernel", 64), ("tail_kernel", 32)
    trace = trace_of([one], [one], [wide], [one, two], [two], [one])
    told = every_kernel.new_kernels(trace, of("float32", "float32", "float32", "float32", "float32", "float16"))
    assert told == [True, False, True, True, False, True]


def test_launches_that_the_trace_lacks_are_not_passed_over() -> None:
    with pytest.raises(RuntimeError, match="1 launches of 2"):
        every_kernel.new_kernels(trace_of([("mean_kernel", 32)]), of("float32", "float32"))


@needs_gpu
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "torch_eager"])
def test_a_kernel_is_found_once(backend: str) -> None:
    workloads = [w for w in OPS["mean"].workloads["smoke"] if w.dtype == "float32"]
    found = every_kernel.first_of_each(f"{backend}/mean", workloads + workloads, math.inf)
    assert found
    assert len(found) == len(set(found))
    assert workloads[0] in found
