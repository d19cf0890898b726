"""A GPU's threads as fibres: what Numba's simulator lacks (warp shuffles, addresses, inline PTX) for the kernels that a GPU runs.

The simulator runs a CUDA thread as a Python thread and knows barriers alone. Here a thread is a greenlet, which gives way where CUDA makes
it wait: at a barrier of the block, or where a warp acts as one. All runs in one system thread and in a fixed order, 128 threads cost a
millisecond. `Machine` stands in for the module `cuda` in the kernel's own module; numba_fibres.py has the instructions.

Stricter than a GPU: an access outside of the tensors given, or off its alignment, raises, and so does a warp's shuffle that not all 32
lanes reach. Blind to races: a thread runs until it waits, so that a missing barrier shows only where the fixed order is the wrong one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet
from torch import Tensor

SHARED_BASE = 1024  # the first address of dynamic shared memory: not 0, so that a forgotten base shows
NAN_BYTE = 0xFF  # uninitialised memory reads as nan
Collective = Callable[[list[Any]], list[Any]]  # what the 32 lanes bring, lane by lane -> what each takes away


class Fault(RuntimeError):
    """What a GPU would answer with an illegal access, a hang or nonsense."""


def dtype_of(kind: Any) -> np.dtype[Any]:
    return np.dtype(str(kind))  # Numba's types are called as NumPy's


def shared_bytes(memory: np.ndarray[Any, Any], address: Any, size: int, alignment: int = 0) -> np.ndarray[Any, Any]:
    """Of a block's dynamic shared memory. Raises Fault outside of it, and off `alignment`, which is `size` unless it is given."""
    at = int(address) - SHARED_BASE
    if at % (alignment or size) or at < 0 or at + size > memory.size:
        raise Fault(f"{size} bytes at {at} of {memory.size} of dynamic shared memory")
    return memory[at : at + size]


class Memory:
    """The tensors that a kernel may touch, by address."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._spans = [(x.data_ptr(), x.numel() * x.element_size(), as_bytes(x)) for x in tensors]

    def at(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """The bytes there. Raises Fault outside of every tensor, and where `size` does not divide the address."""
        address = int(address)
        if address % size:
            raise Fault(f"misaligned: {size} bytes at an address that is {address % size} more than a multiple of it")
        for begin, length, data in self._spans:
            if begin <= address and address + size <= begin + length:
                return data[address - begin : address - begin + size]
        near = min((address - begin for begin, _, _ in self._spans), key=abs)
        raise Fault(f"{size} bytes at {near} of a tensor, outside of all that was given")


def as_bytes(x: Tensor) -> np.ndarray[Any, Any]:
    """As they lie in memory: of a transposed view, the matrix's."""
    import torch

    return (x if x.is_contiguous() else x.t()).detach().reshape(-1).view(torch.uint8).numpy()


class Machine:
    """One launch: what a kernel sees as `cuda`. Threads of a block are run in turns, blocks one after the other."""

    def __init__(self, grid: tuple[int, int], threads: int, dynamic_shared: int, memory: Memory) -> None:
        self.gridDim, self.blockDim = SimpleNamespace(x=grid[0], y=grid[1]), SimpleNamespace(x=threads, y=1)
        self.memory, self.dynamic_bytes = memory, dynamic_shared
        self.local = SimpleNamespace(array=_uninitialised)
        self.shared = SimpleNamespace(array=self._shared)

    @property
    def threadIdx(self) -> Any:  # noqa: N802  CUDA's name
        return SimpleNamespace(x=getcurrent().thread)

    @property
    def blockIdx(self) -> Any:  # noqa: N802
        return self._block

    def syncthreads(self) -> None:
        self._hub.switch("barrier")

    def shfl_xor_sync(self, mask: int, value: Any, distance: int) -> Any:
        if mask != 0xFFFFFFFF:
            raise Fault(f"a shuffle of lanes {mask:#x}: all 32 are taken")
        return self.together(f"shuffle {distance}", value, lambda values: [values[lane ^ distance] for lane in range(32)])

    def together(self, what: str, brings: Any, act: Collective) -> Any:
        """Gives way until all 32 lanes of the warp have come to `what`; the lane's share of what `act` makes of what they bring."""
        return self._hub.switch((what, brings, act))

    def run(self, kernel: Callable[..., None], arguments: tuple[int, ...]) -> None:
        self._hub = getcurrent()
        with np.errstate(all="ignore"):
            for y in range(self.gridDim.y):
                for x in range(self.gridDim.x):
                    self._block = SimpleNamespace(x=x, y=y)
                    self.dynamic = np.full(self.dynamic_bytes, NAN_BYTE, np.uint8)
                    self._static: dict[int, np.ndarray[Any, Any]] = {}
                    self.queues: dict[int, list[Any]] = {}
                    self._run_block(lambda: kernel(*arguments))

    def _run_block(self, body: Callable[[], None]) -> None:
        fibres = []
        for thread in range(self.blockDim.x):
            fibre = greenlet(body, self._hub)
            fibre.thread = thread
            fibre.gr_context = copy_context()  # in which numpy keeps what warns
            fibres.append(fibre)
        ready: dict[int, Any] = dict.fromkeys(range(len(fibres)))
        waiting: dict[int, Any] = {}
        while ready or waiting:
            for thread, answer in ready.items():
                asked = fibres[thread].switch() if answer is None else fibres[thread].switch(answer)
                if not fibres[thread].dead:
                    waiting[thread] = asked
            ready = self._answers(waiting)
            if waiting and not ready:
                at = sorted({asked if asked == "barrier" else asked[0] for asked in waiting.values()})
                raise Fault(f"{len(waiting)} threads wait for ever, at {', '.join(at)}")
            for thread in ready:
                del waiting[thread]

    @staticmethod
    def _answers(waiting: dict[int, Any]) -> dict[int, Any]:
        """Of each warp that has come together, and of a block whose threads all stand at a barrier."""
        if waiting and all(asked == "barrier" for asked in waiting.values()):
            return dict.fromkeys(waiting)
        found: dict[int, Any] = {}
        for first in sorted({thread // 32 * 32 for thread in waiting}):
            asked = [waiting.get(first + lane) for lane in range(32)]
            if any(one is None or one == "barrier" for one in asked) or len({one[0] for one in asked}) > 1:
                continue
            found.update(zip(range(first, first + 32), asked[0][2]([one[1] for one in asked]), strict=True))
        return found

    def _shared(self, count: int, kind: Any) -> np.ndarray[Any, Any]:
        """One array for the block, known by the line that asks for it; of 0 elements: the dynamic memory."""
        if count == 0:
            return self.dynamic.view(dtype_of(kind))
        return self._static.setdefault(sys._getframe(1).f_lineno, _uninitialised(count, kind))


def _uninitialised(count: int, kind: Any) -> np.ndarray[Any, Any]:
    dtype = dtype_of(kind)
    return np.full(count * dtype.itemsize, NAN_BYTE, np.uint8).view(dtype)
