"""softmax without warps or vectors: runs in Numba's simulator, and on any GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, int64
from torch import Tensor

from opwise.backends.numba_cuda import portable
from opwise.backends.numba_cuda.launch import SIMULATED, Kernel
from opwise.backends.protocol import Bind

PORTABLE_THREADS = 8 if SIMULATED else 256
ZERO, LEAST = np.float32(0.0), np.float32(-math.inf)


@cache
def portable_kernel(dtype: str) -> Kernel:
    """A block a row, three passes over it, sums and maxima in shared memory."""
    load, store, exp = portable.LOAD[dtype], portable.STORE[dtype], portable.exp
    threads = PORTABLE_THREADS

    def softmax(x: Any, out: Any, rows: Any, columns: Any) -> None:
        partial = cuda.shared.array(0, float32)
        thread = cuda.threadIdx.x
        start = int64(cuda.blockIdx.x) * columns

        largest = LEAST
        for i in range(int64(thread), columns, threads):
            largest = max(largest, load(x, start + i))
        partial[thread] = largest
        half = threads // 2
        while half > 0:
            cuda.syncthreads()
            if thread < half:
                partial[thread] = max(partial[thread], partial[thread + half])
            half //= 2
        cuda.syncthreads()
        largest = partial[0]
        cuda.syncthreads()  # everybody has read the maximum before sums replace it

        total = ZERO
        for i in range(int64(thread), columns, threads):
            total += exp(load(x, start + i) - largest)
        partial[thread] = total
        half = threads // 2
        while half > 0:
            cuda.syncthreads()
            if thread < half:
                partial[thread] += partial[thread + half]
            half //= 2
        cuda.syncthreads()
        total = partial[0]

        for i in range(int64(thread), columns, threads):
            store(out, start + i, exp(load(x, start + i) - largest) / total)

    pointer = portable.pointer(dtype)
    return Kernel(softmax, (pointer, pointer, int64, int64), threads, dynamic_shared=4 * threads)


def build_portable(x: Tensor, out: Tensor) -> Bind:
    kernel, (rows, columns) = portable_kernel(portable.name_of(x)), x.shape
    return kernel.fixed((rows, 1), rows, columns, device=x.device)
