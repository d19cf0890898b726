"""Every implementation launched twice on every smoke workload, in one process: what compute-sanitizer is to watch.

    compute-sanitizer --tool memcheck python scripts/sanitize.py [--also|--only kernels.json] [--part 1/4] [BACKEND...]

--also: and these cells, of kernels that smoke workloads do not reach; scripts/every_kernel.py finds those that a set's workloads launch,
scripts/offered_kernels.py those that could be launched at all. --only: these and no smoke workloads. --part 2/4: of all cells the second of
each four, for processes side by side. --seconds: no cell is begun after as many; those left are counted, and the exit status is 1.

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
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from opwise.backends import BACKENDS, implementation, implementations
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned_table import tunables
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS, Workload
from opwise.tuning.bench import built

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
LEFT_OUT = ("compile",)  # inductor compiles in other processes, for minutes; its kernels are not ours


class Cell(NamedTuple):
    """An implementation by its name, on a workload. `configuration`: that its plan is made to take, by the name that the op's table has for
    it. `shifted`: elements between an allocation's beginning and the tensor's, so that rows begin anywhere."""

    name: str
    workload: str
    configuration: str = ""
    shifted: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.name, self.workload, self.configuration, f"shifted by {self.shifted}" * (self.shifted > 0))))


def launched(cell: Cell) -> Verdict:
    """Raises UnsupportedWorkload, also where the workload cannot have the configuration, or no plan asks for one."""
    workload = Workload.parse(cell.workload)
    found = implementation(cell.name, GPU)
    spec = found.op
    inputs = spec.make_inputs(workload, CPU, seed=1)
    exact = [x.double() for x in inputs]
    reference = spec.reference(*exact)
    on_gpu = [moved(x, cell.shifted) for x in inputs]
    out = moved(spec.empty_output(*inputs), cell.shifted)
    if cell.configuration:  # built afresh: what is prepared once for such tensors keeps the configuration that it got
        table = tunables((spec.name,), found.backend)[0].name
        launch = built(found.source.build, table, cell.configuration)(*on_gpu, out)(*on_gpu, out)
    else:
        launch = found.prepare(*on_gpu, out=out)
    for _ in range(2):  # a counter that is not left as it was found shows at the second launch
        launch()
    torch.cuda.synchronize()
    return judge(out.cpu(), reference, spec.error_bound(workload, reference, *exact))


def moved(x: Tensor, shifted: int) -> Tensor:
    room = torch.empty(x.numel() + shifted, dtype=x.dtype, device=GPU)
    return room[shifted:].view(x.shape).copy_(x)


def cells(backend: str, also: Iterable[Cell], smoke: bool = True) -> Iterator[Cell]:
    for op, spec in OPS.items():
        for variant, offered in implementations(backend, op, "cuda").items() if smoke else ():
            for workload in spec.workloads["smoke"] if variant not in LEFT_OUT else ():
                yield Cell(offered.name, str(workload))
        yield from (cell for cell in also if cell.name.partition(":")[0] == f"{backend}/{op}")


def part(text: str) -> slice:
    """Of "2/4" each fourth from the second on."""
    number, of = (int(x) for x in text.split("/"))
    if not 1 <= number <= of:
        raise ValueError(text)
    return slice(number - 1, None, of)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("backends", nargs="*", default=[name for name in BACKENDS if name != "torch_eager"], metavar="BACKEND")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--also", type=Path)
    more.add_argument("--only", type=Path)
    parser.add_argument("--part", type=part, default=slice(0, None, 1))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("PYTORCH_NO_CUDA_MEMORY_CACHING=1 is not set: accesses past a tensor's end could go unseen", file=sys.stderr)
        return 2
    file = given.also or given.only
    also = [] if file is None else [Cell(*cell) for cell in json.loads(file.read_text(encoding="utf-8"))]
    until, wrong, left = time.monotonic() + given.seconds, 0, 0
    for backend in given.backends:
        began, checked = time.monotonic(), 0
        for cell in islice(cells(backend, also, smoke=given.only is None), given.part.start, None, given.part.step):
            if time.monotonic() > until:
                left += 1
                continue
            print(f"{time.monotonic() - began:.0f} s: {cell}", file=sys.stderr, flush=True)  # also for the one that a run ended in
            with Workload.parse(cell.workload).precision(), torch.no_grad():
                try:
                    verdict = launched(cell)
                except UnsupportedWorkload as refusal:
                    if not cell.configuration:
                        continue
                    verdict = Verdict(False, float("inf"), str(refusal))
            checked += 1
            if not verdict.ok and implementation(cell.name, GPU).source.fault is None:
                wrong += 1
                print(f"WRONG {cell}: {verdict.reason}", flush=True)
        print(f"{backend}: {checked} cells checked in {time.monotonic() - began:.0f} s", flush=True)
    if left:
        print(f"out of time: {left} cells were not begun", file=sys.stderr)
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
