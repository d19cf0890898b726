"""A faster launch for calls than a CuPy function's: the driver function is called directly, with parameters in reused memory ("rooms").
A CuPy function takes each argument as an object and looks up the device's context each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from opwise.backends.calling import without_memory

INVALID_CONTEXT = 201  # of CUresult


class Room:
    """Memory for a launch's parameters, 8 bytes each; the driver copies them at the launch. at: address of the array of their addresses."""

    __slots__ = ("_places", "at", "values")

    def __init__(self, *values: int) -> None:
        count = len(values)
        self.values = (ctypes.c_int64 * count)(*values)
        start = ctypes.addressof(self.values)
        self._places = (ctypes.c_int64 * count)(*range(start, start + 8 * count, 8))
        self.at = ctypes.addressof(self._places)


def caller(
    enqueue: Any,
    configuration: tuple[int, ...],
    lengths: tuple[int, ...],
    stream_of: Callable[[int], int],
    index: int,
    instead: Callable[..., None],
    with_scratch: bool = False,
) -> Callable[[Tensor], Callable[..., Tensor]]:
    """The `AtOnce.call_of` of a kernel: call_of(sample output)(one or two inputs) allocates the output, launches and returns it.

    A launch is `enqueue(*configuration, raw stream, parameters, 0)`, with the parameters of CuPy's driver.launchKernel. The kernel's
    parameters are the addresses of inputs and output, `lengths` and, with_scratch, the address of scratch, which the call takes before the
    inputs. The stream is `stream_of(index)`, index being the GPU's.

    A thread that has not used the GPU has no context, and the driver returns an error: then `instead(raw stream, *parameters)` launches.
    Rooms are reused, each by one launch at a time, from any thread.
    """
    empty_like, address, one, two = torch.empty_like, Tensor.data_ptr, Struct("2q").pack_into, Struct("3q").pack_into

    def call_of(out: Tensor) -> Callable[..., Tensor]:
        like, rooms = without_memory(out), list[Room]()

        # Each name lookup and each * costs 0.1 us per call: hence no loop over the inputs.
        def call(x: Tensor, other: Tensor | None = None, scratch: int | None = None) -> Tensor:
            out = empty_like(like)
            try:
                room = rooms.pop()
            except IndexError:
                room = Room(*(0,) * (2 if other is None else 3), *lengths, *(0,) * with_scratch)
            if other is None:
                one(room.values, 0, address(x), address(out))
            else:
                two(room.values, 0, address(x), address(other), address(out))
            if scratch is not None:
                room.values[-1] = scratch
            stream = stream_of(index)
            try:
                enqueue(*configuration, stream, room.at, 0)
            except RuntimeError as error:
                if getattr(error, "status", None) != INVALID_CONTEXT:
                    raise
                instead(stream, *room.values)
            rooms.append(room)
            return out

        def call_with_scratch(scratch: int, x: Tensor, other: Tensor | None = None) -> Tensor:
            return call(x, other, scratch)

        return call_with_scratch if with_scratch else call

    return call_of
