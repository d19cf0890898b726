"""A GPU's threads as fibres: a kernel's own Python, run thread by thread, with barriers, warp shuffles, addresses and shared memory.

A thread is a greenlet. It yields where CUDA makes it wait: at a block barrier, or at a warp-wide operation. All greenlets run in one system
thread, in a fixed order; 128 threads cost a millisecond. A kernel sees `Machine` as `cuda`; meanings.py implements the intrinsics.

Stricter than a GPU: raises Fault for an access outside of the given tensors, for a misaligned one, and for a warp shuffle that some of the
32 lanes do not reach. Does not detect races: a thread runs until it waits, so a missing barrier shows only if the fixed order exposes it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from greenlet import getcurrent, greenlet
from torch import Tensor

from opwise.backends.numba_on_cpu.atomics import ATOMIC

SHARED_BASE = 1024  # first address of dynamic shared memory; not 0, so that an address without it raises
NAN_BYTE = 0xFF  # uninitialised memory reads as nan
ALL_LANES = 0xFFFFFFFF
BARRIER = "barrier"
Collective = Callable[[list[Any]], list[Any]]  # the 32 lanes' operands -> the 32 lanes' results


class Fault(RuntimeError):
    """Raised where a GPU would report an illegal access, hang, or compute garbage."""


class Index(NamedTuple):
    """An index into, or the dimensions of, a grid or a block."""

    x: int
    y: int = 1
    z: int = 1


def size_of(given: Any) -> Index:
    """The dimensions of a grid or a block given as to Numba: an int, or a tuple of up to three."""
    return Index(*map(int, given)) if isinstance(given, (tuple, list)) else Index(int(given))


def places(size: Index) -> list[Index]:
    """All indices; x varies fastest."""
    return [Index(x, y, z) for z in range(size.z) for y in range(size.y) for x in range(size.x)]


def dtype_of(kind: Any) -> np.dtype[Any]:
    return np.dtype(kind if isinstance(kind, type) else str(kind))  # Numba's types have NumPy's names


def shared_bytes(memory: np.ndarray[Any, Any], address: Any, size: int, alignment: int = 0) -> np.ndarray[Any, Any]:
    """A view of `size` bytes of a block's dynamic shared memory. Raises Fault outside of it, and if misaligned; 0: aligned to `size`."""
    at = int(address) - SHARED_BASE
    if at % (alignment or size) or at < 0 or at + size > memory.size:
        raise Fault(f"{size} bytes at {at} of {memory.size} of dynamic shared memory")
    return memory[at : at + size]


class Memory:
    """The tensors that a kernel may touch, by address."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._spans = [(x.data_ptr(), x.numel() * x.element_size(), as_bytes(x)) for x in tensors]

    def at(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """A view of `size` bytes at `address`. Raises Fault outside of every tensor, and where `size` does not divide the address."""
        address = int(address)
        if address % size:
            raise Fault(f"misaligned: {size} bytes at an address that is {address % size} more than a multiple of it")
        for begin, length, data in self._spans:
            if begin <= address and address + size <= begin + length:
                return data[address - begin : address - begin + size]
        near = min((address - begin for begin, _, _ in self._spans), key=abs)
        raise Fault(f"{size} bytes at {near} of a tensor, outside of all that was given")


def as_bytes(x: Tensor) -> np.ndarray[Any, Any]:
    """A uint8 view of x in memory order. x: contiguous, or the transpose of a contiguous matrix."""
    import torch

    return x.detach().as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()  # a stride of one element may be any


class Machine:
    """One launch: what a kernel sees as `cuda`. Threads of a block are run in turns, blocks one after the other."""

    atomic = ATOMIC
    threadfence = threadfence_block = threadfence_system = staticmethod(lambda: None)

    def __init__(self, grid: Any, threads: Any, dynamic_shared: int, memory: Memory) -> None:
        self.gridDim, self.blockDim = size_of(grid), size_of(threads)
        self.memory, self.dynamic_bytes = memory, dynamic_shared
        self.local = SimpleNamespace(array=_uninitialised)
        self.shared = SimpleNamespace(array=self._shared)

    @property
    def threadIdx(self) -> Any:  # noqa: N802  CUDA's name
        return getcurrent().place

    @property
    def blockIdx(self) -> Any:  # noqa: N802
        return self._block

    @property
    def laneid(self) -> int:
        return int(getcurrent().thread) % 32

    def grid(self, dimensions: int) -> Any:
        """The thread's index in the whole grid: an int for 1 dimension, else a tuple."""
        found = tuple(b * size + t for b, size, t in zip(self.blockIdx, self.blockDim, self.threadIdx, strict=True))
        return found[0] if dimensions == 1 else found[:dimensions]

    def gridsize(self, dimensions: int) -> Any:
        found = tuple(blocks * size for blocks, size in zip(self.gridDim, self.blockDim, strict=True))
        return found[0] if dimensions == 1 else found[:dimensions]

    def syncthreads(self) -> None:
        self._hub.switch(BARRIER)

    def syncwarp(self, mask: int = ALL_LANES) -> None:
        self._shuffled("syncwarp", mask, None, lambda values: values)

    def shfl_xor_sync(self, mask: int, value: Any, distance: int) -> Any:
        return self._shuffled(f"shuffle {distance}", mask, value, lambda values: [values[lane ^ distance] for lane in range(32)])

    def shfl_down_sync(self, mask: int, value: Any, distance: int) -> Any:
        return self._shuffled(f"shuffle down {distance}", mask, value, lambda values: values[distance:] + values[32 - distance :])

    def shfl_up_sync(self, mask: int, value: Any, distance: int) -> Any:
        return self._shuffled(f"shuffle up {distance}", mask, value, lambda values: values[:distance] + values[: 32 - distance])

    def shfl_sync(self, mask: int, value: Any, lane: int) -> Any:
        return self._shuffled("shuffle", mask, (value, lane), lambda brought: [brought[lane % 32][0] for _, lane in brought])

    def _shuffled(self, what: str, mask: int, brings: Any, act: Collective) -> Any:
        if mask & ALL_LANES != ALL_LANES:
            raise Fault(f"a {what} of lanes {mask:#x}: all 32 are taken")
        return self.together(what, brings, act)

    def together(self, what: str, brings: Any, act: Collective) -> Any:
        """Yields until the warp's 32 lanes have reached `what`. Returns this lane's result of `act`, applied to all lanes' `brings`."""
        return self._hub.switch((what, brings, act))

    def run(self, kernel: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._hub = getcurrent()
        threads = places(self.blockDim)
        with np.errstate(all="ignore"):
            for block in places(self.gridDim):
                self._block = block
                self.dynamic = np.full(self.dynamic_bytes, NAN_BYTE, np.uint8)
                self._static: dict[Any, np.ndarray[Any, Any]] = {}
                self.queues: dict[int, list[Any]] = {}
                self._run_block(lambda: kernel(*arguments), threads)

    def _run_block(self, body: Callable[[], None], threads: list[Index]) -> None:
        fibres: list[Any] = []
        context = copy_context()  # NumPy's errstate is a context variable
        for thread, place in enumerate(threads):
            fibre: Any = greenlet(body, self._hub)
            fibre.thread, fibre.place, fibre.gr_context = thread, place, context
            fibres.append(fibre)
        ready: dict[int, Any] = dict.fromkeys(range(len(fibres)))
        waiting: dict[int, Any] = {}
        while ready or waiting:
            for thread, answer in ready.items():
                fibre = fibres[thread]
                asked = fibre.switch() if answer is None else fibre.switch(answer)
                if not fibre.dead:
                    waiting[thread] = asked
            ready = self._answers(waiting)
            if waiting and not ready:
                at = sorted({asked if asked is BARRIER else asked[0] for asked in waiting.values()})
                raise Fault(f"{len(waiting)} threads wait for ever, at {', '.join(at)}")
            if len(ready) == len(waiting):
                waiting.clear()
            for thread in ready if waiting else ():
                del waiting[thread]

    @staticmethod
    def _answers(waiting: dict[int, Any]) -> dict[int, Any]:
        """Thread -> result, for each complete warp at the same operation, or for all threads, with None, if all wait at the barrier."""
        if list(waiting.values()).count(BARRIER) == len(waiting):
            return dict.fromkeys(waiting)
        found: dict[int, Any] = {}
        for first in sorted({thread // 32 * 32 for thread in waiting}):
            asked: list[Any] = [waiting.get(first + lane) for lane in range(32)]
            if any(one is None or one is BARRIER for one in asked) or len({one[0] for one in asked}) > 1:
                continue
            found.update(zip(range(first, first + 32), asked[0][2]([one[1] for one in asked]), strict=True))
        return found

    def _shared(self, shape: Any, kind: Any) -> np.ndarray[Any, Any]:
        """One array a block for each call site; shape 0: the dynamic shared memory."""
        if shape == 0:
            return self.dynamic.view(dtype_of(kind))
        frame = sys._getframe(1)
        asking = frame.f_code, frame.f_lasti
        if asking not in self._static:
            self._static[asking] = _uninitialised(shape, kind)
        return self._static[asking]


def _uninitialised(shape: Any, kind: Any) -> np.ndarray[Any, Any]:
    dtype = dtype_of(kind)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    return np.full(count * dtype.itemsize, NAN_BYTE, np.uint8).view(dtype).reshape(shape)
