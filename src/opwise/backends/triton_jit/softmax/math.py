"""Arithmetic that the softmax kernels share: exponentials, finite shifts, and the merge of partial maxima and sums (online softmax)."""

from __future__ import annotations

import math

import triton.language as tl

from opwise.backends.triton_jit.common.portable import INTERPRETING, device_function

LOG2_E = tl.constexpr(math.log2(math.e))


@device_function
def power_of_2(x):  # type: ignore[no-untyped-def]
    """2^x in float32 with subnormal results. tl.exp2 compiles to ex2.approx.ftz, which flushes them to 0: outside the error bound."""
    if INTERPRETING:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@device_function
def shifted_power(x, shift):  # type: ignore[no-untyped-def]
    return power_of_2((x - shift) * LOG2_E)


@device_function
def scaled_power(x, shift, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """c exp(x - shift), where c cancels in the division by the sum. dtype: of the results. float32: c = 1. 16 bits: c = 2^8, in half the
    instructions, since the flushing exponential (tl.exp2) then loses only what is below 2^-134, which rounds to 0 in 16 bits."""
    if dtype == tl.float32:
        return shifted_power(x, shift)
    return tl.exp2(tl.fma(x - shift, tl.full(x.shape, LOG2_E, tl.float32), tl.full(x.shape, 8.0, tl.float32)))


@device_function
def finite_shift(maximum):  # type: ignore[no-untyped-def]
    """0 for -inf, else the maximum: a part of -inf only would compute -inf - -inf. A row of -inf still gives 0 / 0 = nan, as required."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@device_function
def merged(maximum, total):  # type: ignore[no-untyped-def]
    """The maximum and the sum of a whole, from those of its parts: tensors of one dimension. A part's sum is shifted by its maximum."""
    largest = tl.max(maximum, axis=0)
    return largest, tl.sum(total * shifted_power(maximum, finite_shift(largest)), axis=0)
