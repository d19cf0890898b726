"""Conversions on load and store: float32 in registers, float32, float16 or bfloat16 in memory.

On a GPU each is one conversion instruction. Triton's interpreter (3.7.1) holds a bfloat16 as its 16 bits in a numpy uint16, and has three
faults: it truncates instead of rounding (1.005859375 -> 1.0, nearest is 1.0078125), it loses the leading bit of subnormals (2^-130 reads
as 0), and arithmetic, sums and dot products act on the bits as integers (1.0 * 1.0 is 16256 * 16256 mod 2^16). So in the interpreter
alone the conversions are written out in integers, and no kernel computes in bfloat16.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton import knobs

INTERPRETING = tl.constexpr(bool(knobs.runtime.interpret))


def device_function(function: Any) -> Any:
    """Decorator of functions that kernels call. In the interpreter they stay plain Python: a call of a `triton.jit` function costs 9 ms
    there, since the interpreter patches Triton's language for each call."""
    return function if knobs.runtime.interpret else triton.jit(function)


@device_function
def widen(x):  # type: ignore[no-untyped-def]
    """To float32, exact."""
    if INTERPRETING and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@device_function
def narrow(x, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """float32 to `dtype`, rounded to nearest even."""
    if INTERPRETING and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF).to(tl.uint32)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)
