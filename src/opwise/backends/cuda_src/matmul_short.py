"""Whether a product of 5 to 16 rows of A and a short K runs a kernel of matmul_row.cuh, which one, over what grid: on Hopper. And which one
of 1 to 4 rows in 16 bits is the quickest where B's rows begin on 2 bytes.

Such a product takes the time of reading B once and storing C. A tile's kernel fills a ring and drains it for a few steps of K; a thread
here has one or two columns of B and no ring. Estimates are in the unit of matmul_kernel.Kernel.estimate, so that all compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import BYTES, Estimated, Share, by_multiply_adds, granule_of, memory_us
from opwise.backends.cuda_src.matmul_thin import MOST_THREADS
from opwise.backends.cuda_src.plan import Plan

ON = (9, 0)  # and on no later GPU: nothing here has been measured on one
ROWS_FROM, EIGHT, SIXTEEN = 5, 8, 16  # of A: at least, and what kernels have at most
LONGEST = 1024  # K that was measured
TURN = 8  # rows of B that a thread has under way
# us by which the estimates of others are less than what they take, as these numbers have it: beside, for 1000 columns of B, and of reading
# and writing each matrix once, in parts of what an H200's memory takes, of up to 8 rows and of more. By what a choice among all loses.
EVEN, OF_HALF = "even", (0.0, 0.06, 1.2, 0.1)  # float32 of whole pieces of 16 bytes
OTHERS = {
    "float16": OF_HALF,
    "bfloat16": OF_HALF,
    "float32": (3.25, 0.06, 0.4, 0.4),
    "tfloat32": (0.5, 0.06, 0.8, 0.8),
    EVEN: (0.75, 0.08, 0.0, 0.0),
}


def less_than_others(m: int, k: int, n: int, kind: str) -> float:
    """us to be taken off an estimate so that it compares with those of others."""
    beside, of_columns, of_few, of_many = OTHERS[EVEN if kind == "float32" and k % 4 == n % 4 == 0 else kind]
    return beside + of_columns * n / 1000 + (of_few if m <= EIGHT else of_many) * memory_us(m, k, n, kind)


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `count` rows of A at most, `wide` columns of B a block, of which 1024 threads make `blocks` and a multiprocessor has
    `resident` at once; `granule`: bytes of an access, an element or two.

    `beside`: us of a launch; `turn`: of 8 rows of B of a thread; `work`: of a million multiply-adds of a multiprocessor; `wave`: of each
    turn of blocks beyond the first; `memory`: of reading and writing each matrix once, in parts of what an H200's memory takes; `load`: the
    rows of A whose work reading B is. `speed` and `fixed`: by how much the loop is quicker than that, and the rest dearer.
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
    load: float = 0.0
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"rows_{self.count}x{self.wide}_b{self.blocks}_v{self.granule}"

    @property
    def kernel(self) -> str:
        return f"matmul_{by_multiply_adds(self.kind)}_{self.name}"  # by TF32 there is nothing to gain

    @property
    def at_once(self) -> int:
        """Rows of B that a block has at once."""
        return MOST_THREADS // self.blocks * (self.granule // BYTES[self.kind]) // self.wide

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = math.ceil(-(-n // self.wide) / sm_count)  # blocks of the busiest multiprocessor
        waves = -(-each // self.resident)
        begun = self.beside + self.wave * (waves - 1) - less_than_others(m, k, n, self.kind)
        loop = self.turn * waves * -(-k // self.at_once) / TURN + self.work * each * (self.count + self.load) * k * self.wide / 1e6
        return Share.in_us(UNIT[self.kind], begun, loop, self.memory * memory_us(m, k, n, self.kind))

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (-(-n // self.wide), 1, 1), (MOST_THREADS // self.blocks, 1, 1))


# Fitted to what an H200 measured of 133 products of K up to 1024, 5 % off on average of kernels that were quick; choices lose 0.7 % of the
# time of the quickest of all in 16 bits and TF32, 1.9 % in float32 (docs/lab/matmul-cuda.md).
#   count wide blocks granule resident, beside turn work wave memory
HALF = (
    (8, 128, 4, 2, 4, 2.79, 0.343, 4.77, 2.0, 2.2),
    (8, 64, 4, 2, 4, 2.74, 0.432, 2.41, 1.47, 2.07),
    (8, 128, 8, 4, 8, 2.42, 0.759, 3.3, 2.0, 1.66),
    (16, 128, 4, 2, 3, 3.24, 0.569, 0.88, 1.41, 3.61),
    (16, 128, 8, 4, 5, 3.17, 0.902, 0.61, 2.0, 2.78),
    (16, 64, 4, 4, 2, 3.0, 0.435, 9.45, 1.58, 1.08),
)
FLOAT32 = (
    (8, 128, 8, 4, 8, 2.95, 0.497, 0.0, 2.0, 1.43),
    (8, 64, 4, 4, 4, 2.74, 0.369, 7.1, 1.48, 1.03),
    (8, 64, 2, 8, 2, 3.05, 0.435, 7.91, 2.05, 0.94),
    (8, 128, 4, 8, 4, 2.44, 0.734, 5.23, 0.76, 0.99),
    (16, 32, 2, 4, 1, 3.13, 0.263, 9.11, 1.86, 1.89),
    (16, 64, 4, 4, 3, 2.8, 0.322, 9.26, 2.06, 1.23),
    (16, 128, 4, 4, 3, 3.44, 0.429, 5.83, 1.56, 1.41),
    (16, 128, 8, 4, 6, 3.18, 0.598, 0.73, 2.0, 1.78),
    (16, 64, 4, 8, 2, 2.92, 0.537, 6.99, 1.5, 1.11),
    (16, 128, 4, 8, 2, 3.01, 0.649, 5.19, 1.27, 1.05),
    (16, 128, 8, 8, 5, 3.15, 0.856, 1.78, 0.81, 1.32),
)
KINDS = "float32", "tfloat32", "float16", "bfloat16"
# Of 1 to 4 rows where B's begin on 2 bytes: fitted to 206 products, 6 % off on average.
#   wide blocks, beside turn work wave memory load
OF_FEW = (
    (8, 1, 2.63, 0.167, 45.8, 1.16, 2.3, 0.0),
    (32, 1, 2.98, 0.191, 27.4, 0.89, 1.18, 0.0),
    (64, 1, 2.48, 0.0, 21.3, 0.96, 0.945, 2.07),
    (128, 1, 2.49, 0.0, 17.7, 1.2, 0.863, 2.38),
    (128, 2, 2.36, 0.171, 13.0, 0.66, 0.83, 2.81),
    (128, 4, 2.58, 0.276, 9.8, 1.0, 0.0, 3.38),
    (128, 8, 2.2, 0.359, 1.35, 0.69, 1.38, 19.0),
)
TILES = {kind: tuple(Tile(kind, *row) for row in (HALF if BYTES[kind] == 2 else FLOAT32)) for kind in KINDS}


def fitting(m: int, k: int, n: int, kind: str, alignment: int) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS). alignment: bytes that divide the addresses."""
    if not ROWS_FROM <= m <= SIXTEEN or k > LONGEST:
        return ()
    granule = granule_of(alignment, n * BYTES[kind])
    return tuple(tile for tile in TILES[kind] if tile.granule <= granule and (tile.count == SIXTEEN or m <= EIGHT))


def of_few(m: int, kind: str) -> tuple[Tile, ...]:
    """The kernels for m rows of A, 1 to 4, in 16 bits, where B's rows begin on 2 bytes."""
    size = BYTES[kind]
    return tuple(Tile(kind, m, wide, blocks, size, blocks, *numbers) for wide, blocks, *numbers in OF_FEW)
