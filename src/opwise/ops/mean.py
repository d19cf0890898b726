"""mean over all elements. The output is a 0-d tensor of the input's dtype.

Error bound: u |r| for the store, 2 u32 |r| for the division, and the error of a float32 sum. The sum is blocked: an accumulator adds
L = sqrt(n) values in sequence (at most CHAIN), and the blocks' sums are added pairwise or in chains of L. Each addition has an error of
root mean square u32 / sqrt(3) times its result. Let Q be the sum of the squared terms and n r the sum of the terms. The j-th partial sum
of a block is about sqrt(j Q / n), and the squares of all partial sums of all blocks add up to L/2 Q. Each of the log2(n) levels of a
tree adds Q. A nonzero mean adds (n r)^2 (1 + 1/2 + ...) = 2 (n r)^2 in a tree and L/3 (n r)^2 in a final chain. The variance of the
sum's error is u32^2 / 3 ((L/2 + log2 n) Q + (L/3 + 2) (n r)^2). The bound is its square root times z = `deviations`. One accumulator
for thousands of values exceeds the bound, and so does a sum that omits a few elements.
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

CHAIN = 256  # most values that one accumulator adds in sequence
TILE = 512  # elements. Any 1024 consecutive elements, the least that a thread block adds at once, contain a whole tile.


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Positive values from 2^-8 to 2^8. The sum soon exceeds 65504, so a float16 accumulator overflows and a bfloat16 one stalls."""
    return (signed_powers(workload.shape, -8, 8, device, seed).abs().to(workload.torch_dtype),)


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1) with one large value in each tile of TILE elements and at the last element. A mean that omits one of them is wrong by more
    than its rounding error. The large values cancel in pairs of random tiles, so that the mean stays as small as that of N(0, 1)."""
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
    """The most terms that one accumulator may add in sequence, by the error bound, in a sum of n terms."""
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
