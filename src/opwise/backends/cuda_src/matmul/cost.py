"""What a kernel of portable.cu or wgmma.cu should take for a product, by a few numbers of its own and what all of Hopper's share.

In multiply-adds, of which an H200's multiprocessor does 1.9 million a us at a speed of 1. Hopper's are fitted to 980 times of 18 kernels on
169 products of that GPU, by what a choice loses: 0.6 % on average (docs/lab.md); slanted rows, those in turns and the widest tiles to 141:
0.2 %. `slow_lines` and BY_SECTORS are fitted to 78 products of slanted rows, whose choices lose 0.3 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2}  # of an element
# Multiply-adds that one SM does in a us at speed 1, by the kernel that has it.
UNIT = {"float32": 137_000, "tfloat32": 538_000, "float16": 1_900_000, "bfloat16": 1_900_000}
BYTES_A_US = 4.5e6  # that an H200's memory gives
# Clusters of so many blocks that an H200 (132 multiprocessors in groups of 14 to 18, a cluster within one group) runs at once, a block a
# multiprocessor, as cudaOccupancyMaxActiveClusters says.
CLUSTERS_AT_ONCE, CLUSTERS_OF = {1: 132, 2: 66, 3: 38, 4: 30, 6: 16, 8: 15, 16: 7}, 132
# What each costs for each step of K: a row or column of a tile that lies outside of C, whose zeros the copy engine is slow to make (32 rows
# of A took longer than 64 in the same tiles); and, by `lean`, a row or column of a tile for each doubling of one factor over the other.
OUTSIDE, LEANING = 47.6, 1.96
MEMORY = 0.645  # an element of A and B, read once
# Rows of A or B are slanted where they are not a multiple of 64 bytes (32 elements, half a line of memory) apart: a row of a box then lies
# in two lines of 128, and the L2 answers two requests for one. What an element of a slanted factor that a block fetches costs where all
# fetch at once; for the others no product waited. BY_SECTORS: by what part of that where rows are whole sectors of 32 bytes apart, in C++.
LINE, HALF_LINE, SECTOR, SLANTED_A, SLANTED_B, BY_SECTORS = 64, 32, 16, 77, 76, 0.75
LONG_FOR_PAIRS = 1024  # K from which two tiles a multiprocessor are each as slow as an only one, where C is twice as wide as high
# By the rows of one of Hopper's tiles, the least of A: with half of 128 or three quarters of 64 empty, the mma kernels, whose tiles are
# lower, are no slower. But where B has as many elements or columns as these, what counts is how it is read; and where K is as long, that
# it is shared.
ROWS_FROM = {208: 129, 192: 129, 176: 129, 160: 129, 144: 129, 128: 65, 96: 65, 64: 17}
LARGE_B, WIDE_B, LONG_K = 2**22, 8193, 2048


@dataclass(frozen=True)
class Share:
    """What the busiest multiprocessor does. Its loop over K takes `depth` / speed + `beside`, and more where `memory` does not take much
    less; all of its tiles begin and end in `each` x fixed / speed. `last`: the part of that loop in which not all multiprocessors have
    a tile. Before it and in it the loop takes no less than the L2 needs, `fetched`."""

    each: float
    depth: float
    beside: float = 0.0
    memory: float = 0.0
    last: float = 1.0
    fetched: tuple[float, float] = 0.0, 0.0

    @staticmethod
    def in_us(a_us: float, begun: float, loop: float, memory: float = 0.0) -> Share:
        """Of times: what begins and ends, the loop, and reading and writing each matrix. a_us: multiply-adds in one."""
        return Share(begun * a_us, loop * a_us, memory=memory * a_us)

    def at(self, speed: float, fixed: float) -> float:
        loop = math.hypot(self.depth / speed + self.beside, self.memory)
        before, last = self.fetched
        return max(loop * (1 - self.last), before) + max(loop * self.last, last) + self.each * fixed / speed

    def more(self, speed: float) -> float:
        """What the loop takes beyond `depth` / speed."""
        return self.at(speed, 0) - self.depth / speed


class Estimated:
    """A kernel whose choice goes by its estimated time, in multiply-adds of one SM, so that the kernels of all tables compare.

    `speed` relative to one another, `fixed` of a tile beside, as elements of K. Where a table tells us, both are 1 as shipped: by how much
    the steps are quicker than it tells, and the rest dearer (`opwise tune`).
    """

    speed: float
    fixed: float

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        raise NotImplementedError

    def estimate(self, m: int, k: int, n: int, sm_count: int) -> float:
        return self.share(m, k, n, sm_count).at(self.speed, self.fixed)


class Tiled(Estimated):
    """One whose tiles of C have rows x columns, and are side by side."""

    rows: int
    columns: int

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.columns)


def by_multiply_adds(kind: str) -> str:
    """The type in the name of a kernel that multiplies in float32 where it may in TF32, which is a permission."""
    return "float32" if kind == "tfloat32" else kind


def memory_us(m: int, k: int, n: int, kind: str) -> float:
    """Of reading and writing each matrix once."""
    return BYTES[kind] * (m * k + k * n + m * n) / BYTES_A_US


def granule_of(alignment: int, *row_bytes: int) -> int:
    """Bytes that divide addresses, which `alignment` does, and rows: the greatest such power of two."""
    return min(alignment, *(row & -row for row in row_bytes))


def in_clusters(m: int, n: int, rows: int, columns: int, cluster: tuple[int, int]) -> tuple[int, int]:
    """How many tiles of whole clusters are below and beside one another: the last of a row or column may lie outside of C."""
    high, wide = cluster
    return -(-m // (rows * high)) * high, -(-n // (columns * wide)) * wide


def rows_suffice(rows: int, m: int, k: int, n: int) -> bool:
    """May a product get a tile of so many rows?"""
    return m >= ROWS_FROM[rows] or (rows == 64 and (k * n >= LARGE_B or n >= WIDE_B or k >= LONG_K))


def clusters_at_once(split: int, sm_count: int) -> int:
    """Of clusters of `split` blocks."""
    return max(CLUSTERS_AT_ONCE[split] * sm_count // CLUSTERS_OF, 1)


def most_have_k(row: int, step: int, split: int) -> bool:
    """Of a cluster's blocks, which share K: has half of them a step of it at least? row, step: bytes of a row of A, of a block's step."""
    return 2 * row >= step * split


def waves(tiles: int, split: int, resident: int, sm_count: int) -> float:
    """Of tiles, each of `split` blocks, on a multiprocessor that runs `resident` blocks at once."""
    found: float = -(-tiles // (clusters_at_once(split, sm_count) * resident)) * resident
    # Two blocks of a multiprocessor share it: beyond one each, all slow down a little, none waits for a wave.
    return min(found, max(tiles * split / sm_count, 1)) if resident > 1 else found
