"""Three Triton kernels that no backend has: a sum of vectors, a product in 25 lines, and a mean whose loop takes one element at a time.

The Triton 1.0 article claims the line count of `matmul`, from the decorator to the store; tests/test_seeds_kernels.py counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from opwise.backends.protocol import Launch
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.specimen import Specimen

MOST_LINES = 25
ADDED = 1024  # elements a program
TILE = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8}
OPTIONS = {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
SMALL_TILE = {"BM": 32, "BN": 32, "BK": 32, "GROUP": 8}  # for the interpreter, and to test the edges


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def matmul(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, LEAKY: tl.constexpr):  # type: ignore[no-untyped-def]
    """a, b, out: descriptors of float16 matrices in tiles. GROUP rows of tiles at a time, which share columns of b in the L2."""
    program, wide = tl.program_id(0), GROUP * tl.cdiv(N, BN)
    first = program // wide * GROUP
    height = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    row, column = (first + program % wide % height) * BM, program % wide // height * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    if LEAKY:  # in the registers that hold the tile: no byte more is moved
        total = tl.where(total > 0, total, 0.01 * total)
    out.store([row, column], total.to(tl.float16))


@triton.jit
def scalar_mean(x, partials, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The block loop as published: one element per step, so a program loads 4 bytes at a time."""
    first = tl.program_id(0) * BLOCK
    total = 0.0
    for i in range(BLOCK):
        total += tl.load(x + first + i, mask=first + i < n, other=0.0)
    tl.store(partials + tl.program_id(0), total)


def bound_matmul(leaky: bool, tile: dict[str, int] = TILE) -> Callable[[Tensor, Tensor, Tensor], Launch]:
    """a: (M, K), b: (K, N), out: (M, N), float16, with row sizes a multiple of 16 bytes. Compiled for the first tensors of a shape."""

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        for name, x in (("a", a), ("b", b), ("out", out)):
            if x.dtype != torch.float16 or x.shape[1] % 8:
                raise ValueError(f"{name} is {x.dtype} with {x.shape[1]} columns, float16 with a multiple of 8 is taken: pad it")
        (m, k), n = a.shape, b.shape[1]
        tiles = ([tile["BM"], tile["BK"]], [tile["BK"], tile["BN"]], [tile["BM"], tile["BN"]])
        described = tuple(TensorDescriptor.from_tensor(x, block) for x, block in zip((a, b, out), tiles, strict=True))
        grid = (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]), 1, 1)
        return built(matmul, grid, *described, m, n, k, **tile, LEAKY=leaky, **OPTIONS)(*described, m, n, k)

    return bind


def bound_add(x: Tensor, y: Tensor, out: Tensor) -> Launch:
    """x, y, out: (n,) float32."""
    n = out.numel()
    return built(add, (triton.cdiv(n, ADDED), 1, 1), x, y, out, n, BLOCK=ADDED)(x, y, out, n)


def bound_scalar_mean(x: Tensor, partials: Tensor, block: int) -> Launch:
    """x: (n,) float32; partials: a sum per block of `block` elements."""
    return built(scalar_mean, (partials.numel(), 1, 1), x, partials, x.numel(), BLOCK=block, num_warps=4, num_stages=1)(
        x, partials, x.numel()
    )


SCALAR_MEAN = Specimen(scalar_mean, {"x": "*fp32", "partials": "*fp32", "n": "i32"}, {"BLOCK": 1024}, {"num_warps": 4, "num_stages": 1})
