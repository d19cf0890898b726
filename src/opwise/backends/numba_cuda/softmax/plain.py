"""softmax by a block a row in three passes, maximum and sum in shared memory: the variant `plain`."""

from __future__ import annotations

import math
from typing import Any

from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, types
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import inlined
from opwise.backends.numba_cuda.common.plain import jit, plain

THREADS = 256
LEAST = f32(-math.inf)


@inlined
def of_block(partial: Any, thread: Any, value: Any, greatest: bool) -> Any:
    """The greatest or the sum of all threads' values, by a tree in shared memory."""
    partial[thread] = value
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            a, b = partial[thread], partial[thread + half]
            partial[thread] = max(a, b) if greatest else a + b
        half //= 2
    cuda.syncthreads()
    result = partial[0]
    cuda.syncthreads()  # everybody has read the result before others replace it
    return result


@jit
def softmax(x: Any, out: Any) -> None:
    partial = cuda.shared.array(0, float32)
    thread, row = cuda.threadIdx.x, int64(cuda.blockIdx.x)
    largest, total = LEAST, f32(0)
    for i in range(thread, x.shape[1], THREADS):
        largest = max(largest, float32(x[row, i]))
    largest = of_block(partial, thread, largest, True)
    for i in range(thread, x.shape[1], THREADS):
        total += math.exp(float32(x[row, i]) - largest)
    total = of_block(partial, thread, total, False)
    for i in range(thread, x.shape[1], THREADS):
        out[row, i] = math.exp(float32(x[row, i]) - largest) / total


def call(x: Any, out: Any, stream: Any) -> None:
    softmax[x.shape[0], THREADS, stream, 4 * THREADS](x, out)


PLAIN = {"": (softmax, lambda t: types.void(t[:, ::1], t[:, ::1]))}
build_plain = plain(call)
