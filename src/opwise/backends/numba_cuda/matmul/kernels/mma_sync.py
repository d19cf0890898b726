"""matmul on tensor cores by mma.sync, for float16, bfloat16 and TF32, on sm_80 and later.

A block computes a tile of C. cp.async copies tiles of A and B through a ring of stages in shared memory, so that copies of later stages
overlap the mma of this one. A tile keeps its factor's storage order; rows along k are 64 bytes. The 16-byte chunks of a row are swizzled by
the row number, so that the eight rows of an ldmatrix matrix fall in different banks. On sm_90 the blocks of a cluster may split K
(cluster_reduce.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.numba_cuda.common import ptx, tensor
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint8, uint32
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul.configurations import MmaTile, storage_of
from opwise.backends.numba_cuda.matmul.kernels.cluster_reduce import cluster_reduce, shared_bytes

GROUP = 8  # tile rows in a group: tiles run column by column within it, so that its A and B stay in L2
ZERO = f32(0.0)


def chunk_of(straight: bool) -> Any:
    """Device function lane -> (row of 16, 16-byte chunk of 2) whose address the lane gives to ldmatrix.x4. The four matrices then come in
    the order of mma's registers: down the rows first (`straight`), or across the chunks first."""

    @inlined
    def place(lane: Any) -> Any:
        if straight:
            return lane & 15, lane >> 4
        return (lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1

    return place


def by_k(dtype: str, of_a: bool, width: int, threads: int, at: int, units: int, fetch: Any) -> tuple[Any, Any]:
    """(fill, load) of a factor stored with k contiguous: its tile is `width` rows of 64 bytes, at byte offset `at` of a stage.

    fill(stage, factor, length, k, first, k0, thread) starts the copies of rows first .. first + width of a (length, k) factor. A chunk
    beyond an edge becomes zeros; its source is then the factor's first address, which is not read.
    load(tile, words, half, first, lane) loads mma's fragments for half a stage: `units` groups of 16 rows of the tile, from `first` on.
    """
    size = ptx.BYTES[storage_of(dtype)]
    chunk, each, is_tf32 = 16 // size, width * 4 // threads, dtype == "tfloat32"
    place = chunk_of(of_a)

    @inlined
    def fill(stage: Any, factor: Any, length: Any, k: Any, first: Any, k0: Any, thread: Any) -> None:
        for j in range(each):
            r = (thread + j * threads) // 4
            c = (thread + j * threads) % 4
            row, column = first + r, k0 + c * chunk
            present = k - column if row < length else int64(0)
            source = factor + (row * k + column) * size if present > 0 else factor
            fetch(stage + uint32(at + r * 64 + ((c ^ ((r >> 1) & 3)) << 4)), source, present)

    @inlined
    def load(tile: Any, words: Any, half: Any, first: Any, lane: Any) -> None:
        line, piece = place(lane)
        for i in range(units):
            r = first + i * 16 + line
            tensor.load_matrices(tile + uint32(r * 64 + (((half * 2 + piece) ^ ((r >> 1) & 3)) << 4)), words, i * 4)
        if is_tf32:
            for i in range(4 * units):
                words[i] = tensor.round_tf32(words[i])

    return fill, load


def across_k(dtype: str, of_a: bool, width: int, threads: int, at: int, units: int, fetch: Any) -> tuple[Any, Any]:
    """As by_k, for a (k, length) factor with contiguous rows: its tile is a stage's k rows of `width` elements."""
    is_tf32, size = dtype == "tfloat32", ptx.BYTES[storage_of(dtype)]
    chunk, each, step = 16 // size, width * 4 // threads, 32 // size
    chunks = width // chunk  # in a row of the tile
    # The bits of a row's number that swizzle its chunks. With 64-byte rows (32 columns of 16 bits) two rows span the 32 banks once.
    row_mask = 3 if is_tf32 or chunks < 8 else 7
    row_shift = 1 if is_tf32 else 0
    row_from = 1 if chunks < 8 else 0
    place = chunk_of(not of_a)

    @inlined
    def fill(stage: Any, factor: Any, length: Any, k: Any, first: Any, k0: Any, thread: Any) -> None:
        for j in range(each):
            r = (thread + j * threads) // chunks
            c = (thread + j * threads) % chunks
            row, column = k0 + r, first + c * chunk
            present = length - column if row < k else int64(0)
            source = factor + (row * length + column) * size if present > 0 else factor
            swizzled = c ^ (((r >> row_from) & row_mask) << row_shift)
            fetch(stage + uint32(at + r * (width * size) + (swizzled << 4)), source, present)

    @inlined
    def load(tile: Any, words: Any, half: Any, first: Any, lane: Any) -> None:
        if is_tf32:
            for j in range(4 * units):  # fragment order: A's 8-row halves vary before its k halves, B's k halves before its columns
                deep, eight = ((j >> 1) & 1, (j >> 2) * 2 + (j & 1)) if of_a else (j & 1, j >> 1)
                r = half * step + (lane & 3) + deep * 4
                column = first + eight * 8 + (lane >> 2)
                to = r * (width * 4) + (((column >> 2) ^ ((r & 3) << 1)) << 4) + ((column & 3) << 2)
                words[j] = tensor.round_tf32(tensor.load_word(tile + uint32(to)))
        else:
            line, piece = place(lane)
            for j in range(units):
                r = half * step + line
                to = r * (width * 2) + ((((first >> 3) + j * 2 + piece) ^ ((r >> row_from) & row_mask)) << 4)
                tensor.load_transposed(tile + uint32(to), words, j * 4)

    return fill, load


@cache
def mma_kernel(dtype: str, tile: MmaTile, aligned: bool) -> Kernel:
    """Parameters: addresses of a (m, k), b (k, n), c (m, n), a and b stored as tile.layout says; m, n, k. `aligned`: all rows start at
    multiples of 16 bytes; otherwise elements are copied one by one. Grid: tile.split consecutive blocks for each tile."""
    is_tf32 = dtype == "tfloat32"
    storage = storage_of(dtype)
    size = ptx.BYTES[storage]
    depth = 64 // size  # elements of k in a stage: 64 bytes of a row along k, two steps of mma
    threads, stages = tile.threads, tile.stages
    a_bytes, b_bytes = tile.rows * 64, depth * tile.columns * size
    stage_bytes = a_bytes + b_bytes
    warp_rows, warp_columns = tile.rows // tile.down, tile.columns // tile.across
    down, right = warp_rows // 16, warp_columns // 8  # mma tiles of a warp
    tile_rows, tile_columns, across = tile.rows, tile.columns, tile.across
    counts = (down * right * 4, down * 4, right * 2)
    sums_count, left_count, right_count = counts
    multiply, store_pair, store_one = tensor.MULTIPLY[dtype], tensor.STORE_PAIR[storage], ptx.STORE[storage, False]
    wait = tensor.wait_for_all_but(stages - 2)
    split = tile.split
    each, room, share_of, add_up, owned, leave = cluster_reduce(
        split, threads, down * right
    )  # a unit: a thread's four sums of an m16n8 tile
    shift = split.bit_length() - 1

    @inlined
    def fetch(address: Any, source: Any, present: Any) -> None:
        """Copies a 16-byte chunk to shared memory: its first `present` elements, zeros for the rest."""
        if aligned:
            tensor.copy16(address, source, uint32(16 if present > 0 else 0))
        elif is_tf32 and split > 1:  # asynchronous 4-byte copies: K is long, so their latency is hidden
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

    way_a, way_b = by_k if tile.layout[0] == "N" else across_k, across_k if tile.layout[1] == "N" else by_k
    fill_a, load_a = way_a(dtype, True, tile.rows, threads, 0, down, fetch)
    fill_b, load_b = way_b(dtype, False, tile.columns, threads, a_bytes, right // 2, fetch)

    @inlined
    def fill(stage: Any, a: Any, b: Any, m: Any, n: Any, k: Any, m0: Any, n0: Any, k0: Any, thread: Any) -> None:
        fill_a(stage, a, m, k, m0, k0, thread)
        fill_b(stage, b, n, k, n0, k0, thread)

    @inlined
    def store_unit(c: Any, m: Any, n: Any, upper: Any, column: Any, values: Any, at: Any) -> None:
        """Stores a thread's m16n8 fragment: two adjacent outputs of row `upper` and two of row upper + 8."""
        for h in range(2):
            row = upper + h * 8
            target = c + (row * n + column) * size
            if row < m and column < n:
                if aligned:  # n is even, so both columns exist
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

        # Column by column in groups of GROUP tile rows: 132 blocks read 8 + 132 / 8 strips of A and B at a time, not 1 + 132.
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
            cuda.syncthreads()  # ... for all; and all threads have read the stage that is refilled next
            ahead = t + stages - 1
            if ahead < steps:
                fill(shared + uint32(writing * stage_bytes), a, b, m, n, k, m0, n0, start + ahead * depth, thread)
            tensor.commit()  # an empty group counts too, which keeps `wait` right at the end
            a_tile = shared + uint32(reading * stage_bytes)
            b_tile = a_tile + uint32(a_bytes)
            for half in range(2):
                load_a(a_tile, left, half, warp_m, lane)
                load_b(b_tile, of_right, half, warp_n, lane)
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
