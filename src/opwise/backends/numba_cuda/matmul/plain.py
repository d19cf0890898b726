"""The variant `plain` of matmul: one thread computes one element of C as a dot product, without shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from opwise.backends.numba_cuda.common.compiler import cuda, float32, types
from opwise.backends.numba_cuda.common.plain import jit, plain

SIDE, SIDE_ON_CPU = 16, 4  # a block is side x side threads; smaller on a CPU, so that small products still have several blocks
MOST_BLOCKS = 65535  # CUDA's limit on gridDim.y
ZERO = np.float32(0.0)


@jit
def matmul(a: Any, b: Any, c: Any) -> None:
    column, first = cuda.grid(2)  # adjacent threads read adjacent elements of b: coalesced
    if column < c.shape[1]:
        for row in range(first, c.shape[0], cuda.gridsize(2)[1]):
            total = ZERO
            for p in range(a.shape[1]):
                total += float32(a[row, p]) * float32(b[p, column])
            c[row, column] = total


def call(a: Any, b: Any, c: Any, stream: Any) -> None:
    side = SIDE_ON_CPU if isinstance(c, np.ndarray) else SIDE
    down, across = -(-c.shape[0] // side), -(-c.shape[1] // side)
    matmul[(across, min(down, MOST_BLOCKS)), (side, side), stream](a, b, c)


PLAIN = {"": (matmul, lambda t: types.void(t[:, ::1], t[:, ::1], t[:, ::1]))}
build_plain = plain(call)
