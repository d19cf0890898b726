"""softmax over the last dimension of a 2-D tensor: out = exp(x - max) / sum exp(x - max), row by row.

Error bound, relative to r: rounding x - max and scaling it for exp2 changes the exponent by at most 2 u32 |x - max|. exp, the division
and the product add a few u32; the bound takes 8. A row's sum has positive terms, so its last additions have the largest errors: a final
chain of L = CHAIN terms has a relative error of variance u32^2 / 3 L/3, a tree 2 u32^2 / 3 (see mean). The bound takes z = `deviations`
standard deviations of both. The store adds one rounding u. Below the smallest normal number the error is absolute. That a row sums to 1
need not be checked: the sum is wrong by at most the sum of the elements' bounds.
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
# Short rows, odd rows, rows that fit the registers of a thread block, rows that do not, and rows of 2^20 columns.
CORE = ((32, 32), (583, 931), (1823, 781), (65536, 128), (4096, 4096), (16384, 16384), (2048, 131072), (256, 1048576))
# Measured points that the choice interpolates between: 64 rows, or enough to fill a GPU (at most 2^27 elements); 2^k, 3 2^k or an odd
# number of columns, 2^k + 1 or 7 % less than 2^k, because some kernels pad to a power of two.
ODD_COLUMNS = tuple(2**k * (13 if k % 2 else 7) // 7 | 1 for k in range(5, 20))
MANY = tuple((min(2**27 // n, 65536), n) for n in (*(2**k for k in range(5, 21)), *(3 * 2**k for k in range(4, 19)), *ODD_COLUMNS))
GRID = (*MANY, *((64, n) for n in (*(2**k for k in range(5, 21)), *ODD_COLUMNS)))
SEED = ((583, 931), (1823, 781), *((4096, n) for n in (256, 512, 1024, 2048, 4096, 8192, 12672)))

CHAIN = 16384  # most terms of a row that one accumulator adds in sequence
TILE, PEAKS = 128, 32  # of `whole_inputs`: columns of a tile; most peaks in a row


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 8^2) + 1000 in even rows, - 1000 in odd ones: exp of the unshifted input is inf or 0 everywhere."""
    rows, _ = workload.shape
    spread = 8.0 * normal(workload.shape, torch.float32, device, seed)
    offset = torch.where(torch.arange(rows, device=device) % 2 == 0, 1000.0, -1000.0).to(torch.float32)
    return ((spread + offset[:, None]).to(workload.torch_dtype),)


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1) with up to PEAKS large elements in a row, which together have half of its sum: one in a tile of TILE columns, in the last
    tile at the row's end. Successive rows take successive tiles, so that every tile has a peak if rows times PEAKS reach their number."""
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
    return torch.where(r == 0, 0.0, r * relative) + LEAST_SUBNORMAL[dtype]  # x = -inf would give 0 times inf


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
