"""Every implementation launched twice on every smoke workload, in one process: what compute-sanitizer is to watch.

    compute-sanitizer --tool memcheck python scripts/sanitize.py [--also kernels.json] [BACKEND...]

--also: and these cells, of kernels that smoke workloads do not reach (scripts/every_kernel.py finds them). --seconds: no cell is begun
after as many; those left are counted, and the exit status is 1.

Inputs and references are computed on the CPU, so that only the kernels under test and a few copies run on the GPU. torch's caching
allocator must be off (PYTORCH_NO_CUDA_MEMORY_CACHING=1): an access past the end of a tensor is then one past the end of an allocation.
Exit status 1 where a result is wrong; findings are the sanitizer's to report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from opwise.backends import BACKENDS, implementations
from opwise.backends.protocol import Implementation, UnsupportedWorkload
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS, OpSpec, Workload

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
LEFT_OUT = ("compile",)  # inductor compiles in other processes, for minutes; its kernels are not ours


def launched(implementation: Implementation, spec: OpSpec, workload: Workload) -> Verdict:
    inputs = spec.make_inputs(workload, CPU, seed=1)
    exact = [x.double() for x in inputs]
    reference = spec.reference(*exact)
    on_gpu = [x.to(GPU) for x in inputs]
    out = spec.empty_output(*on_gpu)
    launch = implementation.prepare(*on_gpu, out=out)
    for _ in range(2):  # a counter that is not left as it was found shows at the second launch
        launch()
    torch.cuda.synchronize()
    return judge(out.cpu(), reference, spec.error_bound(workload, reference, *exact))


def cells(backend: str, also: list[tuple[str, str]]) -> Iterator[tuple[Implementation, Workload]]:
    for op, spec in OPS.items():
        offered = implementations(backend, op, "cuda")
        for variant, implementation in offered.items():
            for workload in spec.workloads["smoke"] if variant not in LEFT_OUT else ():
                yield implementation, workload
        for name, text in also:
            if name == f"{backend}/{op}":
                yield offered[""], Workload.parse(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("backends", nargs="*", default=[name for name in BACKENDS if name != "torch_eager"], metavar="BACKEND")
    parser.add_argument("--also", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("PYTORCH_NO_CUDA_MEMORY_CACHING=1 is not set: accesses past a tensor's end could go unseen", file=sys.stderr)
        return 2
    also = [] if given.also is None else json.loads(given.also.read_text(encoding="utf-8"))
    until, wrong, left = time.monotonic() + given.seconds, 0, 0
    for backend in given.backends:
        began, checked = time.monotonic(), 0
        for implementation, workload in cells(backend, also):
            if time.monotonic() > until:
                left += 1
                continue
            with workload.precision(), torch.no_grad():
                try:
                    verdict = launched(implementation, implementation.op, workload)
                except UnsupportedWorkload:
                    continue
            checked += 1
            if not verdict.ok and implementation.source.fault is None:
                wrong += 1
                print(f"WRONG {implementation.name} {workload}: {verdict.reason}", flush=True)
        print(f"{backend}: {checked} cells checked in {time.monotonic() - began:.0f} s", flush=True)
    if left:
        print(f"out of time: {left} cells were not begun", file=sys.stderr)
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
