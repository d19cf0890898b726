"""Persistent, warp-specialised matmul with wgmma (sm_90a only): float16 or bfloat16, row-major, or B transposed; float32 accumulation.

One block runs on each SM and loops over tiles. One thread of its last warp, the producer, fills a ring of stages by TMA; a stage holds 64
elements of k. The other two or three warpgroups are consumers, each computing 64 rows of the tile. A stage has two mbarriers: `full` (the
copies have landed) and `empty` (all consumers have read it). The producer loads the next tile's stages while the consumers store this tile.
Unlike the CUDA C++ kernel it has no setmaxnreg: nvJitLink ignores it, as it compiles PTX for further linking. With 288 threads an SM
partition runs up to three warps on its 16384 registers: 168 registers a thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import Matrix
from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul.configurations import HopperTile
from opwise.backends.numba_cuda.matmul.kernels import wgmma_ptx as ptx
from opwise.backends.numba_cuda.matmul.kernels.pipeline import position_of, prepare, ring_begins, tiling_of
from opwise.backends.numba_cuda.matmul.kernels.wgmma_ptx import BOX, DEPTH


def producer_of(tile: HopperTile, position: Any) -> Any:
    """The producer's loop: TMA copies of every step of K, for tiles `tile`, tile + stride, ..."""
    stages, bytes_a, boxes, b_by_k = tile.stages, tile.rows * 128, tile.columns // 64, tile.layout == "NT"
    stage_bytes = bytes_a + boxes * BOX

    @inlined
    def produce(ring: Any, full: Any, a: Any, b: Any, tile: Any, stride: Any, tiles_m: Any, tiles_n: Any, depth_end: Any) -> None:
        stage, phase = uint32(0), uint32(0)
        while tile < uint32(tiles_m * tiles_n):
            row, column = position(tile, tiles_m, tiles_n)
            empty, depth = uint32(full + uint32(8 * stages)), uint32(0)
            while depth < depth_end:
                at, landed = uint32(ring + stage * uint32(stage_bytes)), uint32(full + stage * uint32(8))
                barriers.wait(uint32(empty + stage * uint32(8)), uint32(phase ^ uint32(1)))
                barriers.expect(landed, uint32(stage_bytes))
                ptx.box_load(at, a, depth, row, landed)
                if b_by_k:
                    ptx.box_load(uint32(at + uint32(bytes_a)), b, depth, column, landed)
                else:
                    for box in range(boxes):
                        ptx.box_load(uint32(at + uint32(bytes_a + box * BOX)), b, uint32(column + uint32(64 * box)), depth, landed)
                depth = uint32(depth + uint32(DEPTH))
                stage = uint32(stage + uint32(1))
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ uint32(1))
            tile = uint32(tile + stride)

    return produce


def consumer_of(multiply: Any, stages: int, stage_bytes: int) -> Any:
    """A consumer's loop over K for one tile, from `stage` on. left, right: byte offsets of its A and B in a stage. Returns the `empty`
    barrier of the last stage (its wgmma may be in flight, so the caller arrives on it), the next stage, and its phase."""

    @inlined
    def consume(sums: Any, ring: Any, full: Any, left: Any, right: Any, stage: Any, phase: Any, depth_end: Any, lane: Any) -> Any:
        empty, depth, last = uint32(full + uint32(8 * stages)), uint32(0), uint32(0)
        while depth < depth_end:
            at = uint32(ring + stage * uint32(stage_bytes))
            barriers.wait(uint32(full + stage * uint32(8)), phase)
            multiply(sums, uint32(at + left), uint32(at + right), depth)
            if depth > 0 and lane == 0:
                barriers.arrive(last)  # the step before this one has been multiplied: its stage may be filled again
            last = uint32(empty + stage * uint32(8))
            depth = uint32(depth + uint32(DEPTH))
            stage = uint32(stage + uint32(1))
            if stage == stages:
                stage, phase = uint32(0), uint32(phase ^ uint32(1))
        return last, stage, phase

    return consume


def leaving_of(dtype: str) -> Any:
    """A consumer's store of 64 x 64 outputs, sums[at:at + 32], by TMA through `outbox`; any earlier store must have finished reading it."""
    store_matrices = ptx.store_matrices(dtype)

    @inlined
    def leave(c: Any, column: Any, row: Any, outbox: Any, warpgroup: Any, thread: Any, sums: Any, at: Any) -> None:
        # Lane l gives store_matrices a row address of 8x8 matrix l / 8: rows 0-7, then 8-15 of 8 columns, then the same of the next 8.
        lane = uint32(thread & uint32(31))
        line = uint32((uint32(thread & uint32(127)) >> uint32(5)) * uint32(16) + (lane & uint32(15)))
        ptx.warpgroup_barrier(uint32(warpgroup + uint32(1)))
        for pair in range(4):
            chunk = (uint32(2 * pair) + (lane >> uint32(4))) ^ (line & uint32(7))
            store_matrices(uint32(outbox + line * uint32(128) + chunk * uint32(16)), sums, at + 8 * pair)
        ptx.publish_to_copies()
        ptx.warpgroup_barrier(uint32(warpgroup + uint32(1)))
        if uint32(thread & uint32(127)) == 0:
            ptx.box_store(c, column, row, outbox)

    return leave


def matrices(tile: HopperTile, m: int, k: int, n: int) -> tuple[Matrix, Matrix, Matrix]:
    of_b = Matrix(n, k, tile.columns, 64) if tile.layout == "NT" else Matrix(k, n, DEPTH, 64)
    return Matrix(m, k, tile.rows, 64), of_b, Matrix(m, n, 64, 64)


@cache
def kernel(dtype: str, tile: HopperTile) -> Kernel:
    """Parameters: tensor maps of a (m, k), b (k, n) and c (m, n), with boxes of 64 columns by tile.rows, 64 and 64 rows; m, n, k, each at
    most 2^30. With layout NT b's map is of (n, k), with boxes of tile.columns rows."""
    columns, stages, consumers = tile.columns, tile.stages, tile.rows // 64
    boxes, bytes_a = columns // 64, consumers * BOX
    stage_bytes = bytes_a + boxes * BOX
    odd = boxes % 2
    multiply, finish, leave = ptx.step(dtype, columns, b_by_k=tile.layout == "NT"), ptx.finish(columns), leaving_of(dtype)
    position, tiling, sums_count = position_of(tile.rows, columns), tiling_of(tile.rows, columns), columns // 2
    produce, consume = producer_of(tile, position), consumer_of(multiply, stages, stage_bytes)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        sums = cuda.local.array(sums_count, float32)
        ring = ring_begins()  # followed by two outboxes for each consumer, then the mbarriers
        outboxes = uint32(ring + uint32(stages * stage_bytes))
        full = uint32(outboxes + uint32(2 * consumers * BOX))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, stages, 4 * consumers)  # one arrival a warp frees a stage
        depth_end = uint32(k)
        tiles_m, tiles_n = tiling(m, n)
        count, stride = uint32(tiles_m * tiles_n), uint32(cuda.gridDim.x)
        tile = uint32(cuda.blockIdx.x)
        stage, phase = uint32(0), uint32(0)  # the next stage, and the parity of passes round the ring
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == consumers:
            if barriers.elected() != 0:
                produce(ring, full, a, b, tile, stride, tiles_m, tiles_n, depth_end)
        else:
            lane = uint32(thread & uint32(31))
            first = uint32(thread & uint32(127)) == 0  # it issues this warpgroup's stores
            outbox = uint32(outboxes + warpgroup * uint32(2 * BOX))
            while tile < count:
                row, column = position(tile, tiles_m, tiles_n)
                left, right = uint32(warpgroup * uint32(BOX)), uint32(bytes_a)
                last, stage, phase = consume(sums, ring, full, left, right, stage, phase, depth_end, lane)
                finish(sums)
                if lane == 0:
                    barriers.arrive(last)
                row = uint32(row + warpgroup * uint32(64))
                for box in range(boxes):  # C is stored in boxes of 64 columns, two in flight
                    leaving = uint32(outbox + uint32(box % 2 * BOX))
                    if first:
                        if odd == 1 and box == 0:
                            ptx.boxes_wait_all()  # with odd boxes the previous tile's last store used this outbox too
                        else:
                            ptx.boxes_wait_but_one()  # this outbox is free; the other's store may be in flight
                    leave(c, uint32(column + uint32(64 * box)), row, leaving, warpgroup, thread, sums, 32 * box)
                tile = uint32(tile + stride)
            if first:
                ptx.boxes_wait_all()  # shared memory must outlive its stores

    return Kernel(matmul, (int64,) * 6, tile.threads, dynamic_shared=tile.shared_bytes, maps=3, only="sm_90")
