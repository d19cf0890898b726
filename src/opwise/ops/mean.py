"""mean over all elements, to a 0-d tensor of the input's dtype.

Error bound: u |r| for the store and 2 u32 |r| for the division, plus the error of a float32 sum. It is a sum by blocks whose
accumulators take L = sqrt(n) values one after the other, at most CHAIN, and whose sums are added pairwise or again in chains of L.
Each addition adds an error of root mean square u32 / sqrt(3) of its result. With Q the sum of the squares of the terms and n r their
sum, additions within a block reach partial sums of sqrt(j Q / n), together L/2 Q over all blocks; a level of a tree adds Q, and there
are log2(n). What the terms have in common adds (n r)^2 (1 + 1/2 + ...) = 2 (n r)^2 in a tree, L/3 (n r)^2 in a chain at the top. So
the sum's error has the variance u32^2 / 3 ((L/2 + log2 n) Q + (L/3 + 2) (n r)^2), and keeps within z = `deviations` of its root. An
accumulator that takes thousands of values one after the other does not fit, nor does a sum that lacks a few elements.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opwise.ops._elementwise import CORE, DTYPES, GRID, SMOKE, SWEEP, same_shape
from opwise.ops.spec import (
    LEAST_SUBNORMAL,
    RMS,
    U32,
    UNIT_ROUNDOFF,
    Cost,
    OpSpec,
    Workload,
    deviations,
    elements,
    normal,
    one_normal_input,
    over_dtypes,
    signed_powers,
)

CHAIN = 256  # values that an accumulator takes one after the other at most
TILE = 512  # elements: any 1024 neighbours, what the smallest blocks add at once, have a whole one


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Positive and of very different sizes: the sum passes 65504 early, so a float16 accumulator overflows and a bfloat16 one stalls."""
    return (signed_powers(workload.shape, -8, 8, device, seed).abs().to(workload.torch_dtype),)


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1) and, at one place in each TILE elements and at the very last, values so large that a mean without one of them is off by
    more than its own rounding. Another tile's balances each, by lot, so that the mean is no larger than that of N(0, 1)."""
    x = normal((elements(workload.shape),), torch.float32, device, seed)
    n = x.numel()
    tiles = -(-n // TILE)
    generator = torch.Generator(device).manual_seed(seed + 1)
    begins = torch.arange(tiles, device=device) * TILE
    places = begins + torch.randint(0, TILE, (tiles,), device=device, generator=generator)
    places[-1:] = n - 1
    size = 8.0 * UNIT_ROUNDOFF[workload.torch_dtype] * math.sqrt(n) + 4.0 * math.sqrt(TILE)
    large = size * (1.0 + torch.rand(tiles // 2, device=device, generator=generator))
    signed = torch.cat([large, -large, large.new_full((tiles % 2,), size)])
    x[places] = signed[torch.randperm(tiles, device=device, generator=generator)]
    return (x.reshape(workload.shape).to(workload.torch_dtype),)


def chain(n: int) -> int:
    """The longest run of additions, one after the other into one accumulator, that the bound allows in a sum of n terms."""
    return min(CHAIN, math.isqrt(n) + 1)


def to_scalar(shape: tuple[int, ...]) -> tuple[int, ...]:
    return ()


def reference(x: Tensor) -> Tensor:
    return x.mean()


def error_bound(workload: Workload, r: Tensor, x: Tensor) -> Tensor:
    dtype, n = workload.torch_dtype, max(x.numel(), 1)
    length = chain(n)
    spread = (length / 2.0 + math.log2(n)) * torch.linalg.vector_norm(x).square() / n**2
    common = (length / 3.0 + 2.0) * r.square()
    of_sum = deviations(1) * U32 * RMS * (spread + common).sqrt()
    bound: Tensor = (UNIT_ROUNDOFF[dtype] + 2.0 * U32) * r.abs() + of_sum + LEAST_SUBNORMAL[dtype]
    return bound


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
    whole_inputs=whole_inputs,
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
