"""A plan: the kernel and the grid of a launch, for both CUDA C++ backends; and the plans of square, gelu and mean.

The kernels' files state their requirements on shape and alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Element types of a tensor map, as in cuda.h. UINT16 serves all 16-bit types; TFLOAT32 rounds float32 to nearest when it loads.
UINT16, FLOAT32, TFLOAT32 = 1, 7, 11
ELEMENT_BYTES = {UINT16: 2, FLOAT32: 4, TFLOAT32: 4}


class Matrix(NamedTuple):
    """A row-major matrix that a kernel reads or writes by TMA. Boxes with rows of 64 or 128 bytes have that swizzle, others none. element:
    a key of ELEMENT_BYTES.

    classes: 0 if address and row pitch are multiples of 16 bytes. Otherwise the number of maps, as in residue_maps.cuh: a power of two such
    that this many rows are a multiple of 16 bytes; the box is that of one map.
    """

    rows: int
    columns: int
    box_rows: int
    box_columns: int
    element: int = UINT16
    classes: int = 0


@dataclass(frozen=True)
class Plan:
    """kernel: an extern "C" name. grid, block: in x, y, z. shared_bytes: dynamic shared memory of a block.

    scratch_bytes: the kernel's last parameter is the address of this many bytes, unless it is 0. The first zeroed_bytes are 0 before and
    after each launch. of_its_own: a name; launches with that name share scratch only with each other and find what the last one left.
    cooperative: all blocks run at the same time, so that they may wait for each other.
    shares: int64 parameters after the workload's sizes, by which blocks share the work.
    matrices: the kernel's first parameters are tensor maps of these matrices instead of addresses. Outside a matrix zeros are read.
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
PIECES = {True: 1, False: 8}  # per thread: 16-byte pieces, or single elements

MEAN_THREADS, MEAN_PIECES, MEAN_BLOCKS_PER_SM = 512, 4, 3  # as in mean.cu
# (waves, steps per block): from that many waves of one-step blocks on, steps of 32 KiB per block; below, one. Numba, H200, us with 1, 2, 4
# and 8: 64 MiB 17.42, 17.44, -, -; 128 MiB -, 31.93, 31.73, -; 256 MiB -, 61.41, 60.49, -; 1 GiB -, -, 235.58, 234.69.
MEAN_LONGER = ((8, 4), (64, 8))
MEAN_MOST_BLOCKS = 8192  # with more than one step; with the one-step blocks less than 64 KiB of sums


def blocks_for(work: int, per_block: int) -> int:
    return max(-(-work // per_block), 1)


def elementwise(op: str, n: int, dtype: str, aligned: bool) -> Plan:
    """square or gelu of n elements. aligned: both addresses are multiples of 16 bytes."""
    width = VECTOR_BYTES if aligned else ITEM_BYTES[dtype]
    pieces = n * ITEM_BYTES[dtype] // width
    return Plan(f"{op}_{dtype}_v{width}", (blocks_for(pieces, MAP_THREADS * PIECES[aligned]), 1, 1), (MAP_THREADS, 1, 1))


class Steps(NamedTuple):
    """The distribution of a mean's steps over blocks, in memory order: `each` for the first `large` blocks, one for the others."""

    each: int
    large: int
    blocks: int

    @property
    def scratch_bytes(self) -> int:
        """4 bytes per block, rounded up to a power of two, so that few sizes of scratch are pooled."""
        return max(1 << (4 * self.blocks - 1).bit_length(), 1024)


def mean_steps(steps: int, wave: int, longer: Sequence[tuple[int, int]] = MEAN_LONGER) -> Steps:
    """The distribution on a GPU that runs `wave` blocks at a time. longer: as MEAN_LONGER. While the last long blocks run, of which half
    remains on average, one-step blocks replace those that end. Their number of steps is that remainder, so that all SMs end together."""
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
