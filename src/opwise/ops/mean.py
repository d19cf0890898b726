"""mean over all elements, to a 0-d tensor of the input's dtype.

Error bound: u |r| for the store, plus the error of a float32 sum. Every partial sum is at most S = sum |x|; with rounding errors
that behave like independent ones (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019) a sum of n terms is within a small multiple
of sqrt(n) u32 S, and 4 makes a false alarm rarer than one in a million. A plain loop in 16 bits does not fit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opwise.ops._elementwise import CORE, DTYPES, GRID, SMOKE, SWEEP, same_shape
from opwise.ops.spec import (
    LEAST_SUBNORMAL,
    U32,
    UNIT_ROUNDOFF,
    Cost,
    OpSpec,
    Workload,
    elements,
    one_normal_input,
    over_dtypes,
    signed_powers,
)


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Positive and of very different sizes: the sum passes 65504 early, so a float16 accumulator overflows and a bfloat16 one stalls."""
    return (signed_powers(workload.shape, -8, 8, device, seed).abs().to(workload.torch_dtype),)


def to_scalar(shape: tuple[int, ...]) -> tuple[int, ...]:
    return ()


def reference(x: Tensor) -> Tensor:
    return x.mean()


def error_bound(workload: Workload, r: Tensor, x: Tensor) -> Tensor:
    dtype, n = workload.torch_dtype, max(x.numel(), 1)
    return UNIT_ROUNDOFF[dtype] * r.abs() + 4 * math.sqrt(n) * U32 * x.abs().sum() / n + LEAST_SUBNORMAL[dtype]


def cost(workload: Workload) -> Cost:
    n, size = elements(workload.shape), workload.torch_dtype.itemsize
    return Cost(read_bytes=n * size, write_bytes=size, flops=n)


MEAN = OpSpec(
    name="mean",
    summary="arithmetic mean over all elements",
    inputs=("x",),
    dtypes=DTYPES,
    make_inputs=one_normal_input,
    hard_inputs=hard_inputs,
    output_shape=to_scalar,
    workload_shape=same_shape,
    reference=reference,
    error_bound=error_bound,
    cost=cost,
    workloads={
        "smoke": over_dtypes("mean", SMOKE, DTYPES),
        "seed": (Workload("mean", (1_000_000,), "float32"), Workload("mean", (10000, 10000), "float32")),
        "core": over_dtypes("mean", CORE, DTYPES),
        "sweep": over_dtypes("mean", SWEEP, DTYPES),
        "grid": over_dtypes("mean", GRID, DTYPES),
    },
    value_of_nothing=math.nan,
)
