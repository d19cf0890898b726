"""Hopper's products in fibres: what wgmma, boxes of tensor maps and what clusters push mean, beside numba_stream_fibres.py's barriers.

Stricter than a GPU where it can be: a product reads shared memory as late as it may, when it is waited for; what a box or a push goes to is
gone as soon as it is asked for, and comes late; a box's bytes are those that its map says; a push to a block that has ended is a fault.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from greenlet import getcurrent
from numba_stream_fibres import AllAtOnce, Barrier, barrier_instructions
from numba_wgmma_fibres import swizzled, wgmma_instructions
from support import right_candidates

from opwise.backends.numba_on_cpu.fibres import NAN_BYTE, SHARED_BASE, Fault, Memory, shared_bytes
from opwise.backends.numba_on_cpu.meanings import ROUNDING, SM80, machine
from opwise.backends.numba_on_cpu.translated import Meanings, Translation

u32, f32 = np.uint32, np.float32
RANK = 24  # the bit from which on a shared address says whose it is
BARS = 128  # threads at a named barrier
LANES = np.arange(32)


def module(name: str) -> Any:
    return importlib.import_module(f"opwise.backends.numba_cuda.{name}")


MAIN = [c for c in right_candidates() if (c.backend, c.op, c.variant) == ("numba_cuda", "matmul", "")]


def translation(more: Meanings) -> Translation:
    """By the meanings for sm_80 and these, which come first. Skips where there is no Numba."""
    for candidate in MAIN:
        candidate.get()
    return Translation({name: {**SM80.get(name, {}), **more.get(name, {})} for name in {*SM80, *more}})


@dataclass
class Map:
    """A matrix of 16-bit elements, and its boxes, with rows of 128 bytes."""

    elements: np.ndarray[Any, Any]
    rows: int
    columns: int = 64


@dataclass
class Cluster:
    arrived: int = 0
    blocks: list[Any] = field(default_factory=list)


class Clusters(AllAtOnce):
    def __init__(self, grid: int, threads: int, shared: int, memory: Memory, seed: int, cluster: int) -> None:
        super().__init__((grid, 1), threads, shared, memory, seed)
        self.size, self.clusters = cluster, [Cluster() for _ in range(grid // cluster)]
        self.stores: dict[Any, list[bool]] = {}  # of a thread, in order: is it under way?
        self.bars: dict[Any, int] = {}

    def _fibre(self, body: Callable[[], None], block: Any, thread: int) -> Any:
        fibre = super()._fibre(body, block, thread)
        if thread == 0:
            block.cluster, block.fibres = self.clusters[block.at.x // self.size], []
            block.cluster.blocks.append(block)
        block.fibres.append(fibre)
        return fibre


def instructions() -> dict[str, dict[str, Any]]:
    """Module of numba_cuda -> name there -> its meaning on the machine of the launch under way, which is of Clusters."""

    def block_of(address: Any) -> Any:
        return getcurrent().block.cluster.blocks[int(address) >> RANK]

    def place(address: Any) -> int:
        return (int(address) & (1 << RANK) - 1) - SHARED_BASE

    def shared(address: Any, size: int) -> Any:
        return shared_bytes(block_of(address).memory, place(address) + SHARED_BASE, size)

    def lies(address: Any) -> tuple[Any, int]:
        return block_of(address), place(address)

    def barrier(address: Any) -> Barrier:
        found: Barrier = block_of(address).barriers[place(address)]
        return found

    barriers = barrier_instructions(lies, shared)

    def arrived(address: Any) -> int:
        barriers["wait"](address, 0)
        return 1

    def lines(memory: Any, at: int, rows: int) -> Any:
        """Indices of the bytes of a box at that place, row by row."""
        if at % 1024 or at < 0 or at + rows * 128 > min(getcurrent().block.barriers):
            raise Fault(f"a box of {rows} rows at {at}")
        return swizzled(at + np.arange(rows * 128)).reshape(rows, 128)

    def box_load(to: Any, matrix: Map, column: Any, row: Any, address: Any) -> None:
        memory, column, row = block_of(to).memory, int(column), int(row)
        indices = lines(memory, place(to), matrix.rows)
        memory[indices] = NAN_BYTE
        box = np.zeros((matrix.rows, matrix.columns), np.uint16)
        inside = matrix.elements[row : row + matrix.rows, column : column + matrix.columns]
        box[: inside.shape[0], : inside.shape[1]] = inside

        def act() -> None:
            memory[indices] = box.view(np.uint8)

        machine().land_later(barrier(address), matrix.rows * 128, act)

    def box_store(matrix: Map, column: Any, row: Any, source: Any) -> None:
        memory, column, row, thread = getcurrent().block.memory, int(column), int(row), getcurrent()
        indices = lines(memory, place(source), matrix.rows)
        under_way = machine().stores.setdefault(thread, [])
        under_way.append(True)
        number = len(under_way) - 1

        def land() -> None:
            to = matrix.elements[row : row + matrix.rows, column : column + matrix.columns]
            to[:] = np.ascontiguousarray(memory[indices]).view(np.uint16)[: to.shape[0], : to.shape[1]]
            under_way[number] = False

        machine().copies.append(land)

    def boxes_wait(left: int) -> Callable[[], None]:
        def wait() -> None:  # all but the latest have landed, in whatever order they do
            stores = machine().stores.get(getcurrent(), [])
            before = len(stores) - left
            machine().until(lambda: not any(stores[: max(before, 0)]))

        return wait

    def bar(number: Any) -> None:
        """Until all BARS threads have come to the barrier as often as this one now has."""
        key = id(getcurrent().block), int(number)
        machine().bars[key] = machine().bars.get(key, 0) + 1
        turn = -(-machine().bars[key] // BARS) * BARS
        machine().until(lambda: machine().bars[key] >= turn)

    # ---- clusters ------------------------------------------------------------------------------------------------------------------

    def push(there: Any, sums: Any, at: int, bell: Any) -> None:
        block, values = block_of(there), np.array(sums[at : at + 4], f32).view(np.uint8)
        if block is getcurrent().block or block is not block_of(bell):
            raise Fault("pushed to itself, or counted elsewhere")
        to = shared(there, 16)

        def act() -> None:
            if all(fibre.dead for fibre in block.fibres):
                raise Fault("pushed to a block that has ended")
            to[:] = values

        machine().land_later(barrier(bell), 16, act)

    def of_block(address: Any, rank: Any) -> Any:
        return u32(int(address) & (1 << RANK) - 1 | int(rank) << RANK)

    def load_there(address: Any, buffer: Any, at: int) -> None:
        if all(fibre.dead for fibre in block_of(address).fibres):
            raise Fault("read from a block that has ended")
        buffer[at : at + 4] = shared(address, 16).view(f32)

    def cluster_arrive() -> None:
        getcurrent().block.cluster.arrived += 1
        getcurrent().met = getattr(getcurrent(), "met", 0) + 1

    def cluster_wait() -> None:
        cluster, threads = getcurrent().block.cluster, getcurrent().met * machine().size * machine().blockDim.x
        machine().until(lambda: cluster.arrived >= threads)

    def rank() -> Any:
        return u32(getcurrent().block.at.x % machine().size)

    def exchange(value: Any, mask: Any) -> Any:
        return machine().together(f"shuffle {int(mask)}", value, lambda values: [values[lane ^ int(mask)] for lane in range(32)])

    def load_floats(address: Any, buffer: Any, at: int) -> None:
        buffer[at : at + 4] = shared(address, 16).view(f32)

    return {
        "common.tensor": {"shared_address": lambda array: u32(SHARED_BASE | int(rank()) << RANK), "load_floats": load_floats},
        "common.barrier": barriers,
        "matmul.kernels.wgmma_ptx": {
            **wgmma_instructions(machine, shared, *ROUNDING),
            "box_load": box_load,
            "box_store": box_store,
            "boxes_wait_all": boxes_wait(0),
            "boxes_wait_but_one": boxes_wait(1),
            "publish_to_copies": lambda: None,
            "warpgroup_barrier": bar,
        },
        "matmul.kernels.split_k": {"st_async": push, "exchange": exchange},
        "matmul.kernels.cluster_reduce": {"load_there": load_there, "publish": cluster_arrive},
        "common.words": {
            "rank_in_cluster": rank,
            "of_block": of_block,
            "cluster_arrive": cluster_arrive,
            "cluster_wait": cluster_wait,
            "pairs_arrived": arrived,
        },
    }
