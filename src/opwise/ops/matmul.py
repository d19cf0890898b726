"""matmul: (M, K) x (K, N) -> (M, N), row-major, accumulated in float32.

float32 means float32 products; tfloat32 is the same data with factors rounded to TF32 (10 explicit bits of significand), which
torch's own switch `torch.set_float32_matmul_precision("high")` allows and every backend here obeys.

Error bound, with S = |A| |B| elementwise: u |r| for the store, plus the error of K products summed in float32. With plain FMA the
sum behaves like sqrt(K) u32 S (see mean). Tensor cores truncate instead of rounding when they align and add, a bias that grows
linearly, one step per instruction of at least 8 products: (K/8) 2 u32 S (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330, 2021;
the greater of both is taken, since short products are summed in fewer steps than sqrt(K) assumes). Rounding both factors to TF32
moves each product by at most 2 * 2^-11 of itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opwise.ops.spec import LEAST_SUBNORMAL, U32, UNIT_ROUNDOFF, Cost, OpSpec, Workload, normal, over_dtypes, signed_powers

DTYPES = ("float32", "float16", "bfloat16", "tfloat32")
# (M, K, N): launch-bound, odd, square, decode-like (16 rows), and thin in K.
CORE = (
    (32, 32, 32),
    (583, 931, 781),
    (1024, 1024, 1024),
    (16, 4096, 4096),
    (8192, 128, 8192),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
# What a choice interpolates between, to 8192 a side, products of up to 0.3 TFLOP; and odd sides, which are other kernels' work.
GRID = tuple(
    (m, k, n) for m in (32, 128, 512, 2048, 8192) for k in (32, 256, 2048, 8192) for n in (32, 128, 512, 2048, 8192) if m * k * n <= 2**37
)
GRID += tuple((m, k, n) for m in (37, 257, 1003, 3001) for k in (95, 701, 4501) for n in (73, 463, 3003))
SEED = ((128, 128, 128), (1024, 1024, 1024), (2048, 2048, 2048))


def make_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    m, k, n = workload.shape
    a = normal((m, k), workload.torch_dtype, device, seed)
    b = normal((k, n), workload.torch_dtype, device, seed + 1)
    return a, b


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Factors of very different sizes with a common sign along K: a 16-bit accumulator loses the small terms."""
    m, k, n = workload.shape
    a = signed_powers((m, k), -4, 1, device, seed).abs()
    b = signed_powers((k, n), -4, 1, device, seed + 1)
    b = torch.where(torch.arange(n, device=device)[None, :] % 2 == 0, b.abs(), b)
    return a.to(workload.torch_dtype), b.to(workload.torch_dtype)


def product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != 2 or len(b) != 2:
        raise ValueError(f"matmul takes two 2-D tensors (M, K) and (K, N), given {tuple(a)} and {tuple(b)}: reshape to 2-D")
    if a[1] != b[0]:
        raise ValueError(f"matmul: a is {tuple(a)} and b is {tuple(b)}: a's columns ({a[1]}) must equal b's rows ({b[0]})")
    return (a[0], b[1])


def mkn(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return (a[0], a[1], b[1])


def reference(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def error_bound(workload: Workload, r: Tensor, a: Tensor, b: Tensor) -> Tensor:
    dtype, k = workload.torch_dtype, a.shape[1]
    terms = a.abs() @ b.abs()
    per_term = 4 * math.sqrt(k) * U32
    if workload.dtype != "float32":
        per_term = max(per_term, k / 8 * 2 * U32)
    if workload.dtype == "tfloat32":
        per_term += 2 * 2.0**-11
    return UNIT_ROUNDOFF[dtype] * r.abs() + per_term * terms + LEAST_SUBNORMAL[dtype]


def cost(workload: Workload) -> Cost:
    m, k, n = workload.shape
    size = workload.torch_dtype.itemsize
    unit = "fma" if workload.dtype == "float32" else f"tensor_{workload.dtype}"
    return Cost(read_bytes=(m * k + k * n) * size, write_bytes=m * n * size, flops=2 * m * k * n, unit=unit)


MATMUL = OpSpec(
    name="matmul",
    summary="(M, K) x (K, N), accumulated in float32",
    inputs=("a", "b"),
    dtypes=DTYPES,
    make_inputs=make_inputs,
    hard_inputs=hard_inputs,
    output_shape=product_shape,
    workload_shape=mkn,
    reference=reference,
    error_bound=error_bound,
    cost=cost,
    workloads={
        "smoke": over_dtypes("matmul", ((1, 1, 1), (17, 33, 19), (64, 64, 64)), DTYPES),
        "seed": (*over_dtypes("matmul", SEED, ("float32",)), Workload("matmul", (4096, 4096, 4096), "float16")),
        "core": over_dtypes("matmul", CORE, DTYPES),
        "sweep": over_dtypes("matmul", tuple((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192)), DTYPES),
        "grid": over_dtypes("matmul", GRID, DTYPES),
    },
    value_of_nothing=0.0,
    reads_precision=True,
    sizes=tuple,
)
