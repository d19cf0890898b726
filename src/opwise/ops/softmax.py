"""softmax over the last dimension of a 2-D tensor: out = exp(x - max) / sum exp(x - max), row by row.

Error bound, relative to r: rounding x - max and scaling it for exp2 moves the exponent by at most 2 u32 |x - max|; exp, the division
and the product cost a few u32 more (8 with room). The row's sum has positive terms, so that the last additions weigh most: a chain of
L = CHAIN of them at the end has a relative error of variance u32^2 / 3 L/3, a tree 2 u32^2 / 3 (see mean), within z = `deviations`
of its root. Then one rounding u to the output dtype. Below the least normal the error is absolute. That every row sums to 1 follows
from the elementwise bound: n elements within it cannot be off by more than the sum of their bounds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
)

DTYPES = ("float32", "float16", "bfloat16")
# Short rows, odd rows, a row that fits a block's registers, rows that do not, and one row in the millions.
CORE = ((32, 32), (583, 931), (1823, 781), (65536, 128), (4096, 4096), (16384, 16384), (2048, 131072), (256, 1048576))
# What a choice interpolates between: few rows, and enough to fill a GPU (2^27 elements at most), of 2^k columns, of 3 2^(k-1), and of odd
# numbers just past or just short of a power of two, to which some kernels pad.
ODD_COLUMNS = tuple(2**k * (13 if k % 2 else 7) // 7 | 1 for k in range(5, 20))
MANY = tuple((min(2**27 // n, 65536), n) for n in (*(2**k for k in range(5, 21)), *(3 * 2**k for k in range(4, 19)), *ODD_COLUMNS))
GRID = (*MANY, *((64, n) for n in (*(2**k for k in range(5, 21)), *ODD_COLUMNS)))
SEED = ((583, 931), (1823, 781), *((4096, n) for n in (256, 512, 1024, 2048, 4096, 8192, 12672)))

CHAIN = 16384  # terms of a row that one accumulator takes one after the other at most
TILE, PEAKS = 128, 32  # of `whole_inputs`


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Rows far from zero and widely spread: exp of the unshifted input is inf or 0 everywhere."""
    rows, _ = workload.shape
    spread = 8.0 * normal(workload.shape, torch.float32, device, seed)
    offset = torch.where(torch.arange(rows, device=device) % 2 == 0, 1000.0, -1000.0).to(torch.float32)
    return ((spread + offset[:, None]).to(workload.torch_dtype),)


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1) with up to PEAKS elements a row that hold half of its mass together, one in a tile of TILE columns, the last tile's at the
    row's end. Row after row takes the next tiles in turn, so that all count where rows times PEAKS reach their number."""
    rows, columns = workload.shape
    x = normal(workload.shape, torch.float32, device, seed)
    if x.numel() == 0:
        return (x.to(workload.torch_dtype),)
    tiles = -(-columns // TILE)
    peaks = min(PEAKS, -(-tiles // rows))
    tile = torch.arange(rows * peaks, device=device).reshape(rows, peaks) % tiles
    generator = torch.Generator(device).manual_seed(seed + 1)
    at = tile * TILE + torch.randint(0, TILE, tile.shape, device=device, generator=generator)
    at = torch.where(tile == tiles - 1, columns - 1, at)
    mass = math.log(columns / peaks) + 0.5  # of N(0, 1), exp has the mean e^0.5
    return (x.scatter_(1, at, mass).to(workload.torch_dtype),)


def same_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 2:
        raise ValueError(f"softmax takes a 2-D tensor (rows, columns), given shape {tuple(shape)}: call x.reshape(-1, x.shape[-1])")
    return tuple(shape)


def reference(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def error_bound(workload: Workload, r: Tensor, x: Tensor) -> Tensor:
    dtype = workload.torch_dtype
    if x.numel() == 0:
        return torch.zeros_like(r)
    distance = (x - x.amax(dim=-1, keepdim=True)).abs()
    of_sum = deviations(x.numel()) * RMS * math.sqrt(min(x.shape[-1], CHAIN) / 3.0 + 2.0)
    relative = UNIT_ROUNDOFF[dtype] + U32 * (8.0 + of_sum + 2.0 * distance)
    return torch.where(r == 0, 0.0, r * relative) + LEAST_SUBNORMAL[dtype]  # at x = -inf: 0 times an infinite distance


def cost(workload: Workload) -> Cost:
    n, size = elements(workload.shape), workload.torch_dtype.itemsize
    return Cost(read_bytes=n * size, write_bytes=n * size, flops=5 * n)  # max, subtract, exp, add, scale


SOFTMAX = OpSpec(
    name="softmax",
    summary="softmax over the last dimension of a 2-D tensor",
    inputs=("x",),
    dtypes=DTYPES,
    make_inputs=one_normal_input,
    hard_inputs=hard_inputs,
    whole_inputs=whole_inputs,
    output_shape=same_matrix,
    workload_shape=same_matrix,
    reference=reference,
    error_bound=error_bound,
    cost=cost,
    workloads={
        "smoke": over_dtypes("softmax", ((1, 1), (3, 33), (7, 130)), DTYPES),
        "seed": over_dtypes("softmax", SEED, ("float32",)),
        "core": over_dtypes("softmax", CORE, DTYPES),
        "sweep": over_dtypes("softmax", tuple((4096, 2**k) for k in range(6, 18)), DTYPES),
        "grid": over_dtypes("softmax", GRID, DTYPES),
    },
    sizes=same_matrix,
)
