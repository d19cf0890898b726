"""gelu in cuTile, tanh form: reads n, writes n elements, one exponential and one division each.

0.5 (1 + tanh a) = 1 / (1 + e^-2a), so out = x / (1 + 2^z) with z = -2 log2(e) a. Where 2^z overflows, x / inf is the 0 that the limit
asks for; at x = -inf it is nan, as the reference's -inf * 0 is. Nothing cancels.
"""

from __future__ import annotations

import math
from functools import partial

import cuda.tile as ct
from opwise.ops.gelu import CUBIC, SQRT_2_OVER_PI

from opwise_cutile import elementwise

LINEAR_TERM = -2.0 * math.log2(math.e) * SQRT_2_OVER_PI
CUBIC_TERM = LINEAR_TERM * CUBIC


def gelu(x):
    return x / (1.0 + ct.exp2(x * (x * x * CUBIC_TERM + LINEAR_TERM)))


@ct.kernel
def gelu_kernel(x, out, TILE: ct.Constant[int]):
    tile = ct.bid(0)
    whole = ct.assume_divisible_by(x.shape[0] // TILE * TILE, TILE)  # so far no bound cuts an access of 16 bytes, whatever n is
    if tile < whole // TILE:
        value = ct.load(x.slice(0, 0, whole), (tile,), (TILE,), check_bounds=False).astype(ct.float32)
        ct.store(out.slice(0, 0, whole), (tile,), gelu(value).astype(out.dtype), check_bounds=False)
    else:
        value = ct.load(x, (tile,), (TILE,)).astype(ct.float32)
        ct.store(out, (tile,), gelu(value).astype(out.dtype))


VARIANTS = elementwise.variants("gelu", gelu_kernel)
specimens = partial(elementwise.specimens, "gelu", gelu_kernel)
