"""gelu in Triton, tanh form: reads n, writes n elements, one exponential and one division each.

0.5 (1 + tanh a) = 1 / (1 + e^-2a), so out = x / (1 + 2^z) with z = -2 log2(e) a. Where 2^z overflows, x / inf is 0, which is the limit;
at x = -inf the result is nan, as in the reference (-inf * 0). There is no cancellation. tanh.approx, with an error of 2^-11, is too coarse.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from opwise.backends.protocol import Variant
from opwise.backends.triton_jit.common.elementwise import build_with, plain_specimens, plain_with, specimens_of
from opwise.backends.triton_jit.common.portable import device_function, narrow, widen
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.ops.gelu import CUBIC, SQRT_2_OVER_PI

LINEAR_TERM = tl.constexpr(-2.0 * math.log2(math.e) * SQRT_2_OVER_PI)
CUBIC_TERM = tl.constexpr(-2.0 * math.log2(math.e) * SQRT_2_OVER_PI * CUBIC)
TWICE_SQRT_2_OVER_PI = tl.constexpr(2.0 * SQRT_2_OVER_PI)
CUBIC_FACTOR = tl.constexpr(CUBIC)


@device_function
def gelu(x):  # type: ignore[no-untyped-def]
    return x / (1.0 + tl.exp2(x * (x * x * CUBIC_TERM + LINEAR_TERM)))


@triton.jit
def plain_kernel(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = widen(tl.load(x + at, mask=at < n))
    inner = TWICE_SQRT_2_OVER_PI * (value + CUBIC_FACTOR * value * value * value)
    tl.store(out + at, narrow(value / (1.0 + tl.exp(-inner)), out.dtype.element_ty), mask=at < n)


@triton.jit
def gelu_kernel(x, out, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    if WIDE:  # an index can pass 2^31
        block = block.to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    if (block + 1) * BLOCK <= n:  # no mask: accesses of 16 bytes whatever n is
        value = widen(tl.load(x + at))
        tl.store(out + at, narrow(gelu(value), out.dtype.element_ty))
    else:
        value = widen(tl.load(x + at, mask=at < n))
        tl.store(out + at, narrow(gelu(value), out.dtype.element_ty), mask=at < n)


@triton.jit
def textbook_kernel(x, out, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """tanh a = (e^2a - 1) / (e^2a + 1), as in CS336, lecture 6. inf / inf = nan if e^2a overflows."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = widen(tl.load(x + at, mask=at < n))
    power = tl.exp((value + value * value * value * CUBIC_FACTOR) * TWICE_SQRT_2_OVER_PI)
    result = 0.5 * value * (1.0 + (power - 1.0) / (power + 1.0))
    tl.store(out + at, narrow(result, out.dtype.element_ty), mask=at < n)


BLOCKS = {4: (1024, 8), 2: (1024, 4)}
TEXTBOOK = {4: (1024, 4), 2: (1024, 4)}
VARIANTS = {
    "": Variant(build_with(gelu_kernel, BLOCKS), "x / (1 + 2^z), a block of 1024 elements a program"),
    "plain": Variant(plain_with(plain_kernel), "kernel[grid](...), x / (1 + e^-2a), a masked block of 1024 elements a program"),
    "textbook": Variant(
        build_with(textbook_kernel, TEXTBOOK),
        "tanh as (e^2a - 1) / (e^2a + 1)",
        fault="e^2a overflows: nan above x of about 10; below -3 the sum with 1 cancels",
    ),
}


def specimens(arch: str) -> dict[str, Specimen]:
    textbook = {f"textbook, {name}": found for name, found in specimens_of(textbook_kernel, TEXTBOOK).items()}
    return {**specimens_of(gelu_kernel, BLOCKS), **plain_specimens(plain_kernel), **textbook}
