"""square: x * x in float32, rounded once at the store. Reads x, writes out: 2n elements of traffic, bound by memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from opwise.backends.numba_cuda.common import elementwise
from opwise.backends.numba_cuda.common.compiler import cuda, float32, types
from opwise.backends.numba_cuda.common.dtypes import DTYPES
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.plain import THREADS, blocks_of, jit, plain
from opwise.backends.protocol import Variant


@jit
def square(x: Any, y: Any) -> None:
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value = float32(x[i])
        y[i] = value * value


def call(x: Any, y: Any, stream: Any) -> None:
    square[blocks_of(x), THREADS, stream](x, y)


@inlined
def squared(value: Any) -> Any:
    return value * value


@cache
def fast_kernel(dtype: str, wide: bool) -> Kernel:
    return elementwise.fast_kernel(dtype, wide, squared)


def kernels() -> Mapping[str, Kernel]:
    return {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w) for d in DTYPES for w in (True, False)}


PLAIN = {"": (square, lambda t: types.void(t[::1], t[::1]))}
build_plain = plain(call, flat=True)

VARIANTS = {
    "": Variant(elementwise.fast(fast_kernel), "16 bytes a thread, read, squared and written"),
    "plain": Variant(build_plain, "a grid-stride loop over device arrays, launched as kernel[blocks, threads]"),
}
