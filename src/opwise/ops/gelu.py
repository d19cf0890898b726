"""gelu, tanh form: out = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), any shape. Hendrycks and Gimpel, arXiv:1606.08415.

Error bound: u |r| for the store. The argument a of tanh has a relative error of k u32 from a few float32 roundings. a tanh'(a) is
bounded, so the result changes by at most about k u32 |x|. tanh, the sum with 1 and the product add a few u32 (|x| + |r|). The bound
takes 4 u32 (|x| + |r|); kernels on an H200 reach 1.5. An approximate tanh (relative error 2^-11) exceeds the bound, by intent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opwise.ops._elementwise import DTYPES, copy_cost, same_shape, workload_sets
from opwise.ops.spec import LEAST_SUBNORMAL, U32, UNIT_ROUNDOFF, Cost, OpSpec, Workload, one_normal_input, signed_powers

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Magnitudes from 2^-20 to 2^15: tanh as (e^2a - 1)/(e^2a + 1) is nan above x of about 10, and 1 + tanh cancels below -3."""
    return (signed_powers(workload.shape, -20, 15, device, seed).to(workload.torch_dtype),)


def reference(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3)))


def error_bound(workload: Workload, r: Tensor, x: Tensor) -> Tensor:
    dtype = workload.torch_dtype
    return UNIT_ROUNDOFF[dtype] * r.abs() + 4 * U32 * (x.abs() + r.abs()) + LEAST_SUBNORMAL[dtype]


def cost(workload: Workload) -> Cost:
    return copy_cost(workload, flops_per_element=8)  # x^2, x^3 term, scale, tanh counted as one, 1+, half, product


GELU = OpSpec(
    name="gelu",
    summary="GELU, tanh form, elementwise",
    inputs=("x",),
    dtypes=DTYPES,
    make_inputs=one_normal_input,
    hard_inputs=hard_inputs,
    output_shape=same_shape,
    workload_shape=same_shape,
    reference=reference,
    error_bound=error_bound,
    cost=cost,
    workloads=workload_sets("gelu", (Workload("gelu", (16384, 16384), "float32"),)),
)
