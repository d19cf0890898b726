"""From a recipe to a launch. What costs time in RawKernel's own call is done beforehand: the loaded function is kept (RawKernel looks it up
by device each time), arguments are made C values at bind, and the stream goes along as an argument, so that CuPy's current
stream, which belongs to the user, is neither read nor set.
"""

from __future__ import annotations

from typing import Any

import cupy
import torch
from cupy.cuda import driver, function
from torch import Tensor

from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.cuda_src.sources import unit_of
from opwise.backends.cupy_raw.module import module
from opwise.backends.cupy_raw.tensor_map import mapped
from opwise.backends.protocol import Bind, Build, Launch
from opwise.backends.scratch import bound_with

PORTABLE_CLUSTER = 8  # blocks; more must be allowed, on the function
REQUIRED_CLUSTER_WIDTH, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 11, 14  # of CUfunction_attribute
STATIC_SHARED = 48 * 1024  # more must be asked for, on the kernel

# An 8-byte argument that CuPy passes on as it is; a Python int would be converted at every launch.
argument: Any = getattr(function, "CIntptr", int)


class Stream:
    """All that a launch asks of a stream: its address."""

    __slots__ = ("ptr",)

    def __init__(self, raw: int) -> None:
        self.ptr = raw


class _Streams(dict[int, Stream]):
    def __missing__(self, raw: int) -> Stream:
        stream = self[raw] = Stream(raw)
        return stream


STREAMS = _Streams()  # one a raw stream; torch has 32 a device and priority, and never frees one


def built(recipe: Recipe) -> Build:
    def build(*tensors: Tensor) -> Bind:
        plan = recipe.plan(*tensors)
        device = tensors[-1].device
        index: int = torch.cuda.current_device() if device.index is None else device.index
        major, minor = torch.cuda.get_device_capability(index)
        with cupy.cuda.Device(index):
            kernel = module(unit_of(plan.kernel), f"sm_{major}{minor}").get_function(plan.kernel)
            if plan.shared_bytes > STATIC_SHARED:
                kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
            run = kernel.kernel
            if driver.funcGetAttribute(REQUIRED_CLUSTER_WIDTH, run.ptr) > PORTABLE_CLUSTER:
                driver.funcSetAttribute(run.ptr, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        grid, block, shared, arguments_of = plan.grid, plan.block, plan.shared_bytes, recipe.arguments
        stream_of, streams = torch._C._cuda_getCurrentRawStream, STREAMS

        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            arguments = tuple(argument(value) for value in (*arguments_of(*tensors), *more))

            def launch(keep: object = tensors) -> None:
                run(grid, block, arguments, shared, streams[stream_of(index)])

            return launch

        def launch_with_maps(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            values = (*arguments_of(*tensors), *more)
            maps, memory = maps_of(values[:map_count])
            arguments = (*maps, *(argument(value) for value in values[map_count:]))

            def launch(keep: object = (tensors, memory)) -> None:
                run(grid, block, arguments, shared, streams[stream_of(index)])

            return launch

        if not plan.matrices:
            return bound_with(launch_of, plan.scratch_bytes, device)
        map_count = len(plan.matrices)
        maps_of = mapped(plan.matrices, arguments_of(*tensors)[:map_count])
        return bound_with(launch_with_maps, plan.scratch_bytes, device)

    return build
