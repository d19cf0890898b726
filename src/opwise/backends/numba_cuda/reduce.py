"""Maxima and sums over the 32 lanes of a warp; every lane has the result."""

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
