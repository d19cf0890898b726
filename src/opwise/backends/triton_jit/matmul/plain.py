"""matmul as Triton's users write it: a tile of 64 x 64 a program, masks on all sides, in any of the dtypes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.launch import called
from opwise.backends.triton_jit.common.portable import narrow
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul.pointers import factor
from opwise.ops.spec import tf32_allowed

TILE = {"BM": 64, "BN": 64, "BK": 32}


@triton.jit
def plain_kernel(a, b, out, M, N, K, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """PRECISION: of float32, "tf32" or "ieee"."""
    tiles_n = tl.cdiv(N, BN)
    row = (tl.program_id(0) // tiles_n * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
    column = (tl.program_id(0) % tiles_n * BN + tl.arange(0, BN))[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + row * K + k[None, :], mask=(row < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k.to(tl.int64)[:, None] * N + column, mask=(k[:, None] < K) & (column < N), other=0.0)
        total = tl.dot(factor(left, PRECISION), factor(right, PRECISION), total, input_precision=PRECISION)
    tl.store(out + row * N + column, narrow(total, out.dtype.element_ty), mask=(row < M) & (column < N))


def build(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    precision = "tf32" if a.dtype == torch.float32 and tf32_allowed() else "ieee"
    programs = -(-m // TILE["BM"]) * -(-n // TILE["BN"])

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return called(plain_kernel, (programs, 1, 1), a, b, out, m, n, k, PRECISION=precision, **TILE)

    return bind


def specimens(dtype: str) -> dict[str, Specimen]:
    types = {**dict.fromkeys(("a", "b", "out"), POINTERS[dtype]), **dict.fromkeys("MNK", "i32")}
    constants = {"PRECISION": "tf32" if dtype == "tfloat32" else "ieee", **TILE}
    return {f"plain, {dtype}": Specimen(plain_kernel, types, constants)}
