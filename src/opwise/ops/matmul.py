"""matmul: (M, K) x (K, N) -> (M, N), accumulated in float32. Each factor is a row-major matrix or the transpose of one, x.t().

float32 means float32 products. tfloat32 means float32 data whose factors are rounded to TF32 (10 explicit bits of significand); torch's
switch `torch.set_float32_matmul_precision("high")` allows it, and every backend here reads that switch.

Error bound. Q = A^2 B^2 with elementwise squares, so sqrt(Q) is the root of the sum of the squares of an element's K terms; z is the
number of standard deviations for all elements (`deviations`):

- u |r| for the store.
- TF32: the roundings of the two factors give each term an independent error of root mean square at most sqrt(2) u_tf32 / sqrt(3) of it:
  z sqrt(2/3) u_tf32 sqrt(Q). A kernel that truncates the factors instead makes r smaller by 7e-4 and exceeds the bound.
- A sequential float32 sum of K terms has a rounding error of root mean square u32 / sqrt(3) of each partial sum P_j, in total
  u32 / sqrt(3) sqrt(sum of P_j^2). For terms in random order, P_j is j/K r plus a random bridge of variance up to Q/4, whose mean square
  has the tail P(> x Q) ~ exp(-pi^2 x / 2). The product of both tails is exp(-pi t) beyond t sqrt(K Q) u32 / sqrt(3), hence t = z^2 / 2 pi:
  z u32 / sqrt(3) sqrt(K (r^2 / 3 + z^2 Q / 4 pi^2)). Shorter sums whose results are added (split-K) have smaller errors.
- Tensor cores truncate instead of rounding when they align and add (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330, 2021), by up to
  TRUNCATED u32 |P_j| per step of 8 terms, always towards zero. The mean of |P_j| is at most |r| / 2 + z sqrt(Q / 12), over K/8 steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opwise.ops.spec import (
    LAYOUTS,
    LEAST_SUBNORMAL,
    RMS,
    U32,
    UNIT_ROUNDOFF,
    Cost,
    OpSpec,
    Workload,
    deviations,
    is_transpose,
    normal,
    over_dtypes,
    signed_powers,
)

DTYPES = ("float32", "float16", "bfloat16", "tfloat32")
U_TF32 = 2.0**-11  # unit roundoff of TF32
STEP = 8  # fewest terms that a tensor core adds at once
TRUNCATED = 4.0  # most that a step loses, in u32 times the partial sum; a third more than measured on an H100 (TF32, positive terms)
SLICE = 16  # elements of K, of which `whole_inputs` keeps one in each row
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
# Measured points that the choice interpolates between: sides up to 8192 and 2^37 multiply-adds, and odd sides, which other kernels serve.
GRID = tuple(
    (m, k, n) for m in (32, 128, 512, 2048, 8192) for k in (32, 256, 2048, 8192) for n in (32, 128, 512, 2048, 8192) if m * k * n <= 2**37
)
GRID += tuple((m, k, n) for m in (37, 257, 1003, 3001) for k in (95, 701, 4501) for n in (73, 463, 3003))
SEED = ((128, 128, 128), (1024, 1024, 1024), (2048, 2048, 2048))


def make_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    m, k, n = workload.shape
    a = normal((m, k), workload.torch_dtype, device, seed)
    b = normal((k, n), workload.torch_dtype, device, seed + 1)
    return _laid_out(workload, a, b)


def _laid_out(workload: Workload, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The same factors, stored in the workload's layout."""
    layout = workload.layout or "NN"
    return tuple(x.t().contiguous().t() if way == "T" else x for x, way in zip((a, b), layout, strict=True))


def layout_of(a: Tensor, b: Tensor) -> str:
    found = "".join("N" if x.is_contiguous() else "T" if is_transpose(x) else "?" for x in (a, b))
    return found if found in LAYOUTS else ""


def hard_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Magnitudes from 2^-4 to 2. In even columns all terms are positive, so that a 16-bit accumulator loses the small ones."""
    m, k, n = workload.shape
    a = signed_powers((m, k), -4, 1, device, seed).abs()
    b = signed_powers((k, n), -4, 1, device, seed + 1)
    b = torch.where(torch.arange(n, device=device)[None, :] % 2 == 0, b.abs(), b)
    return _laid_out(workload, a.to(workload.torch_dtype), b.to(workload.torch_dtype))


def whole_inputs(workload: Workload, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """N(0, 1), but each row of the first factor is zero except for one element in each SLICE consecutive ones, at a place that shifts from
    row to row. Within 16 rows each element of K is one of K/16 terms, so any output tile shows a slice, tail or element left out."""
    a, b = make_inputs(workload, device, seed)
    m, k = a.shape
    at = torch.arange(k, device=device)
    wide = (k - at // SLICE * SLICE).clamp_max(SLICE)  # the last slice may be shorter
    kept = (torch.arange(m, device=device)[:, None] + at // SLICE) % wide == at % SLICE
    return _laid_out(workload, (a * kept).contiguous(), b)


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
    z = deviations(r.numel())
    squares = a.square() @ b.square()
    root = squares.sqrt()
    bound = UNIT_ROUNDOFF[dtype] * r.abs() + LEAST_SUBNORMAL[dtype]
    bound += z * U32 * RMS * math.sqrt(k) * (r.square() / 3.0 + squares.mul_((z / (2.0 * math.pi)) ** 2)).sqrt_()
    if workload.dtype != "float32":
        steps = k // STEP + 1
        bound += TRUNCATED * U32 * steps * (r.abs() / 2.0 + root * (z / math.sqrt(12.0)))
    if workload.dtype == "tfloat32":
        bound += root.mul_(z * math.sqrt(2.0) * RMS * U_TF32)
    return bound


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
    whole_inputs=whole_inputs,
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
    layouts=LAYOUTS,
    layout=layout_of,
)
