"""Whether a product of 5 to 16 rows of A and a short K runs a kernel of matmul_row.cuh, which one, over what grid: on Hopper.

Such a product takes the time of reading B once and storing C. A tile's kernel fills a ring and drains it for a few steps of K; a thread
here has one or two columns of B and no ring. Estimates are in the unit of matmul_kernel.Kernel.estimate, so that all compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import BYTES, Estimated, Share, granule_of, memory_us
from opwise.backends.cuda_src.matmul_thin import MOST_THREADS
from opwise.backends.cuda_src.plan import Plan

ON = (9, 0)  # and on no later GPU: nothing here has been measured on one
ROWS_FROM, EIGHT, SIXTEEN = 5, 8, 16  # of A: at least, and what kernels have at most
LONGEST = 1024  # K that was measured
TURN = 8  # rows of B that a thread has under way
# us by which the estimates of others are less than what they take, as these numbers have it: beside, for 1000 columns of B, and of reading
# and writing each matrix once, in parts of what an H200's memory takes. By what a choice among all loses.
OTHERS = {"float16": (0.5, 0.06, 1.2), "bfloat16": (0.5, 0.06, 1.2), "float32": (3.5, 0.06, 0.4), "tfloat32": (3.0, 0.06, 0.8)}


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `count` rows of A at most, `wide` columns of B a block, of which 1024 threads make `blocks` and a multiprocessor has
    `resident` at once; `granule`: bytes of an access, an element or two.

    `beside`: us of a launch; `turn`: of 8 rows of B of a thread; `work`: of a million multiply-adds of a multiprocessor; `wave`: of each
    turn of blocks beyond the first; `memory`: of reading and writing each matrix once, in parts of what an H200's memory takes. `speed` and
    `fixed`: by how much the loop is quicker than that, and the rest dearer.
    """

    kind: str
    count: int
    wide: int
    blocks: int
    granule: int
    resident: int
    beside: float
    turn: float
    work: float
    wave: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"rows_{self.count}x{self.wide}_b{self.blocks}_v{self.granule}"

    @property
    def kernel(self) -> str:
        return f"matmul_{'float32' if self.kind == 'tfloat32' else self.kind}_{self.name}"  # TF32 is a permission: nothing to gain here

    @property
    def at_once(self) -> int:
        """Rows of B that a block has at once."""
        return MOST_THREADS // self.blocks * (self.granule // BYTES[self.kind]) // self.wide

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = math.ceil(-(-n // self.wide) / sm_count)  # blocks of the busiest multiprocessor
        waves = -(-each // self.resident)
        unit, memory = UNIT[self.kind], memory_us(m, k, n, self.kind)
        others, of_columns, of_memory = OTHERS[self.kind]
        begun = self.beside - others - of_columns * n / 1000 - of_memory * memory + self.wave * (waves - 1)
        loop = self.turn * waves * -(-k // self.at_once) / TURN + self.work * each * self.count * k * self.wide / 1e6
        return Share(begun * unit, loop * unit, memory=self.memory * memory * unit)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (-(-n // self.wide), 1, 1), (MOST_THREADS // self.blocks, 1, 1))


# Fitted to what an H200 measured of 133 products of K up to 1024, 5 % off on average of kernels that were quick; choices lose 0.7 % of the
# time of the quickest of all in 16 bits and TF32, 1.9 % in float32 (docs/lab/matmul-cuda.md).
#   count wide blocks granule resident, beside turn work wave memory
HALF = (
    (8, 128, 4, 2, 4, 2.75, 0.395, 1.98, 1.0, 2.37),
    (8, 64, 4, 2, 4, 2.73, 0.484, 0.0, 1.72, 2.03),
    (8, 128, 8, 4, 8, 2.42, 0.759, 3.3, 2.0, 1.66),
    (16, 128, 4, 2, 3, 3.21, 0.577, 0.7, 1.31, 3.69),
    (16, 128, 8, 4, 5, 3.18, 0.9, 0.6, 1.0, 2.77),
    (16, 64, 4, 4, 2, 3.01, 0.443, 9.37, 1.6, 0.95),
)
FLOAT32 = (
    (8, 128, 8, 4, 8, 2.99, 0.473, 0.0, 1.0, 1.44),
    (8, 64, 4, 4, 4, 2.72, 0.305, 8.88, 1.45, 1.06),
    (8, 64, 2, 8, 2, 3.11, 0.0, 0.06, 0.71, 1.81),
    (8, 128, 4, 8, 4, 2.39, 0.496, 14.98, 0.19, 0.0),
    (16, 32, 2, 4, 1, 3.23, 0.0, 12.83, 2.07, 1.73),
    (16, 64, 4, 4, 3, 2.8, 0.297, 9.34, 2.17, 1.26),
    (16, 128, 4, 4, 3, 3.43, 0.467, 3.86, 1.54, 1.64),
    (16, 128, 8, 4, 6, 3.17, 0.602, 0.07, 2.0, 1.85),
    (16, 64, 4, 8, 2, 2.97, 0.385, 8.46, 1.68, 1.01),
    (16, 128, 4, 8, 2, 2.92, 0.73, 4.3, 1.33, 1.08),
    (16, 128, 8, 8, 5, 3.11, 0.899, 0.56, 0.38, 1.44),
)
TILES = {kind: tuple(Tile(kind, *row) for row in (HALF if BYTES[kind] == 2 else FLOAT32)) for kind in OTHERS}


def fitting(m: int, k: int, n: int, kind: str, alignment: int) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS). alignment: bytes that divide the addresses."""
    if not ROWS_FROM <= m <= SIXTEEN or k > LONGEST:
        return ()
    granule = granule_of(alignment, n * BYTES[kind])
    return tuple(tile for tile in TILES[kind] if tile.granule <= granule and (tile.count == SIXTEEN or m <= EIGHT))
