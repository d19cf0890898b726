"""Maxima and sums over the 32 lanes of a warp, where every lane has the result; sums of what a thread loaded."""

from __future__ import annotations

from typing import Any

from numba import cuda

from opwise.backends.numba_cuda import ptx
from opwise.backends.numba_cuda.launch import inlined

ALL_LANES = 0xFFFFFFFF


@inlined
def warp_max(value: Any) -> Any:
    for half in (16, 8, 4, 2, 1):
        value = ptx.greater(value, cuda.shfl_xor_sync(ALL_LANES, value, half))
    return value


@inlined
def warp_sum(value: Any) -> Any:
    for half in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL_LANES, value, half)
    return value


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
