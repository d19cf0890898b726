"""A plan: which kernel of this folder a launch runs, and over what grid. Both CUDA C++ backends launch from one plan.

The kernels' own files say what each kernel asks of shape and alignment; the functions here choose among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Types of a tensor map's elements, as cuda.h numbers them. 16 bits are moved, whatever they are; TFLOAT32 rounds to nearest on the way.
UINT16, FLOAT32, TFLOAT32 = 1, 7, 11
ELEMENT_BYTES = {UINT16: 2, FLOAT32: 4, TFLOAT32: 4}


class Matrix(NamedTuple):
    """A row-major matrix that a kernel reads or writes by boxes, through a tensor map. Boxes with rows of 128 bytes are swizzled, those
    with longer rows lie as they are. `element`: a type of ELEMENT_BYTES."""

    rows: int
    columns: int
    box_rows: int
    box_columns: int
    element: int = UINT16


@dataclass(frozen=True)
class Plan:
    """`kernel` is an extern "C" name; `grid` and `block` are in x, y, z; `shared_bytes` is dynamic shared memory a block.

    A kernel with `scratch_bytes` takes the address of as many bytes of its own as its last parameter. The first `zeroed_bytes` are 0 at
    the first launch, and the kernel leaves them 0.
    A `cooperative` launch runs with all its blocks at once or not at all, so that they may wait for each other.
    The kernel's first parameters are, instead of as many addresses, tensor maps of `matrices` (zeros outside).
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    scratch_bytes: int = 0
    matrices: tuple[Matrix, ...] = ()
    zeroed_bytes: int = 16
    cooperative: bool = False


ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
VECTOR_BYTES = 16

MAP_THREADS = 256  # as in elementwise.cuh
PIECES = {True: 1, False: 8}  # a thread: 16-byte pieces, or single elements

MEAN_THREADS, MEAN_PIECES, MEAN_BLOCKS_PER_SM = 512, 4, 3  # as in mean.cu

SOFTMAX_WARP_THREADS, SOFTMAX_LONG_THREADS = 128, 1024  # as in softmax.cu
# (elements a thread, threads at most) of a block: the first that holds the row is taken. By an element's bytes; 0: not in 16-byte pieces.
# Two blocks of 512 threads overlap one's loads with the other's stores, one block of 1024 cannot. In 16 bits 8 elements are one piece a
# thread, too little on the way, and 32 are twice the registers of four pieces.
SOFTMAX_BLOCKS = {4: ((8, 256), (16, 512), (32, 512)), 2: ((16, 512),), 0: ((8, 256), (16, 512), (32, 512))}
# By an element's bytes, columns above and up to which one block keeps a row as it is, in registers and shared memory.
SOFTMAX_KEPT = {4: (16384, 32768), 2: (8192, 32768)}
SOFTMAX_CLUSTER_PIECES = 8  # in registers, a thread: as in softmax_cluster.cuh
KIB = 1024
# (KiB of a row at most, blocks a row, threads a block), by an H200's times. What registers do not hold is in shared memory: a
# multiprocessor has about 1024 threads and up to 256 KiB on the way, in two to five blocks, of which others load while one waits for its
# sums; only a row above 2 MiB leaves it one block. 192 threads: as in softmax_cluster.cuh, where such blocks begin apart.
SOFTMAX_CLUSTERS = ((256, 2, 512), (384, 4, 512), (512, 8, 192), (1024, 8, 512), (2048, 16, 512), (4096, 16, 1024))
# As in softmax_stream.cu: warps that compute, beside two that exchange sums; 16-byte pieces of a lane; rows in shared memory; rows whose
# sums have places.
SOFTMAX_STREAM_WARPS, SOFTMAX_STREAM_PIECES, SOFTMAX_STREAM_SLOTS, SOFTMAX_STREAM_ROWS = 16, 4, 7, 12
# By an element's bytes, KiB of a row: up to here clusters are quicker, since a multiprocessor has blocks of several rows.
SOFTMAX_STREAM_ABOVE = {4: 1024, 2: 512}
MOST_DYNAMIC_SHARED = 224 * 1024  # of the 227 KiB of an sm_90 block


def _blocks(work: int, per_block: int) -> int:
    return max(-(-work // per_block), 1)


def elementwise(op: str, n: int, dtype: str, aligned: bool) -> Plan:
    """square or gelu of n elements. `aligned`: both addresses are multiples of 16 bytes."""
    width = VECTOR_BYTES if aligned else ITEM_BYTES[dtype]
    pieces = n * ITEM_BYTES[dtype] // width
    return Plan(f"{op}_{dtype}_v{width}", (_blocks(pieces, MAP_THREADS * PIECES[aligned]), 1, 1), (MAP_THREADS, 1, 1))


def mean(n: int, dtype: str, sm_count: int) -> Plan:
    """One wave of blocks at most, which walk through x together."""
    pieces = n * ITEM_BYTES[dtype] // VECTOR_BYTES
    blocks = min(_blocks(pieces, MEAN_THREADS * MEAN_PIECES), MEAN_BLOCKS_PER_SM * sm_count)
    return Plan(f"mean_{dtype}", (blocks, 1, 1), (MEAN_THREADS, 1, 1), scratch_bytes=16 + 4 * blocks)


def softmax(rows: int, columns: int, dtype: str, aligned: bool, sm_count: int, capability: tuple[int, int]) -> Plan:
    """`aligned`: both addresses are multiples of 16 bytes. Rows that are not fall back to single elements."""
    size = ITEM_BYTES[dtype]
    vectors = aligned and columns * size % VECTOR_BYTES == 0
    width = VECTOR_BYTES if vectors else size
    for elements in (8, 16, 32):
        if columns <= 32 * elements:
            blocks = _blocks(rows, SOFTMAX_WARP_THREADS // 32)
            return Plan(f"softmax_{dtype}_warp{elements}_v{width}", (blocks, 1, 1), (SOFTMAX_WARP_THREADS, 1, 1))
    above, most = SOFTMAX_KEPT[size]
    kept = vectors and above < columns <= most
    for elements, threads in () if kept else SOFTMAX_BLOCKS[size if vectors else 0]:
        if columns <= elements * threads:
            warps = _blocks(columns, elements * 32)
            return Plan(f"softmax_{dtype}_block{elements}_v{width}", (rows, 1, 1), (32 * warps, 1, 1))
    stream = _softmax_stream(rows, columns * size, dtype, sm_count) if vectors and capability == (9, 0) else None
    if stream is not None:
        return stream
    if kept or (vectors and capability >= (9, 0)):
        return _softmax_cluster(rows, columns * size, dtype, sm_count, capability)
    return Plan(f"softmax_{dtype}_long_v{width}", (rows, 1, 1), (SOFTMAX_LONG_THREADS, 1, 1))


def _softmax_cluster(rows: int, row_bytes: int, dtype: str, sm_count: int, capability: tuple[int, int]) -> Plan:
    """A row in the registers and the shared memory of one block or, which only sm_90 and later can, of several."""
    one = row_bytes <= 128 * KIB and not (rows * 16 <= sm_count and capability >= (9, 0))  # else too few rows to fill the GPU
    if one:
        blocks, threads = 1, _threads_of_one_block(row_bytes, ITEM_BYTES[dtype], capability)
        threads = min(threads, 32 * _blocks(row_bytes, 32 * SOFTMAX_CLUSTER_PIECES * VECTOR_BYTES))  # none without a piece
    else:
        holding = [choice for choice in SOFTMAX_CLUSTERS if row_bytes <= choice[0] * KIB and (choice[1] == 16 or rows * 16 > sm_count)]
        _, blocks, threads = (holding or SOFTMAX_CLUSTERS[-1:])[0]
    part = -(-row_bytes // (blocks * 128)) * 128
    shared = min(max(part - threads * SOFTMAX_CLUSTER_PIECES * VECTOR_BYTES, 0), MOST_DYNAMIC_SHARED)
    at_once = sm_count * (1024 // threads) // blocks
    if blocks == 16 and rows > at_once:
        return Plan(f"softmax_{dtype}_queue16_v16", (16 * at_once, 1, 1), (threads, 1, 1), shared, scratch_bytes=16)
    return Plan(f"softmax_{dtype}_cluster{blocks}_v16", (rows * blocks, 1, 1), (threads, 1, 1), shared)


def _threads_of_one_block(row_bytes: int, size: int, capability: tuple[int, int]) -> int:
    """1024 threads hold 128 KiB in registers, which leaves a multiprocessor one block: in 16 bits its exponentials want others beside it.
    320 threads, three blocks a multiprocessor, ask for shared memory that GPUs before sm_90 have not."""
    if size == 4 and row_bytes > 96 * KIB:
        return 1024
    if capability < (9, 0):
        return 256 if row_bytes <= 64 * KIB else 512
    return 256 if row_bytes <= 48 * KIB else 320 if row_bytes <= 96 * KIB else 512


def _softmax_stream(rows: int, row_bytes: int, dtype: str, sm_count: int) -> Plan | None:
    """Groups of blocks that take rows in turns, a block a multiprocessor and all at once: for rows that they hold a place of, up to 4 MiB
    on 132 multiprocessors. Fewer rows than groups are spread over more blocks each."""
    pieces, warps = row_bytes // VECTOR_BYTES, SOFTMAX_STREAM_WARPS
    place = warps * SOFTMAX_STREAM_PIECES * 32  # what a block holds of a row, in pieces
    groups = min(sm_count // _blocks(pieces, place), rows)
    if row_bytes <= SOFTMAX_STREAM_ABOVE[ITEM_BYTES[dtype]] * KIB or groups == 0:
        return None
    part = -(-pieces // (sm_count // groups * warps * 8)) * 8  # of a warp, in whole cache lines, if all multiprocessors take part
    blocks = _blocks(pieces, part * warps)
    scratch = VECTOR_BYTES * (SOFTMAX_STREAM_ROWS * blocks + 1) * groups  # a pair a block and row in flight, and a counter a group
    shared = SOFTMAX_STREAM_SLOTS * place * VECTOR_BYTES
    return Plan(f"softmax_{dtype}_stream_v16", (blocks, groups, 1), (32 * (warps + 2), 1, 1), shared, scratch, zeroed_bytes=scratch,
                cooperative=True)  # fmt: skip


def square_textbook(rows: int, columns: int) -> Plan:
    return Plan("square_float32_textbook", (_blocks(columns, 16), _blocks(rows, 16), 1), (16, 16, 1))


def gelu_textbook(n: int) -> Plan:
    return Plan("gelu_float32_textbook", (_blocks(n, 1024), 1, 1), (1024, 1, 1))
