"""A plan: which kernel of this folder a launch runs, and over what grid. Both CUDA C++ backends launch from one plan.

The kernels' own files say what each kernel asks of shape and alignment; the functions here choose among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Types of a tensor map's elements, as cuda.h numbers them. 16 bits are moved, whatever they are; TFLOAT32 rounds to nearest on the way.
UINT16, FLOAT32, TFLOAT32 = 1, 7, 11
ELEMENT_BYTES = {UINT16: 2, FLOAT32: 4, TFLOAT32: 4}


class Matrix(NamedTuple):
    """A row-major matrix that a kernel reads or writes by boxes, through a tensor map. Boxes with rows of 64 or 128 bytes are swizzled by
    as many, others lie as they are. `element`: a type of ELEMENT_BYTES.

    `classes`: 0, and address and rows are multiples of 16 bytes; or how many maps tell rows that begin anywhere, as in residue_maps.cuh: a
    power of two, such that as many rows are a multiple of 16 bytes. The box is then that of one map.
    """

    rows: int
    columns: int
    box_rows: int
    box_columns: int
    element: int = UINT16
    classes: int = 0


@dataclass(frozen=True)
class Plan:
    """`kernel` is an extern "C" name; `grid` and `block` are in x, y, z; `shared_bytes` is dynamic shared memory a block.

    A kernel with `scratch_bytes` takes the address of as many bytes of its own as its last parameter. The first `zeroed_bytes` are 0 at
    the first launch, and the kernel leaves them 0, or as launches `of_its_own` name go on from: these share scratch with no others.
    A `cooperative` launch runs with all its blocks at once or not at all, so that they may wait for each other.
    `shares`: parameters behind the workload's sizes, each an int64: how its blocks share the work.
    The kernel's first parameters are, instead of as many addresses, tensor maps of `matrices` (zeros outside).
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    scratch_bytes: int = 0
    matrices: tuple[Matrix, ...] = ()
    zeroed_bytes: int = 16
    of_its_own: str = ""
    cooperative: bool = False
    shares: tuple[int, ...] = ()


ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
VECTOR_BYTES = 16

MAP_THREADS = 256  # as in elementwise.cuh
PIECES = {True: 1, False: 8}  # a thread: 16-byte pieces, or single elements

MEAN_THREADS, MEAN_PIECES, MEAN_BLOCKS_PER_SM = 512, 4, 3  # as in mean.cu
# Steps of 32 KiB a block, from so many turns of a wave on, below them one. Numba on an H200, us by 1, 2, 4, 8: 64 MiB 17.42, 17.44, -, -;
# 128 MiB -, 31.93, 31.73, -; 256 MiB -, 61.41, 60.49, -; 1 GiB -, -, 235.58, 234.69.
MEAN_LONGER = ((8, 4), (64, 8))
MEAN_MOST_BLOCKS = 8192  # of more than one step: with those of one, less than 64 KiB of sums


def blocks_for(work: int, per_block: int) -> int:
    return max(-(-work // per_block), 1)


def elementwise(op: str, n: int, dtype: str, aligned: bool) -> Plan:
    """square or gelu of n elements. `aligned`: both addresses are multiples of 16 bytes."""
    width = VECTOR_BYTES if aligned else ITEM_BYTES[dtype]
    pieces = n * ITEM_BYTES[dtype] // width
    return Plan(f"{op}_{dtype}_v{width}", (blocks_for(pieces, MAP_THREADS * PIECES[aligned]), 1, 1), (MAP_THREADS, 1, 1))


class Steps(NamedTuple):
    """How blocks share a mean's steps in order of memory: `each` for the first `large` blocks, one for those behind them."""

    each: int
    large: int
    blocks: int

    @property
    def scratch_bytes(self) -> int:
        """A word a block: a power of two, so that many sizes of x share few shelves."""
        return max(1 << (4 * self.blocks - 1).bit_length(), 1024)


def mean_steps(steps: int, wave: int, longer: Sequence[tuple[int, int]] = MEAN_LONGER) -> Steps:
    """Of a GPU that has room for `wave` blocks. longer: from so many turns of a wave on, so many steps a block. While the last long blocks
    are at work, of which half is left on average, blocks of one step fill the places of those that end: they have as many steps as that,
    and all end together."""
    each = max((many for turns, many in longer if steps >= turns * wave), default=1)
    single = wave * each // 2
    each = max(each, -(-steps // MEAN_MOST_BLOCKS))
    large = max(steps - single, 0) // each if each > 1 else 0
    return Steps(each, large, steps - large * (each - 1))


def mean(n: int, dtype: str, sm_count: int) -> Plan:
    found = mean_steps(blocks_for(n * ITEM_BYTES[dtype] // VECTOR_BYTES, MEAN_THREADS * MEAN_PIECES), MEAN_BLOCKS_PER_SM * sm_count)
    room = found.scratch_bytes
    return Plan(f"mean_{dtype}", (found.blocks, 1, 1), (MEAN_THREADS, 1, 1), scratch_bytes=room, zeroed_bytes=room,
                shares=(found.each | found.large << 32,))  # fmt: skip


def gelu_textbook(n: int) -> Plan:
    return Plan("gelu_float32_textbook", (blocks_for(n, 1024), 1, 1), (1024, 1, 1))
