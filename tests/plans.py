"""What the matmul plan of CUDA C++ takes for a product, and how that compares with what was timed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from opwise.backends.cuda_src.matmul import plan

Product = tuple[str, tuple[int, int, int]]  # a key of kernels.KERNELS; m, k, n
H200 = {"sm_count": 132, "capability": (9, 0)}


def kernel_for(kind: str, m: int, k: int, n: int, alignment: int = 16, **changes: object) -> str:
    """kind: a key of kernels.KERNELS. changes: to what the plan is told of an H200."""
    dtype = "float32" if kind == "tfloat32" else kind
    return plan(m, k, n, dtype, kind == "tfloat32", alignment, **{**H200, **changes}).kernel  # type: ignore[arg-type]


def slower(times: Mapping[str, float], taken: str) -> float:
    """So many times the quickest of ours that was timed."""
    return times[taken] / min(us for name, us in times.items() if name != "cuBLAS")


def taken(product: Product, family: str) -> str:
    """What a table knows the plan's choice by: what follows `family` in the kernel's name, and "other" where that does not match."""
    kind, shape = product
    kernel = kernel_for(kind, *shape)
    found = re.match(family, kernel)
    return kernel[found.end() :] if found else "other"


def lost(measured: Mapping[Product, Mapping[str, float]], product: Product, family: str) -> float:
    """So many times the quickest that was timed of the product, the plan's choice."""
    return slower(measured[product], taken(product, family))
