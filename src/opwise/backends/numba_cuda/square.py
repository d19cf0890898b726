"""square: x * x in float32, rounded once at the store. Reads x, writes out: 2n elements of traffic, bound by memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from numba import cuda
from torch import Tensor

from opwise.backends.numba_cuda import elementwise, portable
from opwise.backends.numba_cuda.launch import SIMULATED, Kernel, inlined, simulated
from opwise.backends.protocol import Bind, Launch, UnsupportedWorkload, Variant


@inlined
def squared(value: Any) -> Any:
    return value * value


@cache
def fast_kernel(dtype: str, wide: bool) -> Kernel:
    return elementwise.fast_kernel(dtype, wide, squared)


@cache
def portable_kernel(dtype: str) -> Kernel:
    return elementwise.portable_kernel(dtype, squared)


@cache
def textbook_kernel() -> Any:
    @cuda.jit  # type: ignore[untyped-decorator,unused-ignore]
    def square(x: Any, y: Any) -> None:
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            y[i] = x[i] * x[i]

    return square


def build_textbook(x: Tensor, out: Tensor) -> Bind:
    """Numba as its manual writes it: arrays, a grid-stride loop, types found at the call. In 16 bits float16 arithmetic rounds once too."""
    if portable.name_of(x) == "bfloat16":
        raise UnsupportedWorkload("Numba's arrays have no bfloat16: use the unnamed variant, which passes addresses")
    threads, blocks = (16, 2) if SIMULATED else (256, min(-(-x.numel() // 256), 65535))
    kernel = textbook_kernel()

    def bind(x: Tensor, out: Tensor) -> Launch:
        if SIMULATED:
            views = tuple(t.detach().reshape(-1).numpy() for t in (x, out))
            return simulated(kernel[blocks, threads], *views)

        arrays = tuple(cuda.as_cuda_array(t.detach().reshape(-1), sync=False) for t in (x, out))
        index = x.device.index

        def launch() -> None:
            stream = cuda.external_stream(torch._C._cuda_getCurrentRawStream(index))
            kernel[blocks, threads, stream](*arrays)

        return launch

    return bind


def kernels() -> Mapping[str, Kernel]:
    found = {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w) for d in portable.DTYPES for w in (True, False)}
    return found | {f"{d} portable": portable_kernel(d) for d in portable.DTYPES}


build_portable = elementwise.plain(portable_kernel)

VARIANTS = {
    "": Variant(elementwise.fast(fast_kernel, build_portable), "16 bytes a thread, read, squared and written"),
    "portable": Variant(build_portable, "a grid-stride loop over pointers, one element an access"),
    "textbook": Variant(build_textbook, "a grid-stride loop over device arrays, launched as kernel[blocks, threads]"),
}
