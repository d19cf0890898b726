"""matmul in plain float32: fused multiply-adds on 8 x 8 values a thread, or fewer where tiles are small.

Tiles of A (transposed on the way) and B travel by cp.async through a ring of stages in shared memory. Each step along k reads 16
floats from shared memory for 64 multiply-adds. On Hopper the blocks of a cluster may share a tile's K (matmul_parts.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32, int64, uint8, uint32

from opwise.backends.numba_cuda import portable, ptx, tensor
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul_fma_lean import filler, multiplier
from opwise.backends.numba_cuda.matmul_parts import shared_bytes, sharing

DEPTH, GROUP = 16, 8
ZERO = portable.f32(0.0)


class FmaTile(NamedTuple):
    """rows x columns of the product that a block computes, high x wide (multiples of 4) of them a thread."""

    rows: int
    columns: int
    high: int = 8
    wide: int = 8
    stages: int = 3
    at_once: int = 1  # blocks on a multiprocessor, which bounds the registers
    split: int = 1  # blocks of a cluster that share K
    lean: bool = False  # by steps of matmul_fma_lean.py: all that share K

    @property
    def threads(self) -> int:
        return (self.rows // self.high) * (self.columns // self.wide)


@cache
def fma_kernel(tile: FmaTile, aligned: bool) -> Kernel:
    """a (m, k), b (k, n), c (m, n): addresses of float32. `aligned`: rows of b and c start at 16 bytes. A grid of tile.split blocks a tile,
    side by side."""
    rows, columns, high, wide, stages, _, split, lean = tile
    threads, side = tile.threads, columns // wide
    pitch = rows + 4  # floats in a row of A's transposed tile: 16-byte rows, and the copies along k meet two to a bank, not 16
    a_bytes, b_bytes = DEPTH * pitch * 4, DEPTH * columns * 4
    stage_bytes = a_bytes + b_bytes
    a_each, b_each = rows * DEPTH // threads, columns * DEPTH // (4 if aligned else 1) // threads
    b_row = columns // 4 if aligned else columns
    store, store_one = ptx.STORE["float32", True], ptx.STORE["float32", False]
    wait = tensor.wait_for_all_but(stages - 2)
    # A thread's values lie in squares of 4 x 4, evenly over the tile: `below` and `beside` apart.
    groups_down, groups_across = high // 4, wide // 4
    below, beside = rows // groups_down, columns // groups_across
    count, units = high * wide, high * wide // 4  # a unit: four neighbours in a row
    each, room, share_of, add_up, owned, leave = sharing(split, threads, units)
    shift = split.bit_length() - 1

    @inlined
    def fill(stage: Any, a: Any, b: Any, m: Any, n: Any, k: Any, m0: Any, n0: Any, k0: Any, thread: Any) -> None:
        """Starts the copies of one tile of A and one of B; beyond an edge nothing is read and zeros are written."""
        for j in range(a_each):
            r, c = (thread + j * threads) // DEPTH, (thread + j * threads) % DEPTH
            inside = m0 + r < m and k0 + c < k
            source = a + ((m0 + r) * k + k0 + c) * 4 if inside else a
            tensor.copy4(stage + uint32((c * pitch + r) * 4), source, uint32(4 if inside else 0))
        for j in range(b_each):
            r, c = (thread + j * threads) // b_row, (thread + j * threads) % b_row
            if aligned:
                inside = k0 + r < k and n0 + c * 4 < n
                source = b + ((k0 + r) * n + n0 + c * 4) * 4 if inside else b
                tensor.copy16(stage + uint32(a_bytes + r * columns * 4 + c * 16), source, uint32(16 if inside else 0))
            else:
                inside = k0 + r < k and n0 + c < n
                source = b + ((k0 + r) * n + n0 + c) * 4 if inside else b
                tensor.copy4(stage + uint32(a_bytes + r * columns * 4 + c * 4), source, uint32(4 if inside else 0))

    @inlined
    def multiply(a_tile: Any, b_tile: Any, sums: Any) -> None:
        left, right = cuda.local.array(high, float32), cuda.local.array(wide, float32)
        for p in range(DEPTH):
            for g in range(groups_down):
                tensor.load_floats(a_tile + uint32((p * pitch + g * below) * 4), left, 4 * g)
            for g in range(groups_across):
                tensor.load_floats(b_tile + uint32((p * columns + g * beside) * 4), right, 4 * g)
            for i in range(high):
                for j in range(wide):
                    sums[i * wide + j] += left[i] * right[j]

    begin_copies = filler(DEPTH, rows, columns, threads, aligned) if lean else fill
    add_products = multiplier(DEPTH, rows, columns, high, wide) if lean else multiply

    @inlined
    def store_unit(c: Any, m: Any, n: Any, row: Any, column: Any, values: Any, at: Any) -> None:
        target = c + (row * n + column) * 4
        if row < m:
            if aligned:  # n is a multiple of 4
                if column < n:
                    store(target, values, at)
            else:
                for e in range(4):
                    if column + e < n:
                        store_one(target + e * 4, values, at + e)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(count, float32)
        shared = tensor.shared_address(memory)
        thread = int64(cuda.threadIdx.x)
        down, across = thread // side * 4, thread % side * 4  # this thread's rows: down..+3 and `below` on; columns alike

        tiles_m, tiles_n = (m + rows - 1) // rows, (n + columns - 1) // columns
        block = int64(cuda.blockIdx.x) >> shift
        first = block // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, int64(GROUP))
        within = block % (GROUP * tiles_n)
        m0, n0 = (first + within % height) * rows, (within // height) * columns

        for i in range(count):
            sums[i] = ZERO
        begin, steps = int64(0), (k + DEPTH - 1) // DEPTH
        if split > 1:
            begin, steps = share_of(steps)
        k0 = begin * DEPTH
        for s in range(stages - 1):
            if s < steps:
                begin_copies(shared + uint32(s * stage_bytes), a, b, m, n, k, m0, n0, k0 + s * DEPTH, thread)
            tensor.commit()
        reading, writing = int64(0), int64(stages - 1)
        for t in range(steps):
            wait()
            cuda.syncthreads()  # tile t is there for all, and everybody has left the stage that is written next
            if t + stages - 1 < steps:
                begin_copies(shared + uint32(writing * stage_bytes), a, b, m, n, k, m0, n0, k0 + (t + stages - 1) * DEPTH, thread)
            tensor.commit()
            a_tile = shared + uint32(reading * stage_bytes + down * 4)
            b_tile = shared + uint32(reading * stage_bytes + a_bytes + across * 4)
            add_products(a_tile, b_tile, sums)
            reading = reading + 1 if reading < stages - 1 else int64(0)
            writing = writing + 1 if writing < stages - 1 else int64(0)

        if split > 1:
            parts = cuda.local.array(room, float32)
            add_up(shared, sums, parts, thread)
            for i in range(each):
                unit, whose = owned(thread, i)
                r, g = unit // groups_across, unit % groups_across
                row = m0 + whose // side * 4 + (r & 3) + (r >> 2) * below
                if unit < units:
                    store_unit(c, m, n, row, n0 + whose % side * 4 + g * beside, parts, 4 * split * i)
            leave()
        else:
            for i in range(high):
                row = m0 + down + (i % 4) + (i // 4) * below
                for g in range(groups_across):
                    store_unit(c, m, n, row, n0 + across + g * beside, sums, i * wide + 4 * g)

    shared = shared_bytes(stages * stage_bytes, split, threads, units)
    only = "sm_90" if split > 1 else None
    return Kernel(matmul, (int64,) * 6, threads, min_blocks=tile.at_once, dynamic_shared=shared, only=only, cluster=split)
