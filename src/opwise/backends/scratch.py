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
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opwise.backends.calling import AtOnce, Launch

COUNTER_BYTES = 16  # at the beginning: what must be 0. A launch leaves it 0; what lies behind it the next one overwrites
LEAST_BYTES = 1024  # sizes are powers of two from here on, so that few shelves are needed
KEPT = 4  # on a shelf: of 1, 2, 4 and 8 KiB together under 64 KiB a stream, and 256 KiB where long rows are shared


@dataclass(eq=False, slots=True)
class Memory:
    """What outlives a binding. `shelf` is where it goes back to; None: nowhere."""

    tensor: Tensor
    address: int
    index: int
    home: int  # the raw stream
    shelf: list[Memory] | None
    zeroed: int = COUNTER_BYTES  # at the beginning: bytes that are 0 between launches


class Scratch:
    """One binding's memory: it goes back to its shelf, if it may, when this object dies."""

    __slots__ = ("_ordered", "_shelf", "memory")

    def __init__(self, memory: Memory) -> None:
        self.memory, self._shelf = memory, memory.shelf
        self._ordered: set[int] | None = None

    def strays(self, stream: int) -> None:
        """Must be called before a launch on another stream than memory.home, or under capture, with the launch's raw stream.

        A stream under capture cannot wait for outside work, and need not: whoever begins a capture has waited for what it reads.
        """
        memory, self._shelf = self.memory, None
        if stream == memory.home or _capturing():
            return
        if self._ordered is None:
            self._ordered = set()
        if stream not in self._ordered:
            current = torch.cuda.current_stream(memory.index)
            current.wait_stream(torch.cuda.ExternalStream(memory.home, device=memory.index))  # type: ignore[no-untyped-call]
            memory.tensor.record_stream(current)  # torch must not give it away while a launch there still runs
            self._ordered.add(stream)

    def __del__(self) -> None:
        shelf = self._shelf
        if shelf is not None and len(shelf) < KEPT:
            shelf.append(self.memory)


_shelves: defaultdict[tuple[int, int, int, str, int], list[Memory]] = defaultdict(list)  # device, size, what is 0, whose, raw stream


def lender(size: int, device: torch.device, zeroed: int = COUNTER_BYTES, of_its_own: str = "") -> Callable[[], Scratch]:
    """What gives each binding its scratch, of `size` bytes or more, on the stream that is current then.

    zeroed: how many bytes at its beginning are 0 before and after every launch. of_its_own: a name for launches that find there what the
    last of that name left, 0 at the first. Those who differ in either do not share a shelf.
    """
    size = max(1 << (size - 1).bit_length(), LEAST_BYTES)
    if device.type != "cuda":  # a stand-in, where everything happens at once
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
    """`launch`, which uses `scratch`, in order with all that used the same memory before."""
    index, home, stream_of, capturing = scratch.memory.index, scratch.memory.home, torch._C._cuda_getCurrentRawStream, _capturing

    def launch_in_order() -> None:
        stream = stream_of(index)
        if stream != home or capturing():
            scratch.strays(stream)
        launch()

    return launch_in_order


def _kept_with(scratch: Scratch, launch: Launch) -> Launch:
    """In a stand-in, where launches come after one another and no stream needs to wait for another."""

    def launch_there(keep: object = scratch) -> None:
        launch()

    return launch_there


def bound_with(
    launch_of: Callable[..., Launch], run: Callable[..., None], size: int, device: torch.device, zeroed: int = COUNTER_BYTES
) -> AtOnce:
    """The bind of `launch_of(tensors, address of scratch)`, or of `launch_of(tensors)` where no scratch is asked for; and `run` with the
    same arguments, which launches at once: on the stream that lends, or into a graph that has memory of its own. zeroed: as of `lender`."""
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
    """As `bound_with`, of a backend whose `call_of(output)` gives what allocates the output, too: a function of the inputs, before which
    it takes the address of scratch if there is any."""
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
