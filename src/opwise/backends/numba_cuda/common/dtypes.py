"""Names of dtypes, and float32 numbers: a Python float in a kernel would make its arithmetic double precision."""

from __future__ import annotations

import numpy as np
from torch import Tensor

DTYPES = ("float32", "float16", "bfloat16")
f32 = np.float32


def name_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
