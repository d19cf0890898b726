"""What the kernels of long rows do with the 16-byte pieces that a thread holds of one: softmax_cluster.py's and softmax_stream.py's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opwise.backends.numba_cuda.common import ptx, words
from opwise.backends.numba_cuda.common.launch import inlined

LOG2_E = np.float32(math.log2(math.e))
ZERO, ONE, LEAST = np.float32(0.0), np.float32(1.0), np.float32(-math.inf)
# Cancels in the quotient by the sum. With it the fast exponential, which flushes what is below 2^-126, loses nothing that float32 can hold.
BIAS = np.float32(30.0)


@inlined
def shift_of(maximum: Any) -> Any:
    return maximum if maximum > LEAST else ZERO  # of -inf alone: -inf - -inf would be nan before the row's end is known


@inlined
def biased_exp(value: Any, shift: Any) -> Any:
    return words.exp2_flushed(words.fma(value - shift, LOG2_E, BIAS))


@inlined
def rescale(earlier: Any, shift: Any) -> Any:
    return words.exp2_flushed((earlier - shift) * LOG2_E)


def steps(dtype: str, held: int) -> tuple[Any, Any, Any, Any]:
    """The device functions `sum_of`, `greatest_of`, `add_exponentials` and `finish`.

    `pieces` are `held` times four words, `at` the first of a piece's. `values` has room for a piece's elements, `greatest` for its
    words. `sums` are four, so that no addition waits for the one before.
    """
    unpack, pack, each = words.UNPACK_WORDS[dtype], words.PACK_WORDS[dtype], ptx.ELEMENTS[dtype]
    keep_greater = words.KEEP_GREATER[dtype]

    @inlined
    def greatest_of(piece: Any, values: Any, largest: Any) -> Any:
        """The greatest of `largest` and a piece's elements."""
        unpack(piece, 0, values)
        for j in range(each):
            largest = ptx.greater(largest, values[j])
        return largest

    @inlined
    def add_exponentials(pieces: Any, at: Any, values: Any, shift: Any, sums: Any) -> None:
        unpack(pieces, at, values)
        for j in range(each):
            sums[j % 4] += biased_exp(values[j], shift)

    @inlined
    def sum_of(pieces: Any, greatest: Any, values: Any, sums: Any) -> Any:
        """The maximum of all pieces held, and the sum of the exponentials. The maximum first, so that no exponential waits for another.
        `greatest` keeps the maxima, element by element."""
        for w in range(4):
            greatest[w] = pieces[w]
        for k in range(1, held):
            keep_greater(greatest, pieces, 4 * k)
        largest = greatest_of(greatest, values, LEAST)
        shift = shift_of(largest)
        for j in range(4):
            sums[j] = ZERO
        for k in range(held):
            add_exponentials(pieces, 4 * k, values, shift, sums)
        return largest, (sums[0] + sums[1]) + (sums[2] + sums[3])

    @inlined
    def finish(pieces: Any, at: Any, values: Any, shift: Any, scale: Any) -> None:
        """A piece's results take its place."""
        unpack(pieces, at, values)
        for j in range(each):
            values[j] = biased_exp(values[j], shift) * scale
        pack(values, pieces, at)

    return sum_of, greatest_of, add_exponentials, finish
