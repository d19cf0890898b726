"""Names of dtypes, and float32 numbers: a Python float in a kernel would make its arithmetic double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from opwise.backends.numba_cuda.common.compiler import SIMULATED

DTYPES = ("float32", "float16", "bfloat16")
f32 = np.float32
# Of a float32, in float32. In the simulator math.exp would answer in double precision, and raise where the result is inf.
exp: Any = np.exp if SIMULATED else math.exp


def name_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
