"""The smallest workload of each kernel that a set's workloads launch: what compute-sanitizer is to watch beyond the smoke workloads.

    python scripts/every_kernel.py kernels.json --sets core bars
    SANITIZE='--also kernels.json' scripts/sanitize.sh

Many kernels run on large tensors or certain shapes alone, and a plan may take another tomorrow: so the list is not kept but found, by
launching every workload once under torch's profiler. Two launches are of one kernel where name, block, registers, shared memory and dtype
are alike. Workloads come in the order of their bytes; --seconds ends early, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from opwise.backends import BACKENDS, implementation
from opwise.backends.protocol import UnsupportedWorkload
from opwise.ops import OPS, Workload
from opwise.profiling.capture import LAUNCH, SEED, Trace, exported, label
from opwise.profiling.trace import activities, ranges
from opwise.runner.jobs import workloads_of

GPU = torch.device("cuda", 0)
TOLD_APART_BY = ("block", "registers per thread", "shared memory")


def size(workload: Workload) -> int:
    return OPS[workload.op].cost(workload).bytes


def first_of_each(name: str, workloads: list[Workload], until: float) -> list[Workload]:
    """Those of `workloads`, in their order, whose kernels no earlier one launches. Nothing is begun after `until` (time.monotonic)."""
    found, launched = implementation(name, GPU), []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for workload in workloads:
            if time.monotonic() > until:
                break
            with workload.precision(), torch.no_grad():
                inputs = found.op.make_inputs(workload, GPU, SEED)
                try:
                    launch = found.prepare(*inputs, out=found.op.empty_output(*inputs))
                except UnsupportedWorkload:
                    continue
                with label(LAUNCH):
                    launch()
                torch.cuda.synchronize()
            launched.append(workload)
    return [workload for workload, new in zip(launched, new_kernels(exported(profiler), launched), strict=True) if new]


def new_kernels(trace: Trace, launched: list[Workload]) -> list[bool]:
    """Of each of the trace's launches, in order: did it launch a kernel that none before it did?"""
    spans = ranges(trace, LAUNCH)
    if len(spans) != len(launched):
        raise RuntimeError(f"the trace holds {len(spans)} launches of {len(launched)}")
    own: list[set[str]] = [set() for _ in spans]
    for activity in activities(trace, spans):
        if activity.within is not None:
            own[activity.within].add(" ".join(str(x) for x in (activity.name, *(activity.facts.get(fact) for fact in TOLD_APART_BY))))
    seen: set[tuple[str, str]] = set()
    answer = []
    for workload, kernels in zip(launched, own, strict=True):
        told = {(workload.dtype, kernel) for kernel in kernels}
        answer.append(not told <= seen)
        seen |= told
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--sets", nargs="+", default=["core"], metavar="SET")
    parser.add_argument("--backends", nargs="+", default=[name for name in BACKENDS if name != "torch_eager"], metavar="BACKEND")
    parser.add_argument("--most-mib", type=float, default=300, help="of a workload's inputs and output (default 300)")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--beyond", nargs="*", default=[], metavar="WORKLOAD", help="that no set holds")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    wanted = sorted({workload for name in given.sets for workload in workloads_of(name, given.beyond)}, key=lambda w: (size(w), str(w)))
    wanted = [workload for workload in wanted if 0 < size(workload) <= given.most_mib * 2**20]
    found: list[tuple[str, str]] = []
    for backend in given.backends:
        began, before = time.monotonic(), len(found)
        for op in OPS:
            own = [workload for workload in wanted if workload.op == op]
            found += [(f"{backend}/{op}", str(workload)) for workload in first_of_each(f"{backend}/{op}", own, until)]
        print(f"{backend}: {len(found) - before} kernels of {len(wanted)} workloads in {time.monotonic() - began:.0f} s", flush=True)
        given.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if time.monotonic() > until:
        print("out of time: the larger workloads of what came last were not launched", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
