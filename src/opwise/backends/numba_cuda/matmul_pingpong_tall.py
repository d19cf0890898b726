"""matmul_pingpong.py for tiles of 192 x 128, whose factors cross into shared memory less often.

Nobody but the consumers fills the ring. A multiprocessor's four parts have 16384 registers each; a ninth warp would be the third of one of
them, and no thread could have more than 168. Of eight warps each thread may have 255: room for 192 sums. (setmaxnreg, by which a producer
gives its registers to others, Numba's PTX cannot have: see matmul_wgmma.py.) So the first warp of a consumer, once all four have read a
slot, asks for the step that is as many steps on as the ring has slots, of whosever tile that is. With tiles of 128 x 128 that took up to
10 % longer than a producer.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint32

from opwise.backends.numba_cuda import barrier_ptx as barriers
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul_pingpong import OWN_TURN, TALL, PingpongTile, skipper_of, storing_of
from opwise.backends.numba_cuda.matmul_ring import OWN_SHARED, filler_of, meet, position_of, prepare, releaser_of, ring_begins, tiling_of
from opwise.backends.numba_cuda.matmul_wgmma_ptx import BOX, DEPTH

TILE_ROWS = 8  # walked together


def onward_of(position: Any) -> Any:
    """(tile, depth, row, column, ...) of a step -> those of the next, which is perhaps of the block's next tile."""

    @inlined
    def onward(tile: Any, depth: Any, row: Any, column: Any, depth_end: Any, stride: Any, tiles_m: Any, tiles_n: Any) -> Any:
        depth = uint32(depth + uint32(DEPTH))
        if depth >= depth_end:
            tile, depth = uint32(tile + stride), uint32(0)
            if tile < uint32(tiles_m * tiles_n):
                row, column = position(tile, tiles_m, tiles_n)
        return tile, depth, row, column

    return onward


@cache
def tall_kernel(dtype: str, shape: PingpongTile = TALL) -> Kernel:
    """Tensor maps of a (m, k), b (k, n), c (m, n), with boxes of 192, 64 and 64 rows by 64 columns, of half as many where the blocks of a
    cluster share a factor; then m, n, k, each up to 2^30."""
    rows, columns, stages, own = shape.rows, shape.columns, shape.stages, shape.outboxes
    cluster, blocks = shape.cluster, math.prod(shape.cluster)
    units, bytes_a = rows // 64, rows * 128
    slot_bytes = bytes_a + columns // 64 * BOX
    sums_count = units * columns // 2
    multiply, finish, store = ptx.step(dtype, columns, units=units), ptx.finish(units * columns), storing_of(dtype, shape)
    position, skip = position_of(rows, columns, TILE_ROWS // cluster[0], cluster), skipper_of(stages)
    fill, onward, release = filler_of(rows, columns, cluster), onward_of(position), releaser_of(blocks > 1)
    tiling = tiling_of(rows * cluster[0], columns * cluster[1])

    @inlined
    def refill(
        ring: Any, full: Any, slot: Any, phase: Any, feeds: Any, thread: Any, a: Any, b: Any, row: Any, column: Any, depth: Any
    ) -> None:
        landed = uint32(full + slot * uint32(8))
        empty = uint32(landed + uint32(8 * stages))
        release(empty, uint32(thread & uint32(31)))
        if feeds:
            barriers.wait(empty, phase)
            if barriers.elected() != 0:
                fill(uint32(ring + slot * uint32(slot_bytes)), landed, a, b, row, column, depth)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        sums = cuda.local.array(sums_count, float32)
        ring = ring_begins()  # behind it the boxes through which C is stored, then the barriers
        outboxes = uint32(ring + uint32(stages * slot_bytes))
        full = uint32(outboxes + uint32(2 * own * BOX))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, stages, 4 * blocks)  # one arrival a warp, of the one warpgroup that reads a slot
        if blocks > 1:
            meet()
        depth_end = uint32(k)
        tiles_m, tiles_n = tiling(m, n)
        count, stride = uint32(tiles_m * tiles_n), uint32(uint32(cuda.gridDim.x) // uint32(blocks))
        first = uint32(uint32(cuda.blockIdx.x) // uint32(blocks))
        warp = barriers.same_in_warp(uint32(thread >> uint32(5)))
        warpgroup, feeds = uint32(warp >> uint32(2)), uint32(warp & uint32(3)) == 0
        outbox = uint32(outboxes + warpgroup * uint32(own * BOX))
        steps = uint32(uint32(depth_end + uint32(DEPTH - 1)) // uint32(DEPTH))
        # The step that is asked for next: its tile, where that begins, and how deep it is in it.
        next_tile, next_depth, slot = first, uint32(0), uint32(0)
        next_row, next_column = position(next_tile, tiles_m, tiles_n)
        while slot < stages:
            if warp == 0 and next_tile < count and barriers.elected() != 0:
                at, landed = uint32(ring + slot * uint32(slot_bytes)), uint32(full + slot * uint32(8))
                fill(at, landed, a, b, next_row, next_column, next_depth)
            slot = uint32(slot + uint32(1))
            next_tile, next_depth, next_row, next_column = onward(
                next_tile, next_depth, next_row, next_column, depth_end, stride, tiles_m, tiles_n
            )
        tile = uint32(first + warpgroup * stride)
        slot, phase = skip(uint32(0), uint32(0), uint32(steps * warpgroup))
        next_tile = uint32(next_tile + warpgroup * stride)
        while tile < count:
            row, column = position(tile, tiles_m, tiles_n)
            if next_tile < count:
                next_row, next_column = position(next_tile, tiles_m, tiles_n)
            depth, last, last_phase = uint32(0), uint32(0), uint32(0)
            if tile >= stride:  # the block has a tile before this one, which the other warpgroup multiplies
                ptx.take_turn(uint32(uint32(OWN_TURN) + warpgroup))
            while depth < depth_end:
                at = uint32(ring + slot * uint32(slot_bytes))
                barriers.wait(uint32(full + slot * uint32(8)), phase)
                if blocks > 1:
                    at = uint32(at & uint32(OWN_SHARED))
                multiply(sums, at, uint32(at + uint32(bytes_a)), depth)
                if depth > 0:  # the step before this one has been multiplied
                    feeding = feeds and next_tile < count
                    refill(ring, full, last, last_phase, feeding, thread, a, b, next_row, next_column, next_depth)
                    next_tile, next_depth, next_row, next_column = onward(
                        next_tile, next_depth, next_row, next_column, depth_end, stride, tiles_m, tiles_n
                    )
                last, last_phase = slot, phase
                depth = uint32(depth + uint32(DEPTH))
                slot = uint32(slot + uint32(1))
                if slot == stages:
                    slot, phase = uint32(0), uint32(phase ^ uint32(1))
            if uint32(tile + stride) < count:
                ptx.give_turn(uint32(uint32(OWN_TURN + 1) - warpgroup))  # a step is still being multiplied: time enough to begin
            finish(sums)
            feeding = feeds and next_tile < count
            refill(ring, full, last, last_phase, feeding, thread, a, b, next_row, next_column, next_depth)
            next_tile, next_depth, next_row, next_column = onward(
                next_tile, next_depth, next_row, next_column, depth_end, stride, tiles_m, tiles_n
            )
            store(c, column, row, outbox, warpgroup, thread, sums)
            # The other's tile: by its steps the other asks for as many.
            slot, phase = skip(slot, phase, steps)
            next_tile, tile = uint32(next_tile + stride), uint32(uint32(tile + stride) + stride)
        if uint32(thread & uint32(127)) == 0:
            ptx.boxes_wait_all()  # shared memory must outlive its stores
        if blocks > 1:
            cuda.syncwarp()
            meet()  # and its barriers the other block's arrivals

    return Kernel(matmul, (int64,) * 6, shape.threads, dynamic_shared=shape.shared_bytes(2), maps=3, only="sm_90", cluster=blocks)
