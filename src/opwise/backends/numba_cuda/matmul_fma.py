"""matmul in plain float32: fused multiply-adds on 8 x 8 values a thread.

Tiles of A (transposed on the way) and B travel by cp.async through a ring of stages in shared memory. Each step along k reads 16
floats from shared memory for 64 multiply-adds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint8, uint32

from opwise.backends.numba_cuda import portable, ptx, tensor
from opwise.backends.numba_cuda.launch import Kernel, inlined

DEPTH, STAGES, GROUP = 16, 3, 8
ZERO = portable.f32(0.0)


@cache
def fma_kernel(tile: int, aligned: bool) -> Kernel:
    """a (m, k), b (k, n), c (m, n): addresses of float32. A block computes tile x tile. `aligned`: rows of b and c start at 16 bytes."""
    side = tile // 8
    threads = side * side
    pitch = tile + 4  # floats in a row of A's transposed tile: 16-byte rows, and the copies along k meet two to a bank, not 16
    a_bytes, b_bytes = DEPTH * pitch * 4, DEPTH * tile * 4
    stage_bytes = a_bytes + b_bytes
    a_each, b_each = tile * DEPTH // threads, tile * DEPTH // (4 if aligned else 1) // threads
    b_row = tile // 4 if aligned else tile
    store, store_one = ptx.STORE["float32", True], ptx.STORE["float32", False]
    wait = tensor.wait_for_all_but(STAGES - 2)
    half_tile = tile // 2

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
                tensor.copy16(stage + uint32(a_bytes + r * tile * 4 + c * 16), source, uint32(16 if inside else 0))
            else:
                inside = k0 + r < k and n0 + c < n
                source = b + ((k0 + r) * n + n0 + c) * 4 if inside else b
                tensor.copy4(stage + uint32(a_bytes + r * tile * 4 + c * 4), source, uint32(4 if inside else 0))

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(64, float32)
        left, right = cuda.local.array(8, float32), cuda.local.array(8, float32)
        shared = tensor.shared_address(memory)
        thread = int64(cuda.threadIdx.x)
        down, across = thread // side * 4, thread % side * 4  # this thread's rows: down..+3 and half a tile on; columns alike

        tiles_m, tiles_n = (m + tile - 1) // tile, (n + tile - 1) // tile
        block = int64(cuda.blockIdx.x)
        first = block // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, int64(GROUP))
        within = block % (GROUP * tiles_n)
        m0, n0 = (first + within % height) * tile, (within // height) * tile

        for i in range(64):
            sums[i] = ZERO
        steps = (k + DEPTH - 1) // DEPTH
        for s in range(STAGES - 1):
            if s < steps:
                fill(shared + uint32(s * stage_bytes), a, b, m, n, k, m0, n0, int64(s * DEPTH), thread)
            tensor.commit()
        reading, writing = int64(0), int64(STAGES - 1)
        for t in range(steps):
            wait()
            cuda.syncthreads()  # tile t is there for all, and everybody has left the stage that is written next
            if t + STAGES - 1 < steps:
                fill(shared + uint32(writing * stage_bytes), a, b, m, n, k, m0, n0, (t + STAGES - 1) * DEPTH, thread)
            tensor.commit()
            a_tile = shared + uint32(reading * stage_bytes + down * 4)
            b_tile = shared + uint32(reading * stage_bytes + a_bytes + across * 4)
            for p in range(DEPTH):
                tensor.load_floats(a_tile + uint32(p * pitch * 4), left, 0)
                tensor.load_floats(a_tile + uint32((p * pitch + half_tile) * 4), left, 4)
                tensor.load_floats(b_tile + uint32(p * tile * 4), right, 0)
                tensor.load_floats(b_tile + uint32((p * tile + half_tile) * 4), right, 4)
                for i in range(8):
                    for j in range(8):
                        sums[i * 8 + j] += left[i] * right[j]
            reading = reading + 1 if reading < STAGES - 1 else int64(0)
            writing = writing + 1 if writing < STAGES - 1 else int64(0)

        for i in range(8):
            row = m0 + down + (i if i < 4 else half_tile + i - 4)
            for h in range(2):
                column = n0 + across + h * half_tile
                target = c + (row * n + column) * 4
                if row < m:
                    if aligned:  # n is a multiple of 4
                        if column < n:
                            store(target, sums, i * 8 + h * 4)
                    else:
                        for e in range(4):
                            if column + e < n:
                                store_one(target + e * 4, sums, i * 8 + h * 4 + e)

    return Kernel(matmul, (int64,) * 6, threads, dynamic_shared=STAGES * stage_bytes)
