"""Scratch memory of a launch: a counter that is 0 before and after every launch, and room that may hold anything.

Making and zeroing it costs a call more than all the rest of it, so it is made once and lent again: what a binding leaves behind goes to
the shelf of the stream it was made on, and the next binding made there takes it. It never serves two launches at once:

    two bindings alive          have two scratches
    one after the other         the later one's launch is behind the earlier one's on the same stream
    a launch on another stream  first waits for the stream of the shelf, once; its scratch never goes back to the shelf
    a launch under capture      its graph may be replayed at any time: its scratch never goes back either
    a binding under capture     gets memory of the graph's own, zeroed within the graph
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from opwise.backends.protocol import Launch

COUNTER_BYTES = 16  # at the beginning: what must be 0. A launch leaves it 0; what lies behind it the next one overwrites
LEAST_BYTES = 1024  # sizes are powers of two from here on, so that few shelves are needed
KEPT = 4  # on a shelf: of 1, 2, 4 and 8 KiB together under 64 KiB a stream


class Scratch:
    """One binding's: the memory goes back to its shelf, if it may, when this object dies."""

    __slots__ = ("_home", "_index", "_ordered", "_shelf", "address", "memory")

    def __init__(self, memory: Tensor, index: int, home: int, shelf: list[Tensor] | None) -> None:
        self.memory, self.address = memory, memory.data_ptr()
        self._index, self._home, self._shelf = index, home, shelf
        self._ordered: set[int] = set()

    def meets(self, stream: int) -> None:
        """Must be called with the raw stream of each launch, before it."""
        if stream != self._home or _capturing():
            self._strays(stream)

    def _strays(self, stream: int) -> None:
        """A stream under capture cannot wait for outside work, and need not: whoever begins a capture has waited for what it reads."""
        self._shelf = None
        if stream == self._home or stream in self._ordered or _capturing():
            return
        current = torch.cuda.current_stream(self._index)
        current.wait_stream(torch.cuda.ExternalStream(self._home, device=self._index))  # type: ignore[no-untyped-call]
        self.memory.record_stream(current)  # torch must not give the memory away while a launch there still runs
        self._ordered.add(stream)

    def __del__(self) -> None:
        shelf = self._shelf
        if shelf is not None and len(shelf) < KEPT:
            shelf.append(self.memory)


_shelves: defaultdict[tuple[int, int, int], list[Tensor]] = defaultdict(list)  # device, raw stream, size


def lent(size: int, device: torch.device) -> Scratch:
    """`size` bytes or more for a binding that is made now, on the stream that is current now."""
    size = max(1 << (size - 1).bit_length(), LEAST_BYTES)
    if device.type != "cuda":  # a stand-in, where everything happens at once
        return Scratch(_zeros(size, device), 0, 0, None)
    index: int = torch.cuda.current_device() if device.index is None else device.index
    home: int = torch._C._cuda_getCurrentRawStream(index)
    if _capturing():
        return Scratch(_zeros(size, device), index, home, None)
    shelf = _shelves[index, home, size]
    try:
        memory = shelf.pop()
    except IndexError:
        memory = _zeros(size, device)
    return Scratch(memory, index, home, shelf)


def launched_with(scratch: Scratch, launch: Launch) -> Launch:
    """`launch`, which uses `scratch`, in order with all that used the same memory before."""
    index, stream_of = scratch._index, torch._C._cuda_getCurrentRawStream
    meets = scratch.meets

    def launch_in_order() -> None:
        meets(stream_of(index))
        launch()

    return launch_in_order


def _zeros(size: int, device: torch.device) -> Tensor:
    return torch.zeros(size // 4, dtype=torch.float32, device=device)


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()
