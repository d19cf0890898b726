"""Scratch memory of a launch: a counter that is 0 before and after every launch, then uninitialised bytes.

Allocating and zeroing it would take longer than the rest of a call, so it is pooled. A binding's scratch returns to the free list
("shelf") of the stream it was made on, and the next binding on that stream takes it. Two launches never use it at the same time:

    two live bindings           have two scratches
    one after the other         the launches are ordered, since both are on the same stream
    a launch on another stream  first waits for the shelf's stream, once; its scratch does not return to the shelf
    a launch under capture      its scratch does not return either, because the graph may be replayed at any time
    a binding under capture     gets new memory of the graph, zeroed within the graph
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opwise.backends.calling import AtOnce, Launch

COUNTER_BYTES = 16  # at the beginning: 0 before and after a launch. The next launch overwrites the bytes behind them.
LEAST_BYTES = 1024  # sizes are powers of two from here on, so that there are few shelves
KEPT = 4  # most scratches on a shelf: of 1, 2, 4 and 8 KiB, together under 64 KiB per stream


@dataclass(eq=False, slots=True)
class Memory:
    """Scratch memory, which outlives a binding. shelf: where it returns to, None if nowhere."""

    tensor: Tensor
    address: int
    index: int
    home: int  # the raw stream
    shelf: list[Memory] | None
    zeroed: int = COUNTER_BYTES  # at the beginning: bytes that are 0 between launches


class Scratch:
    """One binding's memory. When this object is deleted, the memory returns to its shelf, if it has one."""

    __slots__ = ("_ordered", "_shelf", "memory")

    def __init__(self, memory: Memory) -> None:
        self.memory, self._shelf = memory, memory.shelf
        self._ordered: set[int] | None = None

    def strays(self, stream: int) -> None:
        """Must be called before a launch on a stream other than memory.home, or under capture. stream: the launch's raw stream.

        A stream under capture cannot wait for work outside the graph. It need not: the caller has waited before it began the capture.
        """
        memory, self._shelf = self.memory, None
        if stream == memory.home or _capturing():
            return
        if self._ordered is None:
            self._ordered = set()
        if stream not in self._ordered:
            current = torch.cuda.current_stream(memory.index)
            current.wait_stream(torch.cuda.ExternalStream(memory.home, device=memory.index))  # type: ignore[no-untyped-call]
            memory.tensor.record_stream(current)  # torch must not reuse it while a launch on that stream runs
            self._ordered.add(stream)

    def __del__(self) -> None:
        shelf = self._shelf
        if shelf is not None and len(shelf) < KEPT:
            shelf.append(self.memory)


_shelves: defaultdict[tuple[int, int, int, str, int], list[Memory]] = defaultdict(list)  # device, size, what is 0, whose, raw stream


def lender(size: int, device: torch.device, zeroed: int = COUNTER_BYTES, of_its_own: str = "") -> Callable[[], Scratch]:
    """A function that returns scratch of at least `size` bytes for a binding, on the stream current at the call.

    zeroed: bytes at the beginning that are 0 before and after every launch. of_its_own: a name; launches with that name find the bytes
    that the last of them left, 0 at first. Scratches that differ in either do not share a shelf.
    """
    size = max(1 << (size - 1).bit_length(), LEAST_BYTES)
    if device.type != "cuda":  # the CPU stand-in: launches are synchronous
        return lambda: Scratch(_made(size, device, 0, 0, None, zeroed))
    index: int = torch.cuda.current_device() if device.index is None else device.index
    stream_of, shelves = torch._C._cuda_getCurrentRawStream, _shelves

    def lend() -> Scratch:
        home = stream_of(index)
        if _capturing():
            return Scratch(_made(size, device, index, home, None, zeroed))
        shelf = shelves[index, size, zeroed, of_its_own, home]
        try:
            return Scratch(shelf.pop())
        except IndexError:
            return Scratch(_made(size, device, index, home, shelf, zeroed))

    return lend


def launched_with(scratch: Scratch, launch: Launch) -> Launch:
    """`launch`, which uses `scratch`, ordered after all earlier launches that used the same memory."""
    index, home, stream_of, capturing = scratch.memory.index, scratch.memory.home, torch._C._cuda_getCurrentRawStream, _capturing

    def launch_in_order() -> None:
        stream = stream_of(index)
        if stream != home or capturing():
            scratch.strays(stream)
        launch()

    return launch_in_order


def _kept_with(scratch: Scratch, launch: Launch) -> Launch:
    """As launched_with, in the CPU stand-in, whose launches are synchronous."""

    def launch_there(keep: object = scratch) -> None:
        launch()

    return launch_there


def bound_with(
    launch_of: Callable[..., Launch], run: Callable[..., None], size: int, device: torch.device, zeroed: int = COUNTER_BYTES
) -> AtOnce:
    """A bind from launch_of(tensors, scratch address), or from launch_of(tensors) if size is 0. `run` has the same arguments and launches
    directly, on the stream that the scratch belongs to or into a graph with memory of its own. zeroed: as for `lender`."""
    if not size:
        return AtOnce(lambda *tensors: launch_of(tensors), lambda *tensors: run(tensors))
    lend = lender(size, device, zeroed)

    def run_with_scratch(*tensors: Tensor) -> None:
        scratch = lend()
        run(tensors, scratch.memory.address)

    return AtOnce(_binding(launch_of, lend, device), run_with_scratch)


def called_with(
    launch_of: Callable[..., Launch],
    call_of: Callable[[Tensor], Callable[..., Tensor]],
    size: int,
    device: torch.device,
    zeroed: int = COUNTER_BYTES,
    of_its_own: str = "",
) -> AtOnce:
    """As `bound_with`, for a backend whose calls also allocate the output: call_of(sample output) returns a function of the inputs, with
    the scratch address before them unless size is 0."""
    if not size:
        return AtOnce(lambda *tensors: launch_of(tensors), call_of=call_of)
    lend = lender(size, device, zeroed, of_its_own)

    def call_with_scratch_of(out: Tensor) -> Callable[..., Tensor]:
        call = call_of(out)

        def call_with_scratch(*inputs: Tensor) -> Tensor:
            scratch = lend()
            return call(scratch.memory.address, *inputs)

        return call_with_scratch

    return AtOnce(_binding(launch_of, lend, device), call_of=call_with_scratch_of)


def _binding(launch_of: Callable[..., Launch], lend: Callable[[], Scratch], device: torch.device) -> Callable[..., Launch]:
    launched = launched_with if device.type == "cuda" else _kept_with

    def bind(*tensors: Tensor) -> Launch:
        scratch = lend()
        return launched(scratch, launch_of(tensors, scratch.memory.address))

    return bind


def _made(size: int, device: torch.device, index: int, home: int, shelf: list[Memory] | None, zeroed: int) -> Memory:
    zeros = torch.zeros(size // 4, dtype=torch.float32, device=device)
    return Memory(zeros, zeros.data_ptr(), index, home, shelf, zeroed)


_capturing = torch._C._cuda_isCurrentStreamCapturing
