"""A plan's kernel, loaded on a GPU, as a CuPy function."""

from __future__ import annotations

from typing import Any

import cupy
import torch
from cupy.cuda import driver, function

from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cupy_raw.module import module

PORTABLE_CLUSTER = 8  # blocks; larger clusters need a function attribute
MAX_DYNAMIC_SHARED_SIZE_BYTES, REQUIRED_CLUSTER_WIDTH, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 11, 14  # of CUfunction_attribute

# An 8-byte argument that CuPy passes unchanged; a Python int would be converted at every launch.
argument: Any = getattr(function, "CIntptr", int)


def loaded(plan: Plan, index: int) -> Any:
    """The plan's kernel, loaded on GPU `index`, with its dynamic shared memory and cluster size allowed."""
    major, minor = torch.cuda.get_device_capability(index)
    with cupy.cuda.Device(index):
        run = module(plan.kernel, f"sm_{major}{minor}").get_function(plan.kernel).kernel
        # Never lowered: a launch of another plan of this kernel may need the larger size.
        if plan.shared_bytes > driver.funcGetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, run.ptr):
            driver.funcSetAttribute(run.ptr, MAX_DYNAMIC_SHARED_SIZE_BYTES, plan.shared_bytes)
        if driver.funcGetAttribute(REQUIRED_CLUSTER_WIDTH, run.ptr) > PORTABLE_CLUSTER:
            driver.funcSetAttribute(run.ptr, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    return run
