"""Blocks that wait for one another, in fibres: all blocks of a launch at once, their warps in an order drawn by lot, copies that land late.

`instructions` are those of softmax/stream.py's kernel that numba_on_cpu has not: mbarriers, copies in bulk, pairs in global memory. What
a copy goes to is gone as soon as it is asked for, so that a slot which is asked for too early shows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from opwise.backends.numba_on_cpu.fibres import NAN_BYTE, SHARED_BASE, Fault, Index, Machine, Memory, places, shared_bytes
from opwise.backends.numba_on_cpu.meanings import machine

u32, f32 = np.uint32, np.float32
MOST_ROUNDS = 6_000


@dataclass
class Block:
    at: Any
    memory: Any
    barriers: dict[int, Barrier] = field(default_factory=dict)


@dataclass
class Barrier:
    count: int
    left: int
    copied: int = 0  # bytes that are expected and have not landed
    phase: int = 0

    def arrive(self) -> None:
        if not self.left:
            raise Fault("an arrival too many")
        self.left -= 1
        self.turn()

    def turn(self) -> None:
        if self.left == self.copied == 0:
            self.phase, self.left = self.phase + 1, self.count


class AllAtOnce(Machine):
    """`late`: how likely a copy lands, and `idle` a warp rests, in a round."""

    def __init__(self, grid: tuple[int, int], threads: int, shared: int, memory: Memory, seed: int) -> None:
        super().__init__(grid, threads, shared, memory)
        self._random = Random(seed)
        self.late, self.idle = self._random.choice((0.05, 0.3, 1.0)), self._random.choice((0.0, 0.3, 0.8))
        self.copies: list[Callable[[], None]] = []

    @property
    def blockIdx(self) -> Any:  # noqa: N802
        return getcurrent().block.at

    @property
    def dynamic(self) -> Any:
        return getcurrent().block.memory

    def until(self, come: Callable[[], bool]) -> None:
        """Gives way, until then."""
        self._hub.switch(come)

    def land_later(self, one: Barrier, count: int, act: Callable[[], None]) -> None:
        """A copy of `count` bytes that the barrier was told to expect."""

        def land() -> None:
            act()
            one.copied -= count
            one.turn()

        self.copies.append(land)

    def run(self, kernel: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._hub = getcurrent()
        warps = []
        for at in places(self.gridDim):
            shared = Block(at, np.full(self.dynamic_bytes, NAN_BYTE, np.uint8))
            fibres = [self._fibre(lambda: kernel(*arguments), shared, thread) for thread in range(self.blockDim.x)]
            warps += [(fibres[first : first + 32], fibres) for first in range(0, len(fibres), 32)]
        with np.errstate(all="ignore"):
            for _ in range(MOST_ROUNDS):
                self._random.shuffle(warps)
                for warp, block_fibres in warps:
                    if self._random.random() >= self.idle:
                        self._step([fibre for fibre in warp if not fibre.dead], block_fibres)
                asked, self.copies, landed = self.copies, [], []
                for copy in asked:
                    (landed if self._random.random() < self.late else self.copies).append(copy)
                for copy in landed:
                    copy()
                warps = [one for one in warps if not all(fibre.dead for fibre in one[0])]
                if not warps:
                    return
        raise Fault(f"{len(warps)} warps wait for ever")

    def _fibre(self, body: Callable[[], None], block: Block, thread: int) -> Any:
        fibre = greenlet(body, self._hub)
        fibre.block, fibre.thread, fibre.place, fibre.gr_context = block, thread, Index(thread), copy_context()
        fibre.asked = lambda: True
        return fibre

    @staticmethod
    def _step(lanes: list[Any], block: list[Any]) -> None:
        """Those go on whose time has come; all together behind a shuffle, or a barrier of the block."""
        answers = [(lane, None) for lane in lanes if callable(lane.asked) and lane.asked()]
        if not answers and all(lane.asked == "barrier" for lane in lanes):
            if all(not other.dead and other.asked == "barrier" for other in block):
                for other in block:
                    other.asked = lambda: True
        elif not answers and all(isinstance(lane.asked, tuple) for lane in lanes) and len({lane.asked[0] for lane in lanes}) == 1:
            if len(lanes) != 32:
                raise Fault(f"{lanes[0].asked[0]} by {len(lanes)} lanes")
            answers = list(zip(lanes, lanes[0].asked[2]([lane.asked[1] for lane in lanes]), strict=True))
        for lane, answer in answers:
            asked = lane.switch() if answer is None else lane.switch(answer)
            lane.asked = None if lane.dead else asked


def barrier_instructions(lies: Callable[[Any], tuple[Any, int]], shared: Callable[[Any, int], Any]) -> dict[str, Callable[..., Any]]:
    """Names of barrier_ptx.py -> their meaning. `lies` says of an address in whose block it is and where; `shared` gives its bytes."""

    def barrier(address: Any) -> Barrier:
        block, at = lies(address)
        found: Barrier = block.barriers[at]
        return found

    def barrier_init(address: Any, count: Any) -> None:
        shared(address, 8)
        block, at = lies(address)
        block.barriers[at] = Barrier(int(count), int(count))

    def expect(address: Any, size: Any) -> None:
        barrier(address).copied += int(size)
        barrier(address).arrive()

    def wait(address: Any, parity: Any) -> None:
        one = barrier(address)
        machine().until(lambda: one.phase % 2 != int(parity))

    def together(what: str, act: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
        return lambda value=None: machine().together(what, value, act)

    return {
        "barrier_init": barrier_init,
        "barriers_publish": lambda: None,
        "expect": expect,
        "wait": wait,
        "arrive": lambda address: barrier(address).arrive(),
        "elected": together("elect", lambda lanes: [1] + [0] * 31),
        "same_in_warp": together("lane 0", lambda lanes: lanes[:1] * 32),
        "divide": lambda a, b: u32(int(a) // int(b)),
        "remainder": lambda a, b: u32(int(a) % int(b)),
    }


def instructions() -> dict[str, dict[str, Callable[..., Any]]]:
    """Module of numba_cuda -> name there -> its meaning on the machine of the launch under way."""

    def shared(address: Any, size: int) -> Any:
        return shared_bytes(machine().dynamic, address, size, min(size, 128))

    def lies(address: Any) -> tuple[Any, int]:
        return getcurrent().block, int(address)

    def bulk_load(to: Any, source: Any, size: Any, address: Any) -> None:
        one, count = getcurrent().block.barriers[int(address)], int(size)
        place = machine().dynamic[int(to) - SHARED_BASE :][:count]
        if int(to) % 128 or count % 16 or int(to) + count > min(getcurrent().block.barriers):
            raise Fault(f"a copy of {count} bytes to {int(to)}")
        data = np.concatenate([machine().memory.at(int(source) + i, 16) for i in range(0, count, 16)])
        place[:] = NAN_BYTE

        def act() -> None:
            place[:] = data

        machine().land_later(one, count, act)

    def store_floats(address: Any, first: Any, second: Any) -> None:
        shared(address, 8).view(f32)[:] = first, second

    def publish(address: Any, maximum: Any, total: Any, tag: Any) -> None:
        word = machine().memory.at(address, 16)
        word.view(f32)[::2], word.view(u32)[1::2] = (maximum, total), tag

    def load_pair(address: Any, words: Any, at: int) -> None:
        machine().until(lambda: True)
        words[at : at + 4] = machine().memory.at(address, 16).view(u32)

    barriers = barrier_instructions(lies, shared)
    return {
        "common.words": {
            "bulk_load": bulk_load,
            "store_floats": store_floats,
            "load_float": lambda address: f32(shared(address, 4).view(f32)[0]),
            "publish": publish,
            "clear_pair": lambda address: publish(address, 0, 0, 0),
            "load_pair": load_pair,
        },
        "common.barrier": barriers,
    }
