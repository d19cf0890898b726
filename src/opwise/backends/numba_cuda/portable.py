"""Loads and stores that run on a GPU and in the simulator alike: float32 arithmetic whatever the storage.

bfloat16 has no type in the simulator, so its bits travel as uint16: it is the upper half of a float32, rounded here by hand.
Portable kernels take their shared memory dynamically: the simulator's static `cuda.shared.array` has a race, in which two threads
that allocate at the same time each get an array of their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from torch import Tensor

from opwise.backends.numba_cuda.launch import SIMULATED, inlined

DTYPES = ("float32", "float16", "bfloat16")

f32, u16, u32, f16 = np.float32, np.uint16, np.uint32, np.float16  # Python's own numbers would make it double precision


def name_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def pointer(dtype: str) -> Any:
    """The kernel parameter for a tensor of this dtype."""
    return types.CPointer({"float32": types.float32, "float16": types.float16, "bfloat16": types.uint16}[dtype])


if SIMULATED:  # what must be written twice: Numba compiles `view` and numpy's `exp` only where there is a GPU

    def float_of(bits: Any) -> Any:
        return bits.view(f32)

    def bits_of(value: Any) -> Any:
        return f32(value).view(u32)

    exp: Any = np.exp  # math.exp would answer in double precision, and raise where this is inf

else:
    from opwise.backends.numba_cuda.ptx import bits_of, float_of

    exp = math.exp  # of a float32, in float32


@inlined
def load_as_is(x: Any, i: Any) -> Any:
    return f32(x[i])


@inlined
def load_bf16(x: Any, i: Any) -> Any:
    return float_of(u32(u32(x[i]) << u32(16)))


@inlined
def store_f32(y: Any, i: Any, value: Any) -> None:
    y[i] = value


@inlined
def store_f16(y: Any, i: Any, value: Any) -> None:
    y[i] = f16(value)


@inlined
def store_bf16(y: Any, i: Any, value: Any) -> None:
    """To nearest, ties to even: add half a unit, less one where the kept part is even. A nan would overflow to infinity."""
    bits = bits_of(value)
    if value != value:
        y[i] = u16(0x7FC0)
    else:
        y[i] = u16(u32(bits + u32(0x7FFF) + ((bits >> u32(16)) & u32(1))) >> u32(16))


LOAD = {"float32": load_as_is, "float16": load_as_is, "bfloat16": load_bf16}
STORE = {"float32": store_f32, "float16": store_f16, "bfloat16": store_bf16}
