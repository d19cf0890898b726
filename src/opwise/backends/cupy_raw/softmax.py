"""softmax in CUDA C++, compiled by NVRTC. The kernels are in cuda_src/softmax/."""

from __future__ import annotations

from opwise.backends.cuda_src.recipes import variants
from opwise.backends.cupy_raw import plain
from opwise.backends.cupy_raw.launch import built

VARIANTS = {**variants("softmax", built), "plain": plain.variant("softmax")}
