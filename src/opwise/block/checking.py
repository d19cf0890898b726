"""Checks inside the block: each step is judged on its actual input, so that the wrong step is named.

A float64 block differs from a right bfloat16 one by the rounding of eleven buffers, and a bound that allows for it finds no wrong op.
Torch's steps are judged too: they show a kernel that writes outside its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from opwise.block.sizes import DTYPE, Sizes
from opwise.block.wiring import ORDER, STEPS, Tensors, sequences
from opwise.measure.validate import Verdict, judge
from opwise.ops import OPS
from opwise.ops.spec import DTYPES, LEAST_SUBNORMAL, U32, UNIT_ROUNDOFF, OpSpec

CHUNK = 1 << 24  # elements of the longer of an input's and an output's rows: 128 MiB of float64 a temporary
U, LEAST = UNIT_ROUNDOFF[DTYPES[DTYPE]], LEAST_SUBNORMAL[DTYPES[DTYPE]]
Truth = Callable[..., tuple[Tensor, Tensor]]  # float64 rows of the inputs -> the reference and its bound


def judged(spec: OpSpec, inputs: tuple[Tensor, ...], out: Tensor, scale: float = 1.0) -> Verdict:
    """Judges every element of `out` against `scale` times the float64 reference of the given inputs.

    For ops whose row i depends on row i of the first input and on all of the others: products, softmax, elementwise ones."""
    workload = spec.workload_of(*inputs)
    whole = [x.double() for x in inputs[1:]]

    def truth(part: Tensor) -> tuple[Tensor, Tensor]:
        reference = spec.reference(part, *whole)
        return scale * reference, scale * spec.error_bound(workload, reference, part, *whole)

    return _by_rows(truth, inputs[:1], out)


def _by_rows(truth: Truth, inputs: tuple[Tensor, ...], out: Tensor) -> Verdict:
    rows = max(1, CHUNK // max(inputs[0].shape[1], out.shape[1]))
    worst = Verdict(True, 0.0)
    for start in range(0, out.shape[0], rows):
        part = slice(start, start + rows)
        found = judge(out[part], *truth(*(x[part].double() for x in inputs)))
        if not found.ok and start:
            found = Verdict(False, found.error_ratio, f"{found.reason} (from row {start} on)")
        worst = worse(worst, found)
    return worst


def worse(a: Verdict, b: Verdict) -> Verdict:
    """The worse of two verdicts: wrong before right, then the larger error."""
    return max(a, b, key=lambda v: (not v.ok, v.error_ratio))


def judged_block(sizes: Sizes, tensors: Tensors, named: Mapping[str, str]) -> Verdict:
    """The worst verdict of all steps, on the buffers as one run of the block left them, or the first wrong one, which may cause the errors
    after it. named: step -> the implementation that ran it, for an op of the suite."""
    worst = Verdict(True, 0.0)
    by_torch = _by_torch(sizes, tensors)
    for name in ORDER:
        if step := STEPS.get(name):
            found = judged(OPS[step.op], tuple(tensors[x] for x in step.inputs), tensors[step.output])
        else:
            found = max(by_torch[name](), key=lambda v: (not v.ok, v.error_ratio))
        if not found.ok:
            return Verdict(False, found.error_ratio, f"{name} ({named.get(name, 'torch')}): {found.reason}")
        worst = worse(worst, found) if step else worst
    if not bool(torch.isfinite(tensors["y"]).all()):
        return Verdict(False, math.inf, "the block's output holds nan or inf although each step is right")
    return worst


def _by_torch(sizes: Sizes, t: Tensors) -> dict[str, Callable[[], Iterator[Verdict]]]:
    """Verdicts of torch's steps, one or more of each."""
    product = OPS["matmul"]
    return {
        "norm 1": lambda: iter([_by_rows(_norm, (t["x"],), t["normed"])]),
        "norm 2": lambda: iter([_by_rows(_norm, (t["middle"],), t["normed_2"])]),
        "residual 1": lambda: iter([_by_rows(_sum, (t["x"], t["projected"]), t["middle"])]),
        "residual 2": lambda: iter([_by_rows(_sum, (t["middle"], t["down"]), t["y"])]),
        "scores": lambda: (
            judged(product, (q, k.T), out, sizes.scale)
            for s in sequences(sizes, t)
            for q, k, out in zip(s.q, s.k, s.scores, strict=True)
        ),
        "values": lambda: (
            judged(product, (a, v), out) for s in sequences(sizes, t) for a, v, out in zip(s.attention, s.v, s.attended, strict=True)
        ),
    }  # fmt: skip


def _norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """The bound: one rounding of the result, and of the float32 sum of n squares an error like sqrt(n) u32, of which the root halves."""
    reference = x / x.square().mean(dim=1, keepdim=True).sqrt()
    return reference, reference.abs() * (U + (8 + 4 * math.sqrt(x.shape[1])) * U32) + LEAST


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    reference = a + b
    return reference, U * reference.abs() + U32 * (a.abs() + b.abs()) + LEAST
