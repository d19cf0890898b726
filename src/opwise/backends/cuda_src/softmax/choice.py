"""Which kernel of softmax.cu or stream.cu a launch runs by itself, and over what grid: by the length of a row."""

from __future__ import annotations

from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Plan, blocks_for

WARP_THREADS, LONG_THREADS = 128, 1024  # as in softmax.cu
# Rows from which one of FULL columns has a block, whose warps it fills, instead of a warp: they have fewer pieces each, but more find room.
# By an element's bytes.
FULL, FULL_FROM = 1024, {4: 1, 2: 4096}
# (elements a thread, threads at most) of a block: the first that holds the row is taken. By an element's bytes; 0: not in 16-byte pieces.
# Two blocks of 512 threads overlap one's loads with the other's stores, one block of 1024 cannot.
BLOCKS = {4: ((8, 256), (16, 512), (32, 512)), 2: ((16, 512),), 0: ((8, 256), (16, 512), (32, 512))}
# By an element's bytes, columns above and up to which one block keeps a row as it was read, in registers and shared memory.
KEPT = {4: (16384, 32768), 2: (8192, 32768)}
CLUSTER_PIECES = 8  # in registers, a thread: as in cluster.cuh
KIB = 1024
# Likewise, KiB of a row above and up to which two small blocks share it, where rows are many, though one holds it in registers.
SHARED_EARLY = {4: (28, 32), 2: (0, 0)}
# Likewise, columns and rows from which one block of so many threads keeps a row as it is, which else has few pieces a thread in registers.
KEPT_WHOLE = {4: (4096, 4096, 256), 2: (0, 0, 0)}
# By an element's bytes, KiB of a row that one block has to itself, and above which it has not where rows are many.
ONE_BLOCK, OF_FEW = {4: 128, 2: 96}, {4: 96, 2: 72}
# By an element's bytes, (KiB of a row at most, blocks a row, threads a block, waves of such clusters from which on), by an H200's times.
# What registers do not hold is in shared memory: a multiprocessor has up to 320 KiB on the way, in four to ten blocks, of which others load
# while one waits for its sums.
SMALL = ((384, 8, 160, 3), (512, 8, 192, 3), (1024, 16, 192, 3))
CLUSTERS = {
    4: ((128, 2, 192, 1), (256, 8, 96, 3), *SMALL),
    2: ((80, 2, 160, 1), (96, 8, 128, 3), (128, 2, 192, 3), (160, 4, 160, 3), (192, 8, 256, 9), (256, 4, 192, 3), *SMALL),
}
SMALL_THREADS = 256  # and less: kernels softmax_small of cluster.cuh, each of one number of threads
# Likewise, for fewer rows: blocks that spread evenly, one or two a multiprocessor.
CLUSTERS_OF_FEW = ((128, 2, 192), (256, 2, 512), (384, 4, 512), (512, 8, 192), (1024, 8, 512), (2048, 16, 512), (4096, 16, 1024))
# As in stream.cu: warps that compute, beside two that exchange sums; 16-byte pieces of a lane; rows in shared memory; rows whose
# sums have places.
STREAM_WARPS, STREAM_PIECES, STREAM_SLOTS, STREAM_ROWS = 16, 4, 7, 12
# By an element's bytes, KiB of a row: up to here clusters are quicker, since a multiprocessor has blocks of several rows.
STREAM_ABOVE = {4: 1024, 2: 512}
STREAM_ON = (9, 0)
MOST_DYNAMIC_SHARED = 224 * KIB  # of the 227 KiB of an sm_90 block
OF_LARGE_CLUSTERS = (9, 10)  # compute capabilities whose clusters may have 16 blocks, and blocks MOST_DYNAMIC_SHARED


def softmax(rows: int, columns: int, dtype: str, aligned: bool, sm_count: int, capability: tuple[int, int]) -> Plan:
    """`aligned`: both addresses are multiples of 16 bytes. Rows that are not fall back to single elements."""
    size = ITEM_BYTES[dtype]
    vectors = aligned and columns * size % VECTOR_BYTES == 0
    width = VECTOR_BYTES if vectors else size
    for elements in (8, 16, 32):
        if columns <= 32 * elements and not (vectors and columns == FULL and rows >= FULL_FROM[size]):
            blocks = blocks_for(rows, WARP_THREADS // 32)
            return Plan(f"softmax_{dtype}_warp{elements}_v{width}", (blocks, 1, 1), (WARP_THREADS, 1, 1))
    whole, many, threads = KEPT_WHOLE[size]
    if vectors and columns == whole and rows >= many:
        return of_clusters(rows, columns * size, dtype, 1, threads)
    large = capability[0] in OF_LARGE_CLUSTERS
    above, most = KEPT[size]
    kept = vectors and above < columns <= most
    small = _small_blocks(rows, columns * size, size, sm_count) if vectors and large else None
    for elements, threads in () if kept or small else BLOCKS[size if vectors else 0]:
        if columns <= elements * threads:
            warps = blocks_for(columns, elements * 32)
            return Plan(f"softmax_{dtype}_block{elements}_v{width}", (rows, 1, 1), (32 * warps, 1, 1))
    streamed = vectors and capability == STREAM_ON and small is None and columns * size > STREAM_ABOVE[size] * KIB
    if streamed and (stream := of_stream(rows, columns * size, dtype, sm_count)):
        return stream
    if kept or (vectors and large):
        return _cluster(rows, columns * size, dtype, sm_count, capability, small)
    return Plan(f"softmax_{dtype}_long_v{width}", (rows, 1, 1), (LONG_THREADS, 1, 1))


def _small_blocks(rows: int, row_bytes: int, size: int, sm_count: int) -> tuple[int, int] | None:
    """(blocks a row, threads a block) where there are rows enough for small blocks."""
    above, most = SHARED_EARLY[size]
    shared = row_bytes > OF_FEW[size] * KIB or above * KIB < row_bytes <= most * KIB
    for most, blocks, threads, waves in CLUSTERS[size] if shared else ():
        if row_bytes <= most * KIB:
            return (blocks, threads) if rows >= waves * (sm_count * (1024 // threads) // blocks) else None
    return None


def _cluster(rows: int, row_bytes: int, dtype: str, sm_count: int, capability: tuple[int, int], small: tuple[int, int] | None) -> Plan:
    """A row in the registers and the shared memory of one block or, which only sm_90 and later can, of several."""
    size, spread = ITEM_BYTES[dtype], rows * 16 <= sm_count and capability[0] in OF_LARGE_CLUSTERS  # too few rows to fill the GPU
    if small is not None:
        blocks, threads = small
    elif row_bytes <= ONE_BLOCK[size] * KIB and not spread:
        blocks, threads = 1, _threads_of_one_block(row_bytes, size, capability)
        threads = min(threads, 32 * blocks_for(row_bytes, 32 * CLUSTER_PIECES * VECTOR_BYTES))  # none without a piece
    else:
        holding = [choice for choice in CLUSTERS_OF_FEW if row_bytes <= choice[0] * KIB and (choice[1] == 16 or not spread)]
        _, blocks, threads = (holding or CLUSTERS_OF_FEW[-1:])[0]
    return of_clusters(rows, row_bytes, dtype, blocks, threads)


def of_clusters(rows: int, row_bytes: int, dtype: str, blocks: int, threads: int) -> Plan:
    """A row by so many blocks, small ones only if they hold all of it."""
    part = -(-row_bytes // (blocks * 128)) * 128
    shared = min(max(part - threads * CLUSTER_PIECES * VECTOR_BYTES, 0), MOST_DYNAMIC_SHARED)
    known = f"_{threads}" if blocks > 1 and threads <= SMALL_THREADS else ""
    return Plan(f"softmax_{dtype}_cluster{blocks}{known}_v16", (rows * blocks, 1, 1), (threads, 1, 1), shared)


def _threads_of_one_block(row_bytes: int, size: int, capability: tuple[int, int]) -> int:
    """1024 threads hold 128 KiB in registers, which leaves a multiprocessor one block: in 16 bits its exponentials want others beside it.
    320 threads, three blocks a multiprocessor, ask for shared memory that other GPUs than OF_LARGE_CLUSTERS have not."""
    if size == 4 and row_bytes > 96 * KIB:
        return 1024
    if capability[0] not in OF_LARGE_CLUSTERS:
        return 256 if row_bytes <= 64 * KIB else 512
    return 256 if row_bytes <= 48 * KIB else 320


def of_stream(rows: int, row_bytes: int, dtype: str, sm_count: int) -> Plan | None:
    """Groups of blocks that take rows in turns, a block a multiprocessor and all at once: for rows that they hold a place of, up to 4 MiB
    on 132 multiprocessors. Fewer rows than groups are spread over more blocks each."""
    pieces, warps = row_bytes // VECTOR_BYTES, STREAM_WARPS
    place = warps * STREAM_PIECES * 32  # what a block holds of a row, in pieces
    groups = min(sm_count // blocks_for(pieces, place), rows)
    if groups == 0:
        return None
    part = -(-pieces // (sm_count // groups * warps * 8)) * 8  # of a warp, in whole cache lines, if all multiprocessors take part
    blocks = blocks_for(pieces, part * warps)
    scratch = VECTOR_BYTES * (STREAM_ROWS * blocks + 1) * groups  # a pair a block and row in flight, and a launch's number a group
    shared = STREAM_SLOTS * place * VECTOR_BYTES
    return Plan(f"softmax_{dtype}_stream_v16", (blocks, groups, 1), (32 * (warps + 2), 1, 1), shared, scratch, zeroed_bytes=scratch,
                of_its_own=f"stream {blocks} {groups}", cooperative=True)  # fmt: skip
