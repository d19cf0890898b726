"""From a recipe to a launch. What costs time in RawKernel's own call is done beforehand: the loaded function is kept (RawKernel looks it up
by device each time), arguments are made C values at bind, and the stream goes along as an argument, so that CuPy's current
stream, which belongs to the user, is neither read nor set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.backends import scratch
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.protocol import Bind, Build, Launch


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
        index, stream_of, run, argument, bound_with = _on_cpu(plan) if device.type == "cpu" else _on_gpu(plan, device)
        grid, block, shared, arguments_of = plan.grid, plan.block, plan.shared_bytes, recipe.arguments
        streams = STREAMS

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
        from opwise.backends.cupy_raw.tensor_map import mapped

        map_count = len(plan.matrices)
        maps_of = mapped(plan.matrices, arguments_of(*tensors)[:map_count])
        return bound_with(launch_with_maps, plan.scratch_bytes, device)

    return build


# Device index, its current stream, the kernel, what makes an argument a C value, and what lends scratch.
Place = tuple[int, Callable[[int], int], Any, Any, Callable[..., Bind]]


def _on_gpu(plan: Plan, device: torch.device) -> Place:
    from opwise.backends.cupy_raw.function import argument, loaded

    index: int = torch.cuda.current_device() if device.index is None else device.index
    return index, torch._C._cuda_getCurrentRawStream, loaded(plan, index), argument, scratch.bound_with


def _on_cpu(plan: Plan) -> Place:
    from opwise.backends.cuda_on_cpu import suite

    return 0, suite.no_stream, suite.Function(plan.kernel), ctypes.c_int64, suite.bound_with
