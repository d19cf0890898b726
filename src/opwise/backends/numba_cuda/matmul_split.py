"""matmul on Hopper (sm_90a) where a product has few tiles and a long K: the blocks of a cluster share a tile's K, 16-bit factors.

It is cuda_src/matmul_split.cuh in Python, but for how the sums meet. Each of S blocks multiplies K / S of the tile, by a ring of TMA copies
and wgmma as matmul_wgmma.py does. Then it lays its sums into its own ring, which nobody needs any more, and behind a barrier of the cluster
every block adds up one S-th of the tile, read from all S, and stores it. Nothing is written but C, and a sum is the same in every run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from llvmlite import ir
from numba import cuda, float32, int64, types, uint8, uint32
from numba.cuda.extending import intrinsic

from opwise.backends.cuda_src import matmul_model, matmul_plan
from opwise.backends.cuda_src.matmul_plan import Kernel as Tile
from opwise.backends.numba_cuda import barrier_ptx as barriers
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda import tensor, words
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul_wgmma import BOX, DEPTH, position_of, prepare
from opwise.backends.numba_cuda.ptx import FLOAT, assembly, element, instruction

# What matmul.hopper_tile chooses from. By these speeds and costs `estimate` takes the fastest for every product measured on an H200
# (tests/test_numba_products.py).
WHOLE = tuple(replace(tile, speed=speed, fixed=64) for tile, speed in zip(matmul_plan.WGMMA, (1.80, 1.80, 1.75, 1.25), strict=True))
TURNED = tuple(replace(tile, speed=1.75, fixed=64) for tile in matmul_plan.TURNED)
TILES = (
    Tile("64x64_s1", 64, 64, 160, 128, 12, 16, 1.14, 1872, wgmma=True, split=1),
    Tile("64x64_s2", 64, 64, 160, 128, 6, 16, 0.43, 90, wgmma=True, split=2, resident=2),
    Tile("64x64_s4", 64, 64, 160, 128, 6, 16, 0.58, 360, wgmma=True, split=4, resident=2),
    Tile("64x64_s16", 64, 64, 160, 128, 6, 16, 0.30, 8, wgmma=True, split=16, resident=2),
    Tile("64x128_s2", 64, 128, 160, 128, 8, 16, 0.84, 120, wgmma=True, split=2),
    Tile("64x256_s2", 64, 256, 160, 128, 5, 16, 1.51, 420, wgmma=True, split=2),
    Tile("128x128_s4", 128, 128, 288, 128, 6, 16, 1.50, 22, wgmma=True, split=4),
)
# Multiply-adds of the fastest kernel that cost as much as an element that is added up from another block, and as an element of A: its rows
# lie far apart, so that a step of K of many rows is slow to come. Blocks that share K wait for several steps at once, and where C has one
# column of tiles, all tiles read alike.
ADDING, READING = 1000, 1.0
BOX_COLUMNS = 64  # of B, in one copy
OWN_SHARED = 0x3FFFF  # the bits of a shared address that say where in a block's shared memory it is
VOID = ir.VoidType()
# Not .aligned: the producer's lanes come from a branch.
cluster_barrier = instruction("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", types.void, effect=True, together=True)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def lay(typing: Any, address: Any, sums: Any, at: Any) -> Any:
    """sums[at:at + 4] to the 16 bytes at a shared address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = [builder.load(element(context, builder, signature.args[1], args[1], args[2], i)) for i in range(4)]
        assembly(builder, VOID, "st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "r,f,f,f,f", [args[0], *floats], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint32, sums, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def fetch(typing: Any, address: Any, rank: Any, parts: Any, at: Any) -> Any:
    """What block `rank` of the cluster has at a shared address: 16 bytes, to parts[at:at + 4]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text = "{ .reg .b32 there; mapa.shared::cluster.u32 there, $4, $5; ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [there]; }"
        read = assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, "=f,=f,=f,=f,r,r", args[:2], effect=True)
        for i in range(4):
            builder.store(builder.extract_value(read, i), element(context, builder, signature.args[2], args[2], args[3], i))
        return context.get_dummy_value()

    return types.void(types.uint32, types.uint32, parts, types.int64), codegen


def estimate(tile: Tile, m: int, k: int, n: int, processors: int) -> float:
    """The cost of a 16-bit product by one of TILES, TURNED or WHOLE, as multiply-adds of the fastest kernel.

    The busiest multiprocessor's tiles, K of each and what it costs beyond its products, over the speed; and ADDING and READING.
    """
    tiles, elements, split = tile.tiles(m, n), tile.rows * tile.columns, max(tile.split, 1)
    waves = matmul_model.waves(tiles, split, tile.resident, processors)
    depth = -(-k // (DEPTH * split)) * DEPTH if tile.split else k
    of_a_tile = elements * (depth + tile.fixed) / tile.speed + ADDING * elements * (split - 1) / split
    return waves * of_a_tile + (READING * m * k / split if n > BOX_COLUMNS else 0)


@inlined
def landing(m: Any, rows: Any, slot_bytes: Any) -> Any:
    """Bytes that the boxes of a step bring: cuda_src's plan cuts A's boxes to A's m rows where a tile has more. The sums of the others'
    places, where anything may lie, are not stored."""
    if m < rows:
        return uint32(slot_bytes - (rows - m) * 128)
    return uint32(slot_bytes)


@cache
def split_kernel(dtype: str, tile: Tile) -> Kernel:
    """Tensor maps of a (m, k), b (k, n), with boxes of tile.rows, or m where a has fewer, and 64 rows by 64 columns; the address of c;
    m, n, k, each up to 2^30.

    A grid of tile.split blocks a tile. k has at least tile.split steps of 64. Raises ValueError for a tile that is not of whole boxes, or
    whose sums its ring cannot hold.
    """
    rows, columns, stages, split = tile.rows, tile.columns, tile.stages, tile.split
    if columns % BOX_COLUMNS or rows % 64:
        raise ValueError(f"{tile.name}: {rows} rows and {columns} columns given, multiples of 64 are taken: TMA copies boxes of 64")
    consumers, boxes = rows // 64, columns // 64
    warps, bytes_a = 4 * consumers, consumers * BOX
    slot_bytes = bytes_a + boxes * BOX
    across = columns // 16  # units of a row: sums travel by 16 x 16 of them, 1 KiB, which a warp has in 8 registers a thread
    units = warps * across
    if units * 1024 > stages * slot_bytes:
        raise ValueError(f"{tile.name}: {units} KiB of sums do not fit into a ring of {stages * slot_bytes} bytes: give it more stages")
    multiply, finish, store_pair = ptx.step(dtype, columns), ptx.finish(columns), tensor.STORE_PAIR[dtype]
    consumers_barrier = instruction(f"bar.sync 1, {128 * consumers};", types.void, effect=True, together=True)
    position, sums_count, parts_count = position_of(rows, columns), columns // 2, 8 * split

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums, parts = cuda.local.array(sums_count, float32), cuda.local.array(parts_count, float32)
        ring = uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(stages * slot_bytes))
        empty = uint32(full + uint32(8 * stages))
        thread = uint32(cuda.threadIdx.x)
        lane, warp = uint32(thread & uint32(31)), uint32(thread >> uint32(5))
        prepare(full, stages, warps)  # one arrival a warp frees a slot
        rank = words.rank_in_cluster()
        tiles_m, tiles_n = uint32((m + (rows - 1)) // rows), uint32((n + (columns - 1)) // columns)
        row, column = position(barriers.divide(uint32(cuda.blockIdx.x), uint32(split)), tiles_m, tiles_n)
        steps = uint32((k + (DEPTH - 1)) // DEPTH)
        step = barriers.divide(uint32(steps * rank), uint32(split))
        last_step = barriers.divide(uint32(steps * (rank + uint32(1))), uint32(split))
        slot, phase = uint32(0), uint32(0)
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == consumers:
            if barriers.elected() != 0:
                bytes_ = landing(m, rows, slot_bytes)
                while step < last_step:
                    at, landed = uint32(ring + slot * uint32(slot_bytes)), uint32(full + slot * uint32(8))
                    depth = uint32(step * uint32(DEPTH))
                    barriers.wait(uint32(empty + slot * uint32(8)), uint32(phase ^ uint32(1)))
                    barriers.expect(landed, bytes_)
                    ptx.box_load(at, a, depth, row, landed)
                    for box in range(boxes):
                        ptx.box_load(uint32(at + uint32(bytes_a + box * BOX)), b, uint32(column + uint32(64 * box)), depth, landed)
                    step = uint32(step + uint32(1))
                    slot = uint32(slot + uint32(1))
                    if slot == stages:
                        slot, phase = uint32(0), uint32(phase ^ uint32(1))
            cuda.syncwarp()
        else:
            add, last = uint32(0), uint32(0)
            while step < last_step:
                at = uint32(ring + slot * uint32(slot_bytes))
                barriers.wait(uint32(full + slot * uint32(8)), phase)
                # A shared address has the block's rank in its upper byte, which in a descriptor would be the distance of B's boxes.
                at = uint32(at & uint32(OWN_SHARED))
                multiply(sums, uint32(at + warpgroup * uint32(BOX)), uint32(at + uint32(bytes_a)), add)
                if add > 0 and lane == 0:
                    barriers.arrive(last)  # the step before this one has been multiplied: its slot may be filled again
                last = uint32(empty + slot * uint32(8))
                add = uint32(1)
                step = uint32(step + uint32(1))
                slot = uint32(slot + uint32(1))
                if slot == stages:
                    slot, phase = uint32(0), uint32(phase ^ uint32(1))
            finish(sums)
            # All copies have landed, since their products are done; but the block's other consumers may be reading the last slots.
            consumers_barrier()
            for unit in range(across):
                place = uint32(ring + (warp * uint32(across) + uint32(unit)) * uint32(1024) + lane * uint32(16))
                lay(place, sums, 8 * unit)
                lay(uint32(place + uint32(512)), sums, 8 * unit + 4)
        cluster_barrier()  # all parts are there
        if warpgroup < consumers:
            unit_now = uint32(barriers.divide(uint32(uint32(units) * rank), uint32(split)) + warp)
            unit_end = barriers.divide(uint32(uint32(units) * (rank + uint32(1))), uint32(split))
            while unit_now < unit_end:
                place = uint32(ring + unit_now * uint32(1024) + lane * uint32(16))
                for i in range(split):  # all under way before the first is waited for
                    block = uint32(rank + uint32(i))
                    if block >= split:
                        block = uint32(block - uint32(split))
                    fetch(place, block, parts, 8 * i)
                    fetch(uint32(place + uint32(512)), block, parts, 8 * i + 4)
                for i in range(1, split):
                    for j in range(8):
                        parts[j] += parts[8 * i + j]
                # Of each half of a unit a lane has columns 2t, 2t + 1 of rows g and g + 8, t = lane % 4, g = lane / 4.
                to_row = int64(row) + int64(barriers.divide(unit_now, uint32(across))) * 16 + int64(lane >> uint32(2))
                to_column = int64(column) + int64(barriers.remainder(unit_now, uint32(across))) * 16 + int64(lane & uint32(3)) * 2
                target = c + (to_row * n + to_column) * 2
                for half in range(2):
                    if to_column + 8 * half < n:
                        if to_row < m:
                            store_pair(target + 16 * half, parts, 4 * half)
                        if to_row + 8 < m:
                            store_pair(target + 16 * half + n * 16, parts, 4 * half + 2)
                unit_now = uint32(unit_now + uint32(warps))
        cluster_barrier()  # and nobody ends before the others have read its part

    shared_bytes = tile.shared_bytes(2)
    return Kernel(
        matmul, (int64,) * 6, tile.threads, min_blocks=tile.resident, dynamic_shared=shared_bytes, maps=2, only="sm_90", cluster=split
    )
