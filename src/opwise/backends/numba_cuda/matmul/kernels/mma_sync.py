"""matmul on tensor cores by mma.sync, for float16, bfloat16 and TF32, on sm_80 and later.

A block computes a tile of the product. Tiles of A and B travel by cp.async through a ring of stages in shared memory, so that the
copies of later stages run under the products of this one. Rows of A's tile are 64 bytes and its 16-byte chunks are permuted by the row
(B's by its own row), so that the eight rows an ldmatrix reads lie in eight different groups of banks. On Hopper the blocks of a cluster may
split K (cluster_reduce.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint8, uint32

from opwise.backends.numba_cuda.common import ptx, tensor
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul.configurations import MmaTile, storage_of
from opwise.backends.numba_cuda.matmul.kernels.cluster_reduce import cluster_reduce, shared_bytes

GROUP = 8  # tile rows that are walked together, so that their A and B stay in L2
ZERO = f32(0.0)


@cache
def mma_kernel(dtype: str, tile: MmaTile, aligned: bool) -> Kernel:
    """a (m, k), b (k, n), c (m, n): addresses. `aligned`: rows start at multiples of 16 bytes; else elements are fetched one by one. A grid
    of tile.split blocks a tile, side by side."""
    is_tf32 = dtype == "tfloat32"
    storage = storage_of(dtype)
    size = ptx.BYTES[storage]
    chunk = 16 // size  # elements of a 16-byte chunk
    depth = 64 // size  # elements of k in a stage: 64 bytes of a row of A, two steps of mma
    step = depth // 2
    threads, stages = tile.threads, tile.stages
    a_bytes, b_bytes = tile.rows * 64, depth * tile.columns * size
    stage_bytes = a_bytes + b_bytes
    a_each, b_each = tile.rows * 4 // threads, tile.columns * 4 // threads
    b_chunks = tile.columns // chunk  # in a row of B's tile
    warp_rows, warp_columns = tile.rows // tile.down, tile.columns // tile.across
    down, right = warp_rows // 16, warp_columns // 8  # mma tiles of a warp
    tile_rows, tile_columns, across = tile.rows, tile.columns, tile.across
    counts = (down * right * 4, down * 4, right * 2)
    sums_count, left_count, right_count = counts
    multiply, store_pair, store_one = tensor.MULTIPLY[dtype], tensor.STORE_PAIR[storage], ptx.STORE[storage, False]
    wait = tensor.wait_for_all_but(stages - 2)
    # What of a row's number is in the place of its chunks. Two rows of 64 bytes, of 32 columns in 16 bits, have the banks of one of 128.
    row_mask = 3 if is_tf32 or b_chunks < 8 else 7
    row_shift = 1 if is_tf32 else 0
    row_from = 1 if b_chunks < 8 else 0
    split = tile.split
    each, room, share_of, add_up, owned, leave = cluster_reduce(
        split, threads, down * right
    )  # a unit: what a thread has of 16 rows and 8 columns
    shift = split.bit_length() - 1

    @inlined
    def fetch(address: Any, source: Any, present: Any) -> None:
        """A 16-byte chunk, of which the first `present` elements exist, to shared memory; zeros for the others."""
        if aligned:
            tensor.copy16(address, source, uint32(16 if present > 0 else 0))
        elif is_tf32 and split > 1:  # K is long, and nobody waits for these
            for e in range(4):
                there = present > e
                tensor.copy4(address + uint32(e * 4), source + e * 4 if there else source, uint32(4 if there else 0))
        elif is_tf32:
            words = cuda.local.array(4, uint32)
            for e in range(4):
                words[e] = tensor.read32(source + e * 4, uint32(present > e))
            tensor.store_words(address, words[0], words[1], words[2], words[3])
        else:
            words = cuda.local.array(4, uint32)
            for e in range(4):
                low = tensor.read16(source + e * 4, uint32(present > 2 * e))
                high = tensor.read16(source + e * 4 + 2, uint32(present > 2 * e + 1))
                words[e] = low | (high << uint32(16))
            tensor.store_words(address, words[0], words[1], words[2], words[3])

    @inlined
    def fill(stage: Any, a: Any, b: Any, m: Any, n: Any, k: Any, m0: Any, n0: Any, k0: Any, thread: Any) -> None:
        """Starts the copies of one tile of A and one of B. Beyond an edge the source is the tensor's start, and nothing is read."""
        for j in range(a_each):
            r = (thread + j * threads) // 4
            c = (thread + j * threads) % 4
            row, column = m0 + r, k0 + c * chunk
            present = k - column if row < m else int64(0)
            source = a + (row * k + column) * size if present > 0 else a
            fetch(stage + uint32(r * 64 + ((c ^ ((r >> 1) & 3)) << 4)), source, present)
        for j in range(b_each):
            r = (thread + j * threads) // b_chunks
            c = (thread + j * threads) % b_chunks
            row, column = k0 + r, n0 + c * chunk
            present = n - column if row < k else int64(0)
            source = b + (row * n + column) * size if present > 0 else b
            swizzled = c ^ (((r >> row_from) & row_mask) << row_shift)
            fetch(stage + uint32(a_bytes + r * (tile_columns * size) + (swizzled << 4)), source, present)

    @inlined
    def store_unit(c: Any, m: Any, n: Any, upper: Any, column: Any, values: Any, at: Any) -> None:
        """Two neighbours in a row, and two 8 rows below."""
        for h in range(2):
            row = upper + h * 8
            target = c + (row * n + column) * size
            if row < m and column < n:
                if aligned:  # n is even, so the pair ends inside
                    store_pair(target, values, at + h * 2)
                else:
                    store_one(target, values, at + h * 2)
                    if column + 1 < n:
                        store_one(target + size, values, at + h * 2 + 1)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(sums_count, float32)
        left, of_right = cuda.local.array(left_count, uint32), cuda.local.array(right_count, uint32)
        shared = tensor.shared_address(memory)
        thread = int64(cuda.threadIdx.x)
        lane, warp = thread & 31, thread >> 5
        warp_m, warp_n = (warp // across) * warp_rows, (warp % across) * warp_columns

        # Blocks walk GROUP tile rows, column by column: 8 + 132 / 8 strips in L2 at a time instead of 1 + 132.
        tiles_m, tiles_n = (m + tile_rows - 1) // tile_rows, (n + tile_columns - 1) // tile_columns
        block = int64(cuda.blockIdx.x) >> shift
        first = block // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, int64(GROUP))
        within = block % (GROUP * tiles_n)
        m0, n0 = (first + within % height) * tile_rows, (within // height) * tile_columns

        for i in range(sums_count):
            sums[i] = ZERO
        begin, steps = int64(0), (k + depth - 1) // depth
        if split > 1:
            begin, steps = share_of(steps)
        start = begin * depth
        for s in range(stages - 1):
            if s < steps:
                fill(shared + uint32(s * stage_bytes), a, b, m, n, k, m0, n0, start + s * depth, thread)
            tensor.commit()
        reading, writing = int64(0), int64(stages - 1)
        for t in range(steps):
            wait()  # the copies of tile t have landed, for this thread
            cuda.syncthreads()  # ... for all; and everybody has left the stage that is written next
            ahead = t + stages - 1
            if ahead < steps:
                fill(shared + uint32(writing * stage_bytes), a, b, m, n, k, m0, n0, start + ahead * depth, thread)
            tensor.commit()  # an empty group counts too, which keeps `wait` right at the end
            a_tile = shared + uint32(reading * stage_bytes)
            b_tile = a_tile + uint32(a_bytes)
            for half in range(2):
                for i in range(down):
                    r = warp_m + i * 16 + (lane & 15)
                    at = r * 64 + (((half * 2 + (lane >> 4)) ^ ((r >> 1) & 3)) << 4)
                    tensor.load_matrices(a_tile + uint32(at), left, i * 4)
                if is_tf32:
                    for i in range(left_count):
                        left[i] = tensor.round_tf32(left[i])
                    for j in range(right_count):
                        r = half * step + (lane & 3) + (j & 1) * 4
                        column = warp_n + (j >> 1) * 8 + (lane >> 2)
                        at = r * (tile_columns * 4) + (((column >> 2) ^ ((r & 3) << 1)) << 4) + ((column & 3) << 2)
                        of_right[j] = tensor.round_tf32(tensor.load_word(b_tile + uint32(at)))
                else:
                    for j in range(right // 2):  # two neighbouring 8-column tiles at a time
                        r = half * step + (lane & 15)
                        at = r * (tile_columns * 2) + ((((warp_n >> 3) + j * 2 + (lane >> 4)) ^ ((r >> row_from) & row_mask)) << 4)
                        tensor.load_transposed(b_tile + uint32(at), of_right, j * 4)
                for i in range(down):
                    for j in range(right):
                        multiply(sums, (i * right + j) * 4, left, i * 4, of_right, j * 2)
            reading = reading + 1 if reading < stages - 1 else int64(0)
            writing = writing + 1 if writing < stages - 1 else int64(0)

        if split > 1:
            parts = cuda.local.array(room, float32)
            add_up(shared, sums, parts, thread)
            for i in range(each):
                unit, whose = owned(thread, i)
                row = m0 + (whose >> 5) // across * warp_rows + unit // right * 16 + ((whose & 31) >> 2)
                column = n0 + (whose >> 5) % across * warp_columns + unit % right * 8 + (whose & 3) * 2
                if unit < down * right:
                    store_unit(c, m, n, row, column, parts, 4 * split * i)
            leave()
        else:
            for i in range(down):
                for j in range(right):
                    row, column = m0 + warp_m + i * 16 + (lane >> 2), n0 + warp_n + j * 8 + (lane & 3) * 2
                    store_unit(c, m, n, row, column, sums, (i * right + j) * 4)

    shared = shared_bytes(stages * stage_bytes, split, threads, down * right)
    only = "sm_90" if split > 1 else None
    return Kernel(matmul, (int64,) * 6, threads, min_blocks=tile.ctas_per_sm, dynamic_shared=shared, only=only, cluster=split)
