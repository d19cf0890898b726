"""From a recipe to a launch. The slow parts of RawKernel's call are done in advance: the loaded function is kept (RawKernel looks it up by
device each time), arguments become C values at bind, and the stream is an argument, so that CuPy's current stream is neither read nor
set. A call, which binds nothing, uses rooms.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.backends import scratch
from opwise.backends.cuda_src.common.tensor_maps import mapped
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.cupy_raw.rooms import caller
from opwise.backends.protocol import Bind, Build, Launch


class Stream:
    """A stream as a CuPy function takes it: an object with `ptr`."""

    __slots__ = ("ptr",)

    def __init__(self, raw: int) -> None:
        self.ptr = raw


class _Streams(dict[int, Stream]):
    def __missing__(self, raw: int) -> Stream:
        stream = self[raw] = Stream(raw)
        return stream


STREAMS = _Streams()  # by raw stream; torch has 32 per device and priority, and never frees one


def built(recipe: Recipe) -> Build:
    def build(*tensors: Tensor) -> Bind:
        plan = recipe.plan(*tensors)
        device, address = tensors[-1].device, Tensor.data_ptr
        index, stream_of, run, argument, enqueue, handle = _on_cpu(plan) if device.type == "cpu" else _on_gpu(plan, device)
        grid, block, shared, together, streams = plan.grid, plan.block, plan.shared_bytes, plan.cooperative, STREAMS
        lengths = *recipe.sizes(*tensors), *plan.shares
        sizes = tuple(map(argument, lengths))

        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            arguments = (*map(argument, map(address, tensors)), *sizes, *map(argument, more))

            def launch(keep: object = tensors) -> None:
                run(grid, block, arguments, shared, streams[stream_of(index)], together)

            return launch

        def run_with(stream: int, *values: int) -> None:
            run(grid, block, tuple(map(argument, values)), shared, streams[stream], together)

        if not plan.matrices:
            call_of = caller(enqueue, (handle, *grid, *block, shared), lengths, stream_of, index, run_with, plan.scratch_bytes > 0)
            return scratch.called_with(launch_of, call_of, plan.scratch_bytes, device, plan.zeroed_bytes, plan.of_its_own)
        maps_of = _maps(plan, tensors)

        def launch_with_maps(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            places = tuple(map(address, tensors))
            maps, memory = maps_of(places)
            arguments = (*maps, *map(argument, places[len(maps) :]), *sizes, *map(argument, more))

            def launch(keep: object = (tensors, memory)) -> None:
                run(grid, block, arguments, shared, streams[stream_of(index)], together)

            return launch

        def run_with_maps(*given: Any) -> None:
            launch_with_maps(*given)()

        return scratch.bound_with(launch_with_maps, run_with_maps, plan.scratch_bytes, device, plan.zeroed_bytes)

    return build


def _maps(plan: Plan, tensors: tuple[Tensor, ...]) -> Callable[[tuple[int, ...]], tuple[tuple[Any, ...], object]]:
    """The function from the tensors' addresses to (the arguments that are tensor maps, an object that must live as long as they)."""
    from cupy.cuda.function import CPointer

    count = len(plan.matrices)
    maps_of = mapped(plan.matrices, [x.data_ptr() for x in tensors[:count]])

    def maps(addresses: tuple[int, ...]) -> tuple[tuple[Any, ...], object]:
        places, memory = maps_of(addresses[:count])
        return tuple(map(CPointer, places)), memory  # an argument at that address, of any size

    return maps


# Device index; its current raw stream (a function of the index); the kernel; conversion of an argument to a C value; driver.launchKernel or
# a function with its parameters; the kernel's handle for it.
Place = tuple[int, Callable[[int], int], Any, Any, Any, int]


def _on_gpu(plan: Plan, device: torch.device) -> Place:
    from cupy.cuda import driver

    from opwise.backends.cupy_raw.function import argument, loaded

    index: int = torch.cuda.current_device() if device.index is None else device.index
    kernel = loaded(plan, index)
    enqueue = _launch_together if plan.cooperative else driver.launchKernel
    return index, torch._C._cuda_getCurrentRawStream, kernel, argument, enqueue, kernel.ptr


def _launch_together(*given: int) -> None:
    """driver.launchCooperativeKernel, with launchKernel's parameters, of which it lacks the last."""
    from cupy.cuda import driver

    driver.launchCooperativeKernel(*given[:-1])


def _on_cpu(plan: Plan) -> Place:
    from opwise.backends.cuda_on_cpu import suite

    function = suite.Function(plan.kernel)
    return 0, suite.no_stream, function, ctypes.c_int64, function.enqueue, 0
