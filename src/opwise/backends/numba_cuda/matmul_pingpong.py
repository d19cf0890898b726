"""matmul on Hopper (sm_90a), 16-bit factors: two consumer warpgroups, each with a tile of its own, take turns at multiplying (pingpong).

In matmul_wgmma.py two warpgroups share a tile, and while they store it the tensor cores rest. Here each computes all of a tile, by products
of 64 rows, and lets the other begin as soon as its own last products are on the way: one stores under the other's main loop. Both read one
ring, which a producer fills in the order of tiles. A consumer's 128 sums a thread leave room for that ninth warp (168 registers a thread,
see matmul_wgmma.py); matmul_pingpong_tall.py has a higher tile, and none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint32

from opwise.backends.cuda_src.matmul.configuration import Among
from opwise.backends.cuda_src.matmul.configuration import Kernel as Tile
from opwise.backends.cuda_src.matmul.cost import HALF_LINE
from opwise.backends.numba_cuda import barrier_ptx as barriers
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul_ring import (
    ALONE,
    GROUP,
    consumer_of,
    meet,
    position_of,
    prepare,
    producer_of,
    releaser_of,
    ring_begins,
    tiling_of,
)
from opwise.backends.numba_cuda.matmul_wgmma import THREADS, leaving_of
from opwise.backends.numba_cuda.matmul_wgmma_ptx import BOX, DEPTH

OWN_TURN = 3  # and the next: barriers at which a consumer waits for its turn


@dataclass(frozen=True)
class PingpongTile(Tile):
    """`inbox`: bytes of the boxes, as many a consumer, through which C is stored. Clusters are for slanted rows."""

    def shared_bytes(self, size: int) -> int:
        return self.stages * self.step_bytes * (self.rows + self.columns) + self.inbox + 16 * self.stages + 1024

    @property
    def outboxes(self) -> int:
        """Of a consumer."""
        return self.inbox // (2 * BOX)

    def takes(self, m: int, k: int, n: int, sm_count: int, capability: tuple[int, int]) -> bool:
        """Where rows are no multiple of 64 bytes apart, most rows of a box lie in two lines of the L2, and that is the limit: there blocks
        fetch for each other, if B's rows are so. Of A's alone nothing was gained (4096 x 3000 x 4096), nor at 4000 cubed."""
        fits = k % 64 == n % 64 == 0 if self.cluster == ALONE else n % HALF_LINE > 0
        return fits and super().takes(m, k, n, sm_count, capability)


# Of one step of K, or of one tile a block, there is nothing to take turns at: 128 x 128 was level with the shared tile then, or a little
# slower, 192 x 128 took 0.7 to 0.9 us longer. The speeds follow both states of the clock (docs/lab/two-clocks.md).
TURNS = Among(DEPTH + 1, 2**30, 1.005, math.inf)
SQUARE = PingpongTile("pingpong_128x128", 128, 128, THREADS, 128, 6, 16, 1.85, 180, wgmma=True, inbox=4 * BOX, crowd=0.13, among=TURNS)
TALL = PingpongTile("pingpong_192x128", 192, 128, 256, 128, 5, 16, 2.8, 292, wgmma=True, inbox=2 * BOX, crowd=0.31, among=TURNS)
# Of two blocks, fitted to an H200's times of 20 products whose rows of B are slanted: what a choice loses is 0.1 % on average of them, and
# 2.2 % at most (4096 x 4096 x 3000). Of a tile a block 192 x 128 had the least time of all (3000 x 1024 x 1000, 128 tiles).
PAIRS = (
    replace(SQUARE, name="pingpong_128x128_2x1", cluster=(2, 1), speed=2.35, fixed=174, crowd=0.09),
    replace(TALL, name="pingpong_192x128_1x2", cluster=(1, 2), speed=2.48, fixed=249, crowd=0.45, among=TURNS._replace(few=0.95)),
)
SHARED_PAIRS = (  # a tile by both consumers
    PingpongTile("128x192_2x1", 128, 192, THREADS, 128, 4, 16, 1.91, 245, wgmma=True, inbox=4 * BOX, cluster=(2, 1), crowd=0.01),
    PingpongTile("128x256_2x1", 128, 256, THREADS, 128, 4, 16, 2.13, 293, wgmma=True, inbox=4 * BOX, cluster=(2, 1), crowd=0.37),
)


def skipper_of(stages: int) -> Any:
    """(slot, phase, steps) -> the slot and phase so many steps later."""

    @inlined
    def skip(slot: Any, phase: Any, steps: Any) -> Any:
        on = uint32(slot + steps)
        rounds = barriers.divide(on, uint32(stages))
        return uint32(on - uint32(rounds * uint32(stages))), uint32(phase ^ uint32(rounds & uint32(1)))

    return skip


def storing_of(dtype: str, tile: PingpongTile) -> Any:
    """What a consumer does to store its tile, which begins at (row, column): box after box of 64 rows and columns."""
    units, boxes, own, each = tile.rows // 64, tile.columns // 64, tile.outboxes, tile.columns // 2
    leave = leaving_of(dtype)

    @inlined
    def store(c: Any, column: Any, row: Any, outbox: Any, warpgroup: Any, thread: Any, sums: Any) -> None:
        for unit in range(units):
            for box in range(boxes):
                leaving = uint32(outbox + uint32((unit * boxes + box) % own * BOX))
                if uint32(thread & uint32(127)) == 0:  # this outbox has been read; of two the other may still be
                    if own == 1:
                        ptx.boxes_wait_all()
                    else:
                        ptx.boxes_wait_but_one()
                to_column, to_row = uint32(column + uint32(64 * box)), uint32(row + uint32(64 * unit))
                leave(c, to_column, to_row, leaving, warpgroup, thread, sums, unit * each + 32 * box)

    return store


@cache
def pingpong_kernel(dtype: str, shape: PingpongTile = SQUARE) -> Kernel:
    """Tensor maps of a (m, k), b (k, n), c (m, n), with boxes of 128, 64 and 64 rows by 64 columns, of half as many where the blocks of a
    cluster share a factor; then m, n, k, each up to 2^30."""
    rows, columns, stages, own = shape.rows, shape.columns, shape.stages, shape.outboxes
    cluster, blocks = shape.cluster, math.prod(shape.cluster)
    units, bytes_a = rows // 64, rows * 128
    slot_bytes = bytes_a + columns // 64 * BOX
    sums_count = units * columns // 2
    multiply, finish, store = ptx.step(dtype, columns, units=units), ptx.finish(units * columns), storing_of(dtype, shape)
    position, skip = position_of(rows, columns, GROUP // cluster[0], cluster), skipper_of(stages)
    produce = producer_of(rows, columns, stages, position, cluster)
    tiling, release = tiling_of(rows * cluster[0], columns * cluster[1]), releaser_of(blocks > 1)
    consume = consumer_of(multiply, stages, slot_bytes, blocks > 1)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        sums = cuda.local.array(sums_count, float32)
        ring = ring_begins()  # behind it the boxes through which C is stored, then the barriers
        outboxes = uint32(ring + uint32(stages * slot_bytes))
        full = uint32(outboxes + uint32(2 * own * BOX))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, stages, 4 * blocks)  # one arrival a warp, of the one warpgroup that reads a slot, frees it
        if blocks > 1:
            meet()
        depth_end = uint32(k)
        tiles_m, tiles_n = tiling(m, n)
        count, stride = uint32(tiles_m * tiles_n), uint32(uint32(cuda.gridDim.x) // uint32(blocks))
        tile = uint32(uint32(cuda.blockIdx.x) // uint32(blocks))
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == 2:
            if barriers.elected() != 0:
                produce(ring, full, a, b, tile, stride, tiles_m, tiles_n, depth_end)
        else:
            lane = uint32(thread & uint32(31))
            outbox = uint32(outboxes + warpgroup * uint32(own * BOX))
            steps = uint32(uint32(depth_end + uint32(DEPTH - 1)) // uint32(DEPTH))
            tile = uint32(tile + warpgroup * stride)
            slot, phase = skip(uint32(0), uint32(0), uint32(steps * warpgroup))
            while tile < count:
                row, column = position(tile, tiles_m, tiles_n)
                if tile >= stride:  # the block has a tile before this one, which the other warpgroup multiplies
                    ptx.take_turn(uint32(uint32(OWN_TURN) + warpgroup))
                last, slot, phase = consume(sums, ring, full, uint32(0), uint32(bytes_a), slot, phase, depth_end, lane)
                if uint32(tile + stride) < count:
                    ptx.give_turn(uint32(uint32(OWN_TURN + 1) - warpgroup))  # a step is still being multiplied: time enough to begin
                finish(sums)
                release(last, lane)
                slot, phase = skip(slot, phase, steps)  # the other's tile
                store(c, column, row, outbox, warpgroup, thread, sums)
                tile = uint32(uint32(tile + stride) + stride)
            if uint32(thread & uint32(127)) == 0:
                ptx.boxes_wait_all()  # shared memory must outlive its stores
        if blocks > 1:
            cuda.syncwarp()
            meet()  # and its barriers the other block's arrivals

    return Kernel(matmul, (int64,) * 6, shape.threads, dynamic_shared=shape.shared_bytes(2), maps=3, only="sm_90", cluster=blocks)
