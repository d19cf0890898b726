"""matmul in CUDA C++, compiled by NVRTC. The kernels are in cuda_src/matmul/."""

from __future__ import annotations

from opwise.backends.cuda_src.matmul import invariant
from opwise.backends.cuda_src.recipes import variants
from opwise.backends.cupy_raw import plain
from opwise.backends.cupy_raw.launch import built

VARIANTS = {**variants("matmul", built), "invariant": invariant.variant(built), "plain": plain.variant("matmul")}
