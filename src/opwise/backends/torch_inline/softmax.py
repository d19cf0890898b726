"""softmax in CUDA C++, compiled by nvcc. The kernels are in cuda_src/softmax/."""

from __future__ import annotations

from opwise.backends.cuda_src.recipes import variants
from opwise.backends.torch_inline import plain
from opwise.backends.torch_inline.launch import built

VARIANTS = {**variants("softmax", built), "plain": plain.variant("softmax")}
