"""Whether a small product of a short K, whose rows do not begin on 16 bytes, runs a kernel of matmul_row.cuh by strips of A, which one,
over what grid: on Hopper.

Such a product takes a launch and a wait for the memory or two. A tile's kernel fills a ring first, by copies as narrow as the rows allow; a
thread here has a column or two of B and 8 rows of C. Estimates are in the unit of matmul_kernel.Kernel.estimate, so that all compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import BYTES, Estimated, Share, granule_of
from opwise.backends.cuda_src.plan import Plan

ON = (9, 0)  # and on no later GPU: nothing here has been measured on one
STRIP, THREADS, RESIDENT = 8, 256, 4  # rows of A; of a block, of which a multiprocessor has so many at once
ROWS_FROM, COLUMNS_FROM, LONGEST = 17, 17, 130  # of A and B, and K: as measured
# Blocks of 64 columns a multiprocessor, of a K up to SHORT and of more: with more blocks tiles were as quick, 1003x97x73 takes 4.03 us by
# them and 4.32 here.
MOST, SHORT, MOST_OF_LONG = 2.05, 64, 1.0
# Rows of A from which kernels with all of B are quicker: 518x60x46 takes 2.73 us by them, 3.01 here, 78x70x79 3.06 and 2.87.
WHOLE = 200
TURN = 8  # rows of B that a thread has under way
# us by which the estimates of others are less than what they take: by what a choice among all loses.
OTHERS = {"float16": 2.6, "bfloat16": 2.6, "float32": 1.0, "tfloat32": 1.0}


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `wide` columns of B a block; `granule`: bytes of an access, an element or two.

    `beside`: us of a launch; `turn`: of 8 rows of B of a thread; `work`: of a million multiply-adds of a multiprocessor; `block`: of each
    block of a multiprocessor beyond its first; `wave`: of each turn of blocks beyond the first. `speed` and `fixed`: by how much the loop
    is quicker than that, and the rest dearer.
    """

    kind: str
    wide: int
    granule: int
    beside: float
    turn: float
    work: float
    block: float
    wave: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"strips_{STRIP}x{self.wide}_b{RESIDENT}_v{self.granule}"

    @property
    def kernel(self) -> str:
        return f"matmul_{'float32' if self.kind == 'tfloat32' else self.kind}_{self.name}"  # TF32 is a permission: nothing to gain here

    @property
    def at_once(self) -> int:
        """Rows of B that a block has at once."""
        return THREADS * (self.granule // BYTES[self.kind]) // self.wide

    def blocks(self, m: int, n: int) -> int:
        return -(-m // STRIP) * -(-n // self.wide)

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = math.ceil(self.blocks(m, n) / sm_count)
        waves = -(-each // RESIDENT)
        begun = self.beside - OTHERS[self.kind] + self.block * (each - 1) + self.wave * (waves - 1)
        loop = self.turn * waves * -(-k // self.at_once) / TURN + self.work * each * STRIP * self.wide * k / 1e6
        return Share.in_us(UNIT[self.kind], begun, loop)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (self.blocks(m, n), 1, 1), (THREADS, 1, 1))


# Fitted to what an H200 measured of 103 products, 3 % off on average; the plan's choices lose 0.9 % of the time of the quickest of all.
#   wide elements, beside turn work block wave
HALF = (
    (32, 1, 2.49, 0.292, 1.45, 0.53, 0.58),
    (64, 1, 2.52, 0.251, 4.2, 0.5, 0.54),
    (32, 2, 2.4, 0.272, 8.87, 0.41, 0.73),
    (64, 2, 2.44, 0.422, 5.65, 0.49, 0.33),
)
FLOAT32 = (
    (32, 1, 2.45, 0.068, 14.1, 0.44, 0.39),
    (64, 1, 2.48, 0.086, 13.5, 0.36, 0.66),
)
TILES = {
    kind: tuple(Tile(kind, wide, elements * BYTES[kind], *numbers) for wide, elements, *numbers in (HALF if BYTES[kind] == 2 else FLOAT32))
    for kind in OTHERS
}


def fitting(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int, whole: bool) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS). alignment: bytes that divide the addresses;
    whole: is there a kernel that holds all of B?"""
    size = BYTES[kind]
    if m < ROWS_FROM or n < COLUMNS_FROM or k > LONGEST or granule_of(alignment, k * size, n * size) >= 16:
        return ()
    most = MOST if k <= SHORT else MOST_OF_LONG
    if -(-m // STRIP) * -(-n // 64) > most * sm_count or (whole and m >= WHOLE):
        return ()
    granule = granule_of(alignment, n * size)
    return tuple(tile for tile in TILES[kind] if tile.granule <= granule)
