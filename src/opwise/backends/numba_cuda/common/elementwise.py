"""The elementwise kernel y = f(x) that square and gelu share. Reads x once, writes y once.

A thread processes one 16-byte vector, and blocks are small: on an H200 four vectors a thread cost 5 to 10 % of the bandwidth, and
twice the threads a block 2 % of gelu's in 16 bits. Where a pointer is not a multiple of 16 the same kernel runs with several accesses
of one element each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64
from opwise.backends.numba_cuda.common.dtypes import name_of
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.protocol import Bind, Build

THREADS = 128
UNROLL = {True: 1, False: 4}  # accesses of a thread: of 16 bytes, or of one element


def fast_kernel(dtype: str, wide: bool, of: Any) -> Kernel:
    """Parameters: addresses of x and y; n: elements. wide: 16-byte accesses. of: device function, float32 -> float32."""
    load, store = ptx.LOAD[dtype, wide], ptx.STORE[dtype, wide]
    load_one, store_one = ptx.LOAD[dtype, False], ptx.STORE[dtype, False]
    size = ptx.BYTES[dtype]
    each = ptx.ELEMENTS[dtype] if wide else 1
    unroll = UNROLL[wide]
    step, count = each * size, unroll * each

    def elementwise(x: Any, y: Any, n: Any) -> None:
        values = cuda.local.array(count, float32)
        vectors = n // each
        first = int64(cuda.blockIdx.x) * (THREADS * unroll) + cuda.threadIdx.x
        if first + (unroll - 1) * THREADS < vectors:
            for u in range(unroll):
                load(x + (first + u * THREADS) * step, values, u * each)
            for i in range(count):
                values[i] = of(values[i])
            for u in range(unroll):
                store(y + (first + u * THREADS) * step, values, u * each)
        else:
            for u in range(unroll):
                if first + u * THREADS < vectors:
                    load(x + (first + u * THREADS) * step, values, 0)
                    for i in range(each):
                        values[i] = of(values[i])
                    store(y + (first + u * THREADS) * step, values, 0)
        rest = vectors * each + first  # at most each - 1 elements after the last whole vector: block 0 takes them
        if each > 1 and first < each and rest < n:
            load_one(x + rest * size, values, 0)
            values[0] = of(values[0])
            store_one(y + rest * size, values, 0)

    return Kernel(elementwise, (int64, int64, int64), THREADS)


def fast(kernel_of: Callable[[str, bool], Kernel]) -> Build:
    """The build of an elementwise op. kernel_of(dtype, wide) -> its kernel; it must cache."""

    def build(x: Tensor, out: Tensor) -> Bind:
        dtype = name_of(x)
        wide = x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
        kernel, n = kernel_of(dtype, wide), x.numel()
        per_block = THREADS * UNROLL[wide] * (ptx.ELEMENTS[dtype] if wide else 1)
        return kernel.fixed((-(-n // per_block), 1), n, device=x.device)

    return build
