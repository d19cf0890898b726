"""Right or wrong inside the block: each op of the suite is judged on what it was given there, so that the wrong one is named.

A float64 block would differ from a right bfloat16 one by the rounding of eleven buffers, and no bound that allows for it finds a wrong op.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.block.wiring import STEPS, Tensors
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS
from opwise.ops.spec import OpSpec

CHUNK = 1 << 24  # elements of the longer of an input's and an output's rows: 128 MiB of float64 a temporary


def judged(spec: OpSpec, inputs: tuple[Tensor, ...], out: Tensor) -> Verdict:
    """Every element of `out` against the float64 reference of the very inputs, some rows at a time.

    For ops whose row i depends on row i of the first input alone, and on all of the others: products, softmax, elementwise ones.
    """
    workload = spec.workload_of(*inputs)
    first, *others = inputs
    whole = [x.double() for x in others]
    rows = max(1, CHUNK // max(first.shape[1], out.shape[1]))
    worst = Verdict(True, 0.0)
    for start in range(0, first.shape[0], rows):
        part = first[start : start + rows].double()
        reference = spec.reference(part, *whole)
        found = judge(out[start : start + rows], reference, spec.error_bound(workload, reference, part, *whole))
        if not found.ok and start:
            found = Verdict(False, found.error_ratio, f"{found.reason} (from row {start} on)")
        if (not found.ok, found.error_ratio) > (not worst.ok, worst.error_ratio):
            worst = found
    return worst


def judged_block(tensors: Tensors, named: dict[str, str]) -> Verdict:
    """The worst verdict of all steps that are ops of the suite, on the buffers as one run of the block left them.

    named: step -> the implementation that ran it, for the reason.
    """
    worst = Verdict(True, 0.0)
    for step in STEPS.values():
        found = judged(OPS[step.op], tuple(tensors[name] for name in step.inputs), tensors[step.output])
        if not found.ok:
            return Verdict(False, found.error_ratio, f"{step.name} ({named[step.name]}): {found.reason}")  # what follows is its fault too
        worst = max(worst, found, key=lambda v: v.error_ratio)
    if not bool(torch.isfinite(tensors["y"]).all()):
        return Verdict(False, float("inf"), "the block's output holds nan or inf although each op of the suite is right")
    return worst
