"""matmul by a thread an element of the product, a dot product each: the variant `plain`."""

from __future__ import annotations

from typing import Any

import numpy as np

from opwise.backends.numba_cuda.common.compiler import cuda, float32, types
from opwise.backends.numba_cuda.common.plain import jit, plain

SIDE, SIDE_ON_CPU = 16, 4  # threads of a block, across and down: small products have several blocks on a CPU too
MOST_BLOCKS = 65535  # of a grid's second dimension
ZERO = np.float32(0.0)


@jit
def matmul(a: Any, b: Any, c: Any) -> None:
    column, first = cuda.grid(2)  # neighbours in x read neighbours in a row of b
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
