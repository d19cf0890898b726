"""matmul on Hopper (sm_90a) where tiles of 64 or 128 rows do not fill the multiprocessors: tiles turned round, C' = B' A', 16-bit factors.

It is cuda_src/matmul_turned.cuh in Python: wgmma's 64 rows are columns of B, and its columns, which go by 16 and not by 64, are rows of C.
1536 x 1536 is 11 x 12 tiles of 144 x 128 for 132 multiprocessors, where 128 x 192 makes 96.

One tile a block. The last warp is the producer, as in matmul_wgmma.py. The sums of a warpgroup, 64 columns of C, leave by one box, which is
laid, turned back, into a slot of the ring that everybody has left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint32

from opwise.backends.cuda_src.matmul.configuration import Kernel as Tile
from opwise.backends.numba_cuda import barrier_ptx as barriers
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda.launch import Kernel
from opwise.backends.numba_cuda.matmul_ring import consumer_of, feeder_of, position_of, prepare, ring_begins, tiling_of
from opwise.backends.numba_cuda.matmul_wgmma_ptx import BOX


@cache
def turned_kernel(dtype: str, tile: Tile) -> Kernel:
    """Tensor maps of a (m, k), b (k, n), c (m, n), with boxes of tile.rows, 64 and tile.rows rows by 64 columns; then m, n, k, each up to
    2^30. A block a tile. Raises ValueError for a tile whose rows do not go by 16, or whose columns do not go by 64.
    """
    rows, columns, stages = tile.rows, tile.columns, tile.stages
    consumers = columns // 64
    if rows % 16 or columns % 64 or consumers > stages:
        raise ValueError(
            f"{tile.name}: {rows} x {columns}, {stages} stages given, multiples of 16 x 64 and a stage for each 64 columns are taken"
        )
    bytes_a, warps = rows * 128, 4 * consumers
    slot_bytes = bytes_a + consumers * BOX
    multiply, finish, store_turned = ptx.turned_step(dtype, rows), ptx.finish(rows), ptx.store_matrices(dtype, turned=True)
    position, sums_count, units = position_of(rows, columns), rows // 2, rows // 16
    feed, consume, tiling = feeder_of(rows, columns, stages), consumer_of(multiply, stages, slot_bytes), tiling_of(rows, columns)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        sums = cuda.local.array(sums_count, float32)
        ring = ring_begins()
        full = uint32(ring + uint32(stages * slot_bytes))
        empty = uint32(full + uint32(8 * stages))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, stages, warps)  # one arrival a warp frees a slot
        depth_end = uint32(k)
        tiles_m, tiles_n = tiling(m, n)
        row, column = position(uint32(cuda.blockIdx.x), tiles_m, tiles_n)
        slot, phase = uint32(0), uint32(0)
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == consumers:
            if barriers.elected() != 0:
                feed(ring, full, a, b, row, column, slot, phase, depth_end)
        else:
            lane = uint32(thread & uint32(31))
            left = uint32(uint32(bytes_a) + warpgroup * uint32(BOX))
            last, slot, phase = consume(sums, ring, full, left, uint32(0), slot, phase, depth_end, lane)
            finish(sums)
            if lane == 0:
                barriers.arrive(last)
            # Each warpgroup has an outbox of its own: the slots behind the last, which nobody reads once all warps have left them.
            slot = uint32(slot + warpgroup)
            if slot >= stages:
                slot, phase = uint32(slot - uint32(stages)), uint32(phase ^ uint32(1))
            barriers.wait(uint32(empty + slot * uint32(8)), uint32(phase ^ uint32(1)))
            outbox = uint32(ring + slot * uint32(slot_bytes))
            # Lane l gives the address of row l % 8 of matrix l / 8: rows 0-7 of columns 0-7 and 8-15 of the warp's 16, then rows 8-15.
            line = uint32((lane >> uint32(4)) * uint32(8) + (lane & uint32(7)))
            piece = uint32((uint32(thread & uint32(127)) >> uint32(5)) * uint32(2) + (uint32(lane >> uint32(3)) & uint32(1)))
            chunk = uint32((piece ^ (line & uint32(7))) * uint32(16))
            for unit in range(units):
                store_turned(uint32(outbox + (line + uint32(16 * unit)) * uint32(128) + chunk), sums, 8 * unit)
            ptx.publish_to_copies()
            ptx.warpgroup_barrier(uint32(warpgroup + uint32(1)))
            if uint32(thread & uint32(127)) == 0:
                ptx.box_store(c, uint32(column + warpgroup * uint32(64)), row, outbox)
                ptx.boxes_wait_all()  # shared memory must outlive its stores

    return Kernel(matmul, (int64,) * 6, tile.threads, dynamic_shared=tile.shared_bytes(2), maps=3, only="sm_90")
