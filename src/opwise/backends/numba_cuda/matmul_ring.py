"""The ring of Hopper's products (matmul_wgmma.py): its slots, which tile is whose, and what fills and empties them.

Two blocks, a cluster, may fetch for each other: tiles side by side share A, one below the other B, of which each block fetches half for
both. A slot is filled again once both have read it.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, uint8, uint32

from opwise.backends.numba_cuda import barrier_ptx as barriers
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda import tensor, words
from opwise.backends.numba_cuda.launch import inlined
from opwise.backends.numba_cuda.matmul_wgmma_ptx import BOX, DEPTH

ALONE = (1, 1)  # rows and columns of tiles whose blocks fetch for each other: of one
OWN_SHARED = 0x3FFFF  # the bits of a shared address that say where in a block's shared memory it is
GROUP = 16  # tile rows that are walked together, so that their A and B stay in L2


def position_of(rows: int, columns: int, group: int = GROUP, cluster: tuple[int, int] = ALONE) -> Any:
    """(tile, tiles_m, tiles_n) -> row and column of C at which this block's part (rows x columns) of a cluster's tile begins, perhaps
    outside of C."""
    high, wide = rows * cluster[0], columns * cluster[1]
    down_each, right_each = high - rows, wide - columns

    @inlined
    def position(tile: Any, tiles_m: Any, tiles_n: Any) -> Any:
        across = uint32(uint32(group) * tiles_n)
        first = uint32(barriers.divide(tile, across) * uint32(group))
        within = barriers.remainder(tile, across)
        height = uint32(min(uint32(tiles_m - first), uint32(group)))
        down, right = barriers.remainder(within, height), barriers.divide(within, height)
        row, column = uint32((first + down) * uint32(high)), uint32(right * uint32(wide))
        if down_each + right_each > 0:
            rank = words.rank_in_cluster()
            row, column = uint32(row + rank * uint32(down_each)), uint32(column + rank * uint32(right_each))
        return row, column

    return position


@inlined
def ring_begins() -> Any:
    """The shared address from which on the ring lies: the first multiple of 1024, since the swizzle is by address."""
    memory = cuda.shared.array(0, uint8)
    return uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))


def tiling_of(rows: int, columns: int) -> Any:
    """(m, n) -> tiles down and across of C, of rows x columns."""

    @inlined
    def tiling(m: Any, n: Any) -> Any:
        return uint32((m + (rows - 1)) // rows), uint32((n + (columns - 1)) // columns)

    return tiling


@inlined
def prepare(full: Any, stages: Any, arrivals: Any) -> None:
    """Barriers of the ring, made by one thread for all: those of full slots and, behind them, those of slots left `arrivals` times."""
    if cuda.threadIdx.x == 0:
        for i in range(stages):
            barriers.barrier_init(uint32(full + uint32(8 * i)), uint32(1))
            if arrivals > 0:
                barriers.barrier_init(uint32(full + uint32(8 * (stages + i))), uint32(arrivals))
        barriers.barriers_publish()
    cuda.syncthreads()


@inlined
def meet() -> None:
    """All threads of a cluster: its barriers are there, or nobody arrives at them any more."""
    words.cluster_arrive()
    words.cluster_wait()


def filler_of(rows: int, columns: int, cluster: tuple[int, int] = ALONE) -> Any:
    """What one thread does to fill a slot that is empty: it asks for a step's factors, of the tile at (row, column) from `depth` on.

    Of two blocks side by side each fetches half of the rows of A for both, of two one below the other half of B."""
    bytes_a, boxes = rows * 128, columns // 64
    half_a, half_b = rows // 2, DEPTH // 2

    @inlined
    def fill(at: Any, landed: Any, a: Any, b: Any, row: Any, column: Any, depth: Any) -> None:
        barriers.expect(landed, uint32(bytes_a + boxes * BOX))
        ptx.box_load(at, a, depth, row, landed)
        for box in range(boxes):
            ptx.box_load(uint32(at + uint32(bytes_a + box * BOX)), b, uint32(column + uint32(64 * box)), depth, landed)

    @inlined
    def fill_half_a(at: Any, landed: Any, a: Any, b: Any, row: Any, column: Any, depth: Any) -> None:
        barriers.expect(landed, uint32(bytes_a + boxes * BOX))  # the other's half may have landed already
        first = uint32(words.rank_in_cluster() * uint32(half_a))
        ptx.box_load_both(uint32(at + first * uint32(128)), a, depth, uint32(row + first), landed)
        for box in range(boxes):
            ptx.box_load(uint32(at + uint32(bytes_a + box * BOX)), b, uint32(column + uint32(64 * box)), depth, landed)

    @inlined
    def fill_half_b(at: Any, landed: Any, a: Any, b: Any, row: Any, column: Any, depth: Any) -> None:
        barriers.expect(landed, uint32(bytes_a + boxes * BOX))
        first = uint32(words.rank_in_cluster() * uint32(half_b))
        to, first_depth = uint32(at + uint32(bytes_a) + first * uint32(128)), uint32(depth + first)
        ptx.box_load(at, a, depth, row, landed)
        for box in range(boxes):
            ptx.box_load_both(uint32(to + uint32(box * BOX)), b, uint32(column + uint32(64 * box)), first_depth, landed)

    return {ALONE: fill, (1, 2): fill_half_a, (2, 1): fill_half_b}[cluster]


def releaser_of(paired: bool) -> Any:
    """What a warp does that has read a slot: it tells the slot's barrier, and of two blocks that fetch for each other both's."""

    @inlined
    def release(empty: Any, lane: Any) -> None:
        if paired:
            if lane < 2:
                barriers.arrive_there(words.of_block(empty, lane))
        elif lane == 0:
            barriers.arrive(empty)

    return release


def feeder_of(rows: int, columns: int, stages: int, cluster: tuple[int, int] = ALONE) -> Any:
    """What the producer's thread does for a tile: step by step into the ring's slots, from `slot` on; the next slot and its phase."""
    slot_bytes, fill = rows * 128 + columns // 64 * BOX, filler_of(rows, columns, cluster)

    @inlined
    def feed(ring: Any, full: Any, a: Any, b: Any, row: Any, column: Any, slot: Any, phase: Any, depth_end: Any) -> Any:
        empty, depth = uint32(full + uint32(8 * stages)), uint32(0)
        while depth < depth_end:
            at, landed = uint32(ring + slot * uint32(slot_bytes)), uint32(full + slot * uint32(8))
            barriers.wait(uint32(empty + slot * uint32(8)), uint32(phase ^ uint32(1)))
            fill(at, landed, a, b, row, column, depth)
            depth = uint32(depth + uint32(DEPTH))
            slot = uint32(slot + uint32(1))
            if slot == stages:
                slot, phase = uint32(0), uint32(phase ^ uint32(1))
        return slot, phase

    return feed


def producer_of(rows: int, columns: int, stages: int, position: Any, cluster: tuple[int, int] = ALONE) -> Any:
    """What the producer's thread does: every `stride`-th tile from `tile` on."""
    feed = feeder_of(rows, columns, stages, cluster)

    @inlined
    def produce(ring: Any, full: Any, a: Any, b: Any, tile: Any, stride: Any, tiles_m: Any, tiles_n: Any, depth_end: Any) -> None:
        slot, phase = uint32(0), uint32(0)
        while tile < uint32(tiles_m * tiles_n):
            row, column = position(tile, tiles_m, tiles_n)
            slot, phase = feed(ring, full, a, b, row, column, slot, phase, depth_end)
            tile = uint32(tile + stride)

    return produce


def consumer_of(multiply: Any, stages: int, slot_bytes: int, paired: bool = False) -> Any:
    """What a consumer does for a tile: all steps of K, from `slot` on. left, right: where its factors lie in a slot.

    The barrier that frees the last slot, which is perhaps still being read; the next slot, and its phase."""
    release = releaser_of(paired)

    @inlined
    def consume(sums: Any, ring: Any, full: Any, left: Any, right: Any, slot: Any, phase: Any, depth_end: Any, lane: Any) -> Any:
        empty, depth, last = uint32(full + uint32(8 * stages)), uint32(0), uint32(0)
        while depth < depth_end:
            at = uint32(ring + slot * uint32(slot_bytes))
            barriers.wait(uint32(full + slot * uint32(8)), phase)
            if paired:  # a shared address has the block's rank in its upper byte, which in a descriptor would be another field
                at = uint32(at & uint32(OWN_SHARED))
            multiply(sums, uint32(at + left), uint32(at + right), depth)
            if depth > 0:
                release(last, lane)  # the step before this one has been multiplied: its slot may be filled again
            last = uint32(empty + slot * uint32(8))
            depth = uint32(depth + uint32(DEPTH))
            slot = uint32(slot + uint32(1))
            if slot == stages:
                slot, phase = uint32(0), uint32(phase ^ uint32(1))
        return last, slot, phase

    return consume
