"""Reductions: maximum and sum over neighbouring lanes of a warp, to all of them; sums over a block, and over a thread's loaded values."""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.common.compiler import cuda
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import inlined

ALL_LANES = 0xFFFFFFFF
ZERO = f32(0.0)


def over_lanes(lanes: int) -> tuple[Any, Any]:
    """(maximum, sum) of a value over as many neighbouring lanes, a power of two up to 32; all get it."""
    half, rounds = lanes // 2, lanes.bit_length() - 1  # no tuple of distances: numba-cuda-mlir keeps one in local memory

    @inlined
    def greatest(value: Any) -> Any:
        for i in range(rounds):
            value = ptx.greater(value, cuda.shfl_xor_sync(ALL_LANES, value, half >> i))
        return value

    @inlined
    def added(value: Any) -> Any:
        for i in range(rounds):
            value += cuda.shfl_xor_sync(ALL_LANES, value, half >> i)
        return value

    @inlined
    def same(value: Any) -> Any:
        return value

    return (greatest, added) if lanes > 1 else (same, same)


warp_max, warp_sum = over_lanes(32)


def block_sum_of(warps: int) -> Any:
    """(value, thread, of_warps) -> in thread 0 the sum over a block of so many warps. of_warps: a float32 a warp, shared, which may be used
    again behind a barrier that comes after this call."""

    @inlined
    def block_sum(value: Any, thread: Any, of_warps: Any) -> Any:
        total = warp_sum(value)
        if thread & 31 == 0:
            of_warps[thread >> 5] = total
        cuda.syncthreads()
        if thread == 0:
            total = ZERO
            for w in range(warps):
                total += of_warps[w]
        return total

    return block_sum


def within_of(each: int) -> Any:
    """(values, at) -> the sum of values[at:at + each], of 1, 4 or 8, in pairs."""

    @inlined
    def one(values: Any, at: Any) -> Any:
        return values[at]

    @inlined
    def four(values: Any, at: Any) -> Any:
        return (values[at] + values[at + 1]) + (values[at + 2] + values[at + 3])

    @inlined
    def eight(values: Any, at: Any) -> Any:
        return four(values, at) + four(values, at + 4)

    return {1: one, 4: four, 8: eight}[each]
