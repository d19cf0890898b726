"""A call's launch, at less cost than a CuPy function's own call: by the driver function in which that ends, with parameters written into
memory that was there before. A CuPy function takes each argument as an object of its own and asks for the device's context each time.
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
    """Parameters of 8 bytes each in memory of their own, and where each of them lies: at `at`. The driver copies them at a launch."""

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
    """A sample of the output -> what allocates one like it for one or two inputs, launches, and returns it, as `AtOnce.call_of`.

    A launch is `enqueue(*configuration, raw stream, parameters, 0)`, as CuPy's driver.launchKernel takes them. The parameters are the
    addresses of inputs and output, `lengths`, and the address of scratch, which the call then takes before the inputs. The stream is
    `stream_of(index of the GPU)`.

    A thread that never used the GPU has no context, which the driver says by an error: then `instead(raw stream, *parameters)` launches.
    Rooms are used again, each by one launch at a time, whatever thread it comes from.
    """
    empty_like, address, one, two = torch.empty_like, Tensor.data_ptr, Struct("2q").pack_into, Struct("3q").pack_into

    def call_of(out: Tensor) -> Callable[..., Tensor]:
        like, rooms = without_memory(out), list[Room]()

        # Each name and each star costs a call 0.1 us, which adds up: hence no loop over the inputs.
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
