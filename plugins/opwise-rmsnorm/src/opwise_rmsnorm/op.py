"""rmsnorm over the rows of a 2-D tensor: out = x / sqrt(mean(x^2) + eps) * weight, as torch.nn.functional.rms_norm has it (Zhang and
Sennrich, Root Mean Square Layer Normalization, 2019). x: (rows, columns), weight: (columns,), out: like x, of one dtype.

Error bound, relative to r, with v = mean(x^2) + eps: squares cost u32, the division by the columns 2 u32, eps and its addition 2 u32. The
row's sum has positive terms: with a chain of L = CHAIN additions at its end and a tree before, its relative error has the variance
u32^2 (L/3 + 2) / 3 (see softmax), and keeps within z = `deviations` of its root. The root halves all that v has. rsqrt costs 4 u32 (2 ulp,
CUDA C++ Programming Guide), the two products u32 each: 9 u32 with room, and half of the sum's. Then one rounding u to the output dtype.
Below the least normal the error is absolute, of the normalised x before it is multiplied by the weight, and of the result.
"""

import math

import torch
from torch import Tensor

from opwise.ops.spec import LEAST_SUBNORMAL, RMS, U32, UNIT_ROUNDOFF, Cost, OpSpec, Workload, deviations, elements, normal, over_dtypes

EPS = 1e-6
DTYPES = ("float32", "float16", "bfloat16")
# Short rows, odd rows, hidden sizes of language models, rows that no block holds in registers.
CORE = ((32, 32), (583, 931), (1823, 781), (65536, 128), (4096, 4096), (16384, 8192), (2048, 131072))
LAYERS = tuple((tokens, hidden) for hidden in (768, 4096, 5120, 8192) for tokens in (1, 16, 256, 2048))
GRID = tuple((rows, n + odd) for n in (2**k for k in range(5, 18)) for odd in (0, 1) for rows in (64, min(2**27 // n, 65536)))

CHAIN = 256  # terms of a row that one accumulator takes one after the other at most
TILE, PEAKS = 128, 32  # of `whole_inputs`


def make_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    shapes, dtype = (workload.shape, workload.shape[1:]), workload.torch_dtype
    return tuple(normal(shape, dtype, device, seed + i) for i, shape in enumerate(shapes))


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Rows by turns so large that a sum of squares in 16 bits overflows or stalls, and so small that eps is half of v."""
    x, weight = make_inputs(workload, device, seed)
    x[0::2] *= 300.0
    x[1::2] *= math.sqrt(EPS)
    return x, weight


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1) with up to PEAKS elements a row that hold half of its squares, one in a tile of TILE columns, the last tile's at the row's
    end. Row after row takes the next tiles in turn."""
    rows, columns = workload.shape
    x, weight = make_inputs(workload, device, seed)
    if x.numel():
        tiles = -(-columns // TILE)
        peaks = min(PEAKS, -(-tiles // rows))
        tile = torch.arange(rows * peaks, device=device).reshape(rows, peaks) % tiles
        at = torch.where(tile == tiles - 1, columns - 1, tile * TILE + (seed + tile * 37) % TILE)
        x.scatter_(1, at, math.sqrt(columns / peaks))
    return x, weight


def rows_of(x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...]:
    if len(x) != 2 or tuple(weight) != tuple(x[1:]):
        raise ValueError(f"rmsnorm: x is {tuple(x)} and weight is {tuple(weight)}: x must be 2-D, its columns must equal weight's size: "
                         "call x.reshape(-1, x.shape[-1])")  # fmt: skip
    return tuple(x)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + EPS).sqrt() * weight


def error_bound(workload: Workload, r: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    dtype = workload.torch_dtype
    of_sum = deviations(x.shape[0]) * RMS * math.sqrt(min(x.shape[1], CHAIN) / 3.0 + 2.0)
    relative = UNIT_ROUNDOFF[dtype] + U32 * (9.0 + of_sum / 2.0)
    return r.abs() * relative + LEAST_SUBNORMAL[torch.float32] * weight.abs() + LEAST_SUBNORMAL[dtype]


def cost(workload: Workload) -> Cost:
    n, columns, size = elements(workload.shape), workload.shape[1], workload.torch_dtype.itemsize
    return Cost(read_bytes=(n + columns) * size, write_bytes=n * size, flops=4 * n)  # square, add, scale, weigh


RMSNORM = OpSpec(
    "rmsnorm", "x / sqrt(mean(x^2) + eps) * weight over the rows of a 2-D tensor", ("x", "weight"), DTYPES,
    make_inputs, hard_inputs, output_shape=rows_of, workload_shape=rows_of, reference=reference, error_bound=error_bound, cost=cost,
    whole_inputs=whole_inputs, sizes=tuple, workloads={
        "smoke": over_dtypes("rmsnorm", ((1, 1), (3, 33), (7, 130)), DTYPES),
        "core": over_dtypes("rmsnorm", CORE, DTYPES),
        "sweep": over_dtypes("rmsnorm", tuple((4096, 2**k) for k in range(6, 18)), DTYPES),
        "grid": over_dtypes("rmsnorm", GRID, DTYPES),
        "layers": over_dtypes("rmsnorm", LAYERS, ("bfloat16",)),
    },
)  # fmt: skip
