"""Every implementation launched once on every smoke workload, in one process: what compute-sanitizer is to watch.

    compute-sanitizer --tool memcheck python scripts/sanitize.py [BACKEND...]

Inputs and references are computed on the CPU, so that only the kernels under test and a few copies run on the GPU. torch's caching
allocator must be off (PYTORCH_NO_CUDA_MEMORY_CACHING=1): an access past the end of a tensor is then one past the end of an allocation.
Exit status 1 where a result is wrong; findings are the sanitizer's to report.
"""

from __future__ import annotations

import os
import sys
import time

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


def main(backends: list[str]) -> int:
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("PYTORCH_NO_CUDA_MEMORY_CACHING=1 is not set: accesses past a tensor's end could go unseen", file=sys.stderr)
        return 2
    wrong = 0
    for backend in backends:
        began, cells = time.monotonic(), 0
        for op, spec in OPS.items():
            for variant, implementation in implementations(backend, op, "cuda").items():
                for workload in spec.workloads["smoke"] if variant not in LEFT_OUT else ():
                    with workload.precision(), torch.no_grad():
                        try:
                            verdict = launched(implementation, spec, workload)
                        except UnsupportedWorkload:
                            continue
                    cells += 1
                    if not verdict.ok and implementation.source.fault is None:
                        wrong += 1
                        print(f"WRONG {implementation.name} {workload}: {verdict.reason}", flush=True)
        print(f"{backend}: {cells} launches checked in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [name for name in BACKENDS if name != "torch_eager"]))
