"""A call's launch, at less cost than a CuPy function's own call: by the driver function in which that ends, with parameters written into
memory that was there before. A CuPy function takes each argument as an object of its own and asks for the device's context each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

INVALID_CONTEXT = 201  # of CUresult


class Room:
    """Parameters of 8 bytes each in memory of their own, and where each of them lies: at `at`. The driver copies them at a launch."""

    __slots__ = ("_places", "at", "values")

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_int64 * count)()
        start = ctypes.addressof(self.values)
        self._places = (ctypes.c_int64 * count)(*range(start, start + 8 * count, 8))
        self.at = ctypes.addressof(self._places)


def runner(enqueue: Any, configuration: tuple[int, ...], count: int, instead: Callable[..., None]) -> Callable[..., None]:
    """(raw stream, `count` int64 values) -> `enqueue(*configuration, stream, parameters, 0)`, as CuPy's driver.launchKernel takes them.

    A thread that never used the GPU has no context, which the driver says by an error: then `instead` launches, with the same arguments.
    Rooms are used again, each by one launch at a time, whatever thread it comes from.
    """
    rooms: list[Room] = []
    pack = Struct(f"{count}q").pack_into

    def run(stream: int, *values: int) -> None:
        try:
            room = rooms.pop()
        except IndexError:
            room = Room(count)
        pack(room.values, 0, *values)
        try:
            enqueue(*configuration, stream, room.at, 0)
        except RuntimeError as error:
            if getattr(error, "status", None) != INVALID_CONTEXT:
                raise
            instead(stream, *values)
        rooms.append(room)

    return run
