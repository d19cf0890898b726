"""What all softmax kernels do: powers, shifts that stay finite, and the maxima and sums of parts as those of the whole."""

from __future__ import annotations

import math

import triton.language as tl

from opwise.backends.triton_jit.common.portable import INTERPRETING, device_function

LOG2_E = tl.constexpr(math.log2(math.e))


@device_function
def power_of_2(x):  # type: ignore[no-untyped-def]
    """2^x, down to the least subnormal: tl.exp2 compiles to ex2.approx.ftz, whose 0 below 2^-126 is off by more than the bound."""
    if INTERPRETING:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@device_function
def shifted_power(x, shift):  # type: ignore[no-untyped-def]
    return power_of_2((x - shift) * LOG2_E)


@device_function
def scaled_power(x, shift, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """A multiple of exp(x - shift), which cancels in the quotient by the sum. For results in 16 bits 2^8 times it, in half the
    instructions: the least that they can be is then above the 2^-126 below which the fast exponential gives 0."""
    if dtype == tl.float32:
        return shifted_power(x, shift)
    return tl.exp2(tl.fma(x - shift, tl.full(x.shape, LOG2_E, tl.float32), tl.full(x.shape, 8.0, tl.float32)))


@device_function
def finite_shift(maximum):  # type: ignore[no-untyped-def]
    """A lane or a part that saw nothing but -inf must not compute -inf - -inf; a whole row of them becomes 0 / 0 = nan, as it should."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@device_function
def merged(maximum, total):  # type: ignore[no-untyped-def]
    """All lanes' maxima and sums as one."""
    largest = tl.max(maximum, axis=0)
    return largest, tl.sum(total * shifted_power(maximum, finite_shift(largest)), axis=0)
