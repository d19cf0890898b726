"""gelu, tanh form, as x sigmoid(2a) = x / (1 + e^-2a): no tanh, no cancellation, no overflow to nan.

With a = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh a) is sigmoid(2a) exactly. For large negative x, e^-2a is inf and the
quotient 0; for -inf it is -inf * 0 = nan, as in the reference. Reads x, writes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from opwise.backends.numba_cuda import elementwise, portable, ptx
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.protocol import Variant
from opwise.ops.gelu import CUBIC, SQRT_2_OVER_PI

# float32 constants: a Python float would turn the arithmetic into double precision.
LINEAR = np.float32(-2.0 * SQRT_2_OVER_PI)
CUBED = np.float32(-2.0 * SQRT_2_OVER_PI * CUBIC)
LINEAR_2 = np.float32(-2.0 * SQRT_2_OVER_PI * math.log2(math.e))  # for 2^z in place of e^z
CUBED_2 = np.float32(-2.0 * SQRT_2_OVER_PI * CUBIC * math.log2(math.e))
ONE = np.float32(1.0)


@cache
def fast_kernel(dtype: str, wide: bool) -> Kernel:
    @inlined
    def gelu(x: Any) -> Any:
        z = x * (LINEAR_2 + CUBED_2 * (x * x))
        return x * ptx.reciprocal(ONE + ptx.exp2(z))

    return elementwise.fast_kernel(dtype, wide, gelu)


@inlined
def gelu_portable(x: Any) -> Any:
    return x / (ONE + portable.exp(x * (LINEAR + CUBED * (x * x))))


@cache
def portable_kernel(dtype: str) -> Kernel:
    return elementwise.portable_kernel(dtype, gelu_portable)


def kernels() -> Mapping[str, Kernel]:
    found = {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w) for d in portable.DTYPES for w in (True, False)}
    return found | {f"{d} portable": portable_kernel(d) for d in portable.DTYPES}


build_portable = elementwise.plain(portable_kernel)

VARIANTS = {
    "": Variant(elementwise.fast(fast_kernel, build_portable), "x sigmoid(2a) by ex2 and rcp, 16 bytes a thread"),
    "portable": Variant(build_portable, "x / (1 + exp(-2a)) in a grid-stride loop, one element an access"),
}
