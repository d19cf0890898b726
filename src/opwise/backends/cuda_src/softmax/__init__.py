"""Plans of softmax in CUDA C++: `plan` chooses the kernel of softmax.cu or stream.cu for a launch. `offered` lists all kernels that can
compute the rows, for `opwise tune` and its tables.

A name is the kernel's and, if a launch may choose it, the number of threads: warp8, block16, cluster8x192, stream, long.
"""

from __future__ import annotations

from opwise.backends import staged_rows
from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Plan, blocks_for
from opwise.backends.cuda_src.softmax import choice
from opwise.backends.cuda_src.softmax.choice import CLUSTER_PIECES, CLUSTERS_OF_FEW, KIB, MOST_DYNAMIC_SHARED, OF_LARGE_CLUSTERS
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "cuda_src/softmax"
ONE_BLOCK_THREADS = (256, 320, 512, 1024)
# (blocks per row, threads per block) of all entries of choice.SMALL and CLUSTERS_OF_FEW.
SHARED = tuple(sorted({(blocks, choice.SMALL_THREADS) for _, blocks in choice.SMALL} | {few[1:] for few in CLUSTERS_OF_FEW}))
MOST_THREADS = 512  # of a block with its row in registers, as in softmax.cu
SMALLER_SHARED = 64 * KIB  # shared memory of the blocks of 1024 threads, on GPUs that are not OF_LARGE_CLUSTERS
LEAST_PIECES = 4  # per thread; with fewer, half of its registers are unused


def plan(
    rows: int, columns: int, dtype: str, aligned: bool, sm_count: int, capability: tuple[int, int], choices: Choices = SHIPPED
) -> Plan:
    """The launch: the choice of the tuned table for these rows, else choice.softmax, which has the same parameters."""
    if choices is not SHIPPED:
        found = offered(rows, columns, dtype, aligned, sm_count, capability)
        if name := choices.pick(dtype, (rows, columns), found):
            return found[name]
    return choice.softmax(rows, columns, dtype, aligned, sm_count, capability)


def name_of(launch: Plan) -> str:
    kind = launch.kernel.split("_")[2]
    return f"{kind}x{launch.block[0]}" if kind.startswith("cluster") else kind


def offered(rows: int, columns: int, dtype: str, aligned: bool, sm_count: int, capability: tuple[int, int]) -> dict[str, Plan]:
    """Name -> plan, of all kernels that can compute the rows; the first is choice.softmax's."""
    size = ITEM_BYTES[dtype]
    vectors = aligned and columns * size % VECTOR_BYTES == 0
    plans = [choice.softmax(rows, columns, dtype, aligned, sm_count, capability)]
    plans += [choice.of_short(rows, columns, dtype)] if aligned and columns <= staged_rows.LONGEST else []
    plans += _in_registers(rows, columns, dtype, vectors)
    if vectors and columns > 1024:
        plans += _in_clusters(rows, columns * size, dtype, sm_count, capability)
    if columns > 1024 and capability[0] not in OF_LARGE_CLUSTERS:
        plans.append(choice.of_long(rows, dtype, VECTOR_BYTES if vectors else size))
    if vectors and capability == choice.STREAM_ON and columns * size > choice.ONE_BLOCK[size] * KIB:
        plans += [stream for stream in [choice.of_stream(rows, columns * size, dtype, sm_count)] if stream]
    found: dict[str, Plan] = {}
    for launch in plans:
        found.setdefault(name_of(launch), launch)
    return found


def _in_registers(rows: int, columns: int, dtype: str, vectors: bool) -> list[Plan]:
    """A row in the fewest lanes of a warp that hold it, and in the smallest blocks of at least two warps that hold it."""
    width = VECTOR_BYTES if vectors else ITEM_BYTES[dtype]
    found = [choice.of_warp(rows, columns, dtype, width)] if columns <= choice.LONGEST_OF_WARP else []
    for elements, _ in choice.BLOCKS[vectors]:
        if 64 <= 32 * blocks_for(columns, elements * 32) <= MOST_THREADS:
            found.append(choice.of_block(rows, columns, dtype, elements, width))
    return found


def _in_clusters(rows: int, row_bytes: int, dtype: str, sm_count: int, capability: tuple[int, int]) -> list[Plan]:
    """A row in one block or in a cluster, if an SM can hold 1024 threads of such blocks and each thread has enough pieces."""
    large, found = capability[0] in OF_LARGE_CLUSTERS, []
    for blocks, threads in (*((1, threads) for threads in ONE_BLOCK_THREADS), *(SHARED if large else ())):
        part = -(-row_bytes // (blocks * 128)) * 128
        shared = max(part - threads * CLUSTER_PIECES * VECTOR_BYTES, 0)
        busy = part >= threads * LEAST_PIECES * VECTOR_BYTES or (blocks == 16 and rows * 16 <= sm_count)
        if busy and shared * (1024 // threads) <= (MOST_DYNAMIC_SHARED if large else SMALLER_SHARED):
            found.append(choice.of_clusters(rows, row_bytes, dtype, blocks, threads))
    return found
