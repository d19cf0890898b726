"""square: out = x * x, any shape.

Error bound: the product of two floats is rounded once, so |out - r| <= u |r|. Below the smallest normal number the error is absolute, at
most half the smallest subnormal. The float32 square of a 16-bit input is exact (at most 22 bits), so only the store rounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.ops._elementwise import DTYPES, copy_cost, same_shape, workload_sets
from opwise.ops.spec import LEAST_SUBNORMAL, UNIT_ROUNDOFF, Cost, OpSpec, Workload, one_normal_input, signed_powers


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Magnitudes whose squares range from below the smallest subnormal to above the largest finite number."""
    dtype = workload.torch_dtype
    low = torch.tensor(LEAST_SUBNORMAL[dtype], dtype=torch.float64).log2().item() / 2 - 1
    high = torch.tensor(torch.finfo(dtype).max, dtype=torch.float64).log2().item() / 2 + 0.5
    return (signed_powers(workload.shape, low, high, device, seed).to(dtype),)


def reference(x: Tensor) -> Tensor:
    return x * x


def error_bound(workload: Workload, r: Tensor, x: Tensor) -> Tensor:
    dtype = workload.torch_dtype
    return UNIT_ROUNDOFF[dtype] * r.abs() + LEAST_SUBNORMAL[dtype]


def cost(workload: Workload) -> Cost:
    return copy_cost(workload, flops_per_element=1)


SQUARE = OpSpec(
    name="square",
    summary="x * x, elementwise",
    inputs=("x",),
    dtypes=DTYPES,
    make_inputs=one_normal_input,
    hard_inputs=hard_inputs,
    output_shape=same_shape,
    workload_shape=same_shape,
    reference=reference,
    error_bound=error_bound,
    cost=cost,
    workloads=workload_sets("square", (Workload("square", (2, 3), "float32"), Workload("square", (10000, 10000), "float32"))),
)
