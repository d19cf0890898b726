"""The default choice of kernel (softmax.cu, stream.cu) and grid, by the number of rows and columns. Times are in docs/lab/softmax.md."""

from __future__ import annotations

from opwise.backends import staged_rows
from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Plan, blocks_for

KIB = 1024
WARP_THREADS, LONG_THREADS, LONGEST_OF_WARP = 128, 1024, 1024  # threads of a block, as in softmax.cu; columns
# By whether the row is read in 16-byte pieces: (elements per thread, most threads) of a block; the first that holds the row is taken.
# Two blocks of 512 threads on an SM overlap loads with stores; one block of 1024 does not.
BLOCKS = {True: ((16, 512),), False: ((8, 256), (16, 512), (32, 512))}
CLUSTER_PIECES = 8  # in registers, per thread: as in cluster.cuh
# For many rows longer than registers hold: (most KiB of a row, blocks per row) in blocks of SMALL_THREADS, the rest in shared memory. An SM
# has five blocks, with up to 320 KiB in flight: some load while another waits for its sums.
SMALL = ((32, 2), (64, 4), (128, 8), (1024, 16))
SMALL_THREADS, SMALL_WAVES = 192, 3  # fixed in the kernel; waves from which on rows are many
# For few rows, or GPUs without large clusters: the longest row of one block, KiB, by the element's bytes.
ONE_BLOCK = {4: 128, 2: 96}
# For few rows: (most KiB of a row, blocks per row, threads per block); blocks spread evenly, one or two per SM.
CLUSTERS_OF_FEW = ((128, 2, 192), (256, 2, 512), (384, 4, 512), (512, 8, 192), (1024, 8, 512), (2048, 16, 512), (4096, 16, 1024))
# As in stream.cu: warps that compute, besides two that exchange sums; 16-byte pieces per lane; rows in shared memory; rows whose sums are
# stored.
STREAM_WARPS, STREAM_PIECES, STREAM_SLOTS, STREAM_ROWS = 16, 4, 7, 12
STREAM_ABOVE = 2048  # KiB of a row; up to here clusters are as fast, since an SM has blocks of several rows
STREAM_ON = (9, 0)
MOST_DYNAMIC_SHARED = 224 * KIB  # of the 227 KiB of an sm_90 block
OF_LARGE_CLUSTERS = (9, 10)  # major compute capabilities with clusters of 16 blocks and MOST_DYNAMIC_SHARED bytes of shared memory


def softmax(rows: int, columns: int, dtype: str, aligned: bool, sm_count: int, capability: tuple[int, int]) -> Plan:
    """The plan for softmax over rows x columns. aligned: both addresses are multiples of 16 bytes. Unaligned rows are read by elements."""
    size, row_bytes = ITEM_BYTES[dtype], columns * ITEM_BYTES[dtype]
    vectors, large = aligned and row_bytes % VECTOR_BYTES == 0, capability[0] in OF_LARGE_CLUSTERS
    if aligned and staged_rows.takes(rows, columns, size):
        return of_short(rows, columns, dtype)
    if columns <= LONGEST_OF_WARP:
        return of_warp(rows, columns, dtype, VECTOR_BYTES if vectors else size)
    if (elements := elements_of_block(columns, vectors)) is not None:
        return of_block(rows, columns, dtype, elements, VECTOR_BYTES if vectors else size)
    if not vectors:
        return of_long(rows, dtype, size)
    if large and (blocks := _small_blocks(rows, row_bytes, sm_count)):
        return of_clusters(rows, row_bytes, dtype, blocks, SMALL_THREADS)
    streamed = capability == STREAM_ON and row_bytes > STREAM_ABOVE * KIB
    if streamed and (stream := of_stream(rows, row_bytes, dtype, sm_count)):
        return stream
    if large or row_bytes <= ONE_BLOCK[size] * KIB:
        return _cluster(rows, row_bytes, dtype, sm_count, capability)
    return of_long(rows, dtype, VECTOR_BYTES)


def of_warp(rows: int, columns: int, dtype: str, width: int) -> Plan:
    """A row in a warp's registers: the fewest elements per lane that hold it; with 16-byte pieces then also the fewest lanes."""
    piece = width // ITEM_BYTES[dtype]
    elements = next(each for each in (4, 8, 16, 32) if each >= piece and columns <= 32 * each)
    lanes = 32 if piece == 1 else 1 << (blocks_for(columns, elements) - 1).bit_length()
    blocks = blocks_for(rows, WARP_THREADS // lanes)
    return Plan(f"softmax_{dtype}_warp{elements}_v{width}", (blocks, 1, 1), (lanes, WARP_THREADS // lanes, 1))


def of_short(rows: int, columns: int, dtype: str) -> Plan:
    """Short rows staged in shared memory (short.cuh). Both tensors must begin on 16 bytes."""
    tile, size = staged_rows.tile_of(columns, ITEM_BYTES[dtype]), ITEM_BYTES[dtype]
    shared = blocks_for(tile.height * columns * size, VECTOR_BYTES) * VECTOR_BYTES
    grid, block = (blocks_for(rows, tile.height), 1, 1), (staged_rows.THREADS, 1, 1)
    return Plan(f"softmax_{dtype}_short{tile.lanes}x{tile.elements}", grid, block, shared, shares=(tile.height, tile.turn))


def elements_of_block(columns: int, vectors: bool) -> int | None:
    """Elements per thread of the first of BLOCKS that holds the row; None if none does."""
    return next((elements for elements, threads in BLOCKS[vectors] if columns <= elements * threads), None)


def of_block(rows: int, columns: int, dtype: str, elements: int, width: int) -> Plan:
    """A row in a block's registers, in the fewest warps that hold it."""
    return Plan(f"softmax_{dtype}_block{elements}_v{width}", (rows, 1, 1), (32 * blocks_for(columns, elements * 32), 1, 1))


def of_long(rows: int, dtype: str, width: int) -> Plan:
    return Plan(f"softmax_{dtype}_long_v{width}", (rows, 1, 1), (LONG_THREADS, 1, 1))


def _small_blocks(rows: int, row_bytes: int, sm_count: int) -> int | None:
    """Blocks per row by SMALL; None if the row is too long or the rows are too few."""
    blocks = next((blocks for most, blocks in SMALL if row_bytes <= most * KIB), None)
    return blocks if blocks and rows * blocks >= SMALL_WAVES * sm_count * (1024 // SMALL_THREADS) else None


def _cluster(rows: int, row_bytes: int, dtype: str, sm_count: int, capability: tuple[int, int]) -> Plan:
    """A row in the registers and shared memory of one block or of a cluster."""
    size, spread = ITEM_BYTES[dtype], rows * 16 <= sm_count and capability[0] in OF_LARGE_CLUSTERS  # too few rows to fill the GPU
    if row_bytes <= ONE_BLOCK[size] * KIB and not spread:
        threads = _threads_of_one_block(row_bytes, size, capability)
        blocks, threads = 1, min(threads, 32 * blocks_for(row_bytes, 32 * CLUSTER_PIECES * VECTOR_BYTES))  # every warp has a piece
    else:
        holding = [choice for choice in CLUSTERS_OF_FEW if row_bytes <= choice[0] * KIB and (choice[1] == 16 or not spread)]
        _, blocks, threads = (holding or CLUSTERS_OF_FEW[-1:])[0]
    return of_clusters(rows, row_bytes, dtype, blocks, threads)


def of_clusters(rows: int, row_bytes: int, dtype: str, blocks: int, threads: int) -> Plan:
    """A row in `blocks` blocks of `threads` threads. Several blocks of SMALL_THREADS must hold the whole row."""
    part = -(-row_bytes // (blocks * 128)) * 128
    shared = min(max(part - threads * CLUSTER_PIECES * VECTOR_BYTES, 0), MOST_DYNAMIC_SHARED)
    known = f"_{threads}" if blocks > 1 and threads == SMALL_THREADS else ""
    return Plan(f"softmax_{dtype}_cluster{blocks}{known}_v16", (rows * blocks, 1, 1), (threads, 1, 1), shared)


def _threads_of_one_block(row_bytes: int, size: int, capability: tuple[int, int]) -> int:
    """1024 threads hold 128 KiB in registers, one block per SM. 16-bit rows have twice the exponentials: smaller blocks are faster.
    320 threads, three blocks per SM, need more shared memory than GPUs other than OF_LARGE_CLUSTERS have."""
    if size == 4 and row_bytes > 96 * KIB:
        return 1024
    if capability[0] not in OF_LARGE_CLUSTERS:
        return 256 if row_bytes <= 64 * KIB else 512
    return 256 if row_bytes <= 48 * KIB else 320


def of_stream(rows: int, row_bytes: int, dtype: str, sm_count: int) -> Plan | None:
    """Groups of blocks that take rows in turn, one block per SM, cooperative. None if all SMs cannot hold a row (4 MiB on 132 SMs). If
    there are fewer rows than groups, a row has more blocks."""
    pieces, warps = row_bytes // VECTOR_BYTES, STREAM_WARPS
    place = warps * STREAM_PIECES * 32  # most pieces of a row in a block
    groups = min(sm_count // blocks_for(pieces, place), rows)
    if groups == 0:
        return None
    part = -(-pieces // (sm_count // groups * warps * 8)) * 8  # pieces of a warp, in whole cache lines, if all SMs take part
    blocks = blocks_for(pieces, part * warps)
    scratch = VECTOR_BYTES * (STREAM_ROWS * blocks + 1) * groups  # per group: a pair per block and row in flight, the launch's number
    shared = STREAM_SLOTS * place * VECTOR_BYTES
    return Plan(f"softmax_{dtype}_stream_v16", (blocks, groups, 1), (32 * (warps + 2), 1, 1), shared, scratch, zeroed_bytes=scratch,
                of_its_own=f"stream {blocks} {groups}", cooperative=True)  # fmt: skip
