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

from opwise.backends.numba_cuda.common import elementwise, ptx
from opwise.backends.numba_cuda.common.compiler import cuda, float32, types
from opwise.backends.numba_cuda.common.dtypes import DTYPES
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.plain import THREADS, blocks_of, jit, plain
from opwise.backends.protocol import Variant
from opwise.ops.gelu import CUBIC, SQRT_2_OVER_PI

# float32 constants: a Python float would turn the arithmetic into double precision.
LINEAR = np.float32(-2.0 * SQRT_2_OVER_PI)
CUBED = np.float32(-2.0 * SQRT_2_OVER_PI * CUBIC)
LINEAR_2 = np.float32(-2.0 * SQRT_2_OVER_PI * math.log2(math.e))  # for 2^z in place of e^z
CUBED_2 = np.float32(-2.0 * SQRT_2_OVER_PI * CUBIC * math.log2(math.e))
ONE = np.float32(1.0)


@jit
def gelu(x: Any, y: Any) -> None:
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value = float32(x[i])
        y[i] = value / (ONE + math.exp(value * (LINEAR + CUBED * (value * value))))


def call(x: Any, y: Any, stream: Any) -> None:
    gelu[blocks_of(x), THREADS, stream](x, y)


@cache
def fast_kernel(dtype: str, wide: bool) -> Kernel:
    @inlined
    def gelu(x: Any) -> Any:
        z = x * (LINEAR_2 + CUBED_2 * (x * x))
        return x * ptx.reciprocal(ONE + ptx.exp2(z))

    return elementwise.fast_kernel(dtype, wide, gelu)


def kernels() -> Mapping[str, Kernel]:
    return {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w) for d in DTYPES for w in (True, False)}


PLAIN = {"": (gelu, lambda t: types.void(t[::1], t[::1]))}
build_plain = plain(call, flat=True)

VARIANTS = {
    "": Variant(elementwise.fast(fast_kernel), "x sigmoid(2a) by ex2 and rcp, 16 bytes a thread"),
    "plain": Variant(build_plain, "x / (1 + exp(-2a)) in a grid-stride loop over device arrays"),
}
