"""Vector addition in Numba, which the Triton 1.0 article compares with Triton's: one element per thread, with a bounds check."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opwise.backends.numba_cuda.common.compiler import cuda
from opwise.backends.numba_cuda.common.plain import THREADS, jit, plain
from opwise.backends.protocol import Launch


def add(x: Any, y: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


kernel = jit(add)


def call(x: Any, y: Any, out: Any, stream: Any) -> None:
    kernel[-(-out.size // THREADS), THREADS, stream](x, y, out)


build = plain(call, flat=True)


def bound_add(x: Tensor, y: Tensor, out: Tensor) -> Launch:
    """x, y, out: (n,) float32."""
    return build(x, y, out)(x, y, out)
