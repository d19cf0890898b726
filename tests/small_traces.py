"""Traces made by hand, in Kineto's form, whose every figure can be worked out on paper; and the same in each container a trace may have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwise.timeline.trace import Trace, parse

Event = dict[str, Any]
BASE_US = 4418335668472.168  # Kineto counts from boot or from 1970: a trace that begins at 0 would hide what large numbers do to floats


def event(category: str, name: str, ts: float, dur: float, pid: int = 1, tid: int = 1, **arguments: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": BASE_US + ts, "dur": dur, "args": arguments}


def kernel(name: str, ts: float, dur: float, correlation: int | None, stream: int = 7, device: int = 0, **arguments: Any) -> Event:
    linked = {} if correlation is None else {"correlation": correlation}
    category = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    return event(category, name, ts, dur, device, stream, device=device, stream=stream, **linked, **arguments)


def call(name: str, ts: float, dur: float, correlation: int) -> Event:
    return event("cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime", name, ts, dur,
                 correlation=correlation)  # fmt: skip


# One stream. us:        launch at   call      kernel at  to     gap before it, and why
#   a  cudaLaunchKernel      10       4           20       30    -
#   b  cuLaunchKernelEx      15       2           31       41    1, queued since 15: kernel wait
#   c  cuLaunchKernel        46       3           52       57    11, launched at 46, after 41: host wait; 5 before, 3 in, 3 after the call
#   d  cudaLaunchKernel      50      60           97      100    40, queued since 50, 40 >= 30: other; the GPU began within the call
#   e  cudaMemcpyAsync      110       1          230      240    130, host wait; 10 before, 1 in, 119 after the call
#   f  (no launch)                                245      247    5, no launch, 5 < 30: kernel wait
# busy 10 + 10 + 5 + 3 + 10 + 2 = 40; span 20 to 247 = 227; idle 187 = kernel 6 + host 141 + other 40
ONE_STREAM: tuple[Event, ...] = (
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": BASE_US, "args": {"name": "python"}},
    event("cpu_op", "aten::softmax", 5, 10),
    event("cpu_op", "aten::_softmax", 8, 6),
    call("cudaLaunchKernel", 10, 4, 1),
    call("cuLaunchKernelEx", 15, 2, 2),
    call("cuLaunchKernel", 46, 3, 3),
    call("cudaLaunchKernel", 50, 60, 4),
    call("cudaMemcpyAsync", 110, 1, 5),
    call("cudaDeviceSynchronize", 112, 140, 6),
    kernel("void softmax<float, (int)4>(float const*, int)", 20, 10, 1),
    kernel("softmax_kernel", 31, 10, 2),
    kernel("square", 52, 5, 3),
    kernel("void softmax<float, (int)4>(float const*, int)", 97, 3, 4),
    kernel("Memcpy DtoH (Device -> Pinned)", 230, 10, 5, bytes=1_000_000, **{"memory bandwidth (GB/s)": 100.0}),
    kernel("unknown", 245, 2, None),
    {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": BASE_US + 230, "cat": "ac2g", "name": "ac2g", "bp": "e"},
)

# Two streams of one GPU: 7 runs 0-10 and 30-40, 9 runs 5-20 and 35-50; together 0-20 and 30-50: busy 40 of 50. A copy on 9 ends at 50.
TWO_STREAMS: tuple[Event, ...] = (
    call("cudaLaunchKernel", -10, 2, 1),
    call("cudaLaunchKernel", -5, 2, 2),
    call("cudaLaunchKernel", 22, 2, 3),
    call("cudaMemcpyAsync", 26, 2, 4),
    kernel("a", 0, 10, 1, stream=7),
    kernel("b", 5, 15, 2, stream=9),
    kernel("a", 30, 10, 3, stream=7),
    kernel("Memcpy HtoD (Pinned -> Device)", 35, 15, 4, stream=9, bytes=750_000),
)

# A graph: one call, three kernels, all with its correlation id. Kernels 0.5 us apart.
GRAPH: tuple[Event, ...] = (call("cudaGraphLaunch", 0, 6, 1), *(kernel("node", 10 + 3.5 * i, 3, 1) for i in range(3)))


def trace(events: Sequence[Event], **more: Any) -> Mapping[str, Any]:
    devices = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H200"}]
    return {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": {"rank": 0}, "traceEvents": list(events), **more}


def written(path: Path, document: Any) -> Path:
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def parsed(events: Sequence[Event], **more: Any) -> Trace:
    return parse("small.json", trace(events, **more))


def us(ns: int) -> int:
    """Of a moment of these traces, which must be whole."""
    whole, rest = divmod(ns - round(BASE_US * 1000), 1000)
    assert rest == 0
    return whole
