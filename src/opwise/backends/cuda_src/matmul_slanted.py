"""Whether a product of 16 rows at most, in 16 bits, whose B's rows begin on 2 bytes runs a kernel made for them, which one, over what grid:
on Hopper.

How far rows of B begin behind 16 bytes repeats every 8 rows; kernels here read them by pieces of 16 bytes: matmul_slanted.cuh up to 8 rows,
matmul_slanted_few.cuh up to 16 by mma.sync, also by clusters that share K. Estimates are in the unit of matmul_kernel.Kernel.estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import Estimated, Share, clusters_at_once, memory_us
from opwise.backends.cuda_src.matmul_short import TURN, less_than_others
from opwise.backends.cuda_src.plan import Plan

ON = (9, 0)  # and on no later GPU: nothing here has been measured on one
V = 8  # elements of a piece; a block has as many fewer columns than its lanes beside one another have elements
FEW, MANY, MMA_COLUMNS, WARPS, RESIDENT = 4, 8, 64, 8, 2  # rows of A; of matmul_slanted_few.cuh: elements, warps of a block, its blocks
STEP = 128  # rows of B of such a block at once
COLUMNS_FROM, MOST = 400, 2.4  # columns of B, blocks of clusters a multiprocessor: that were measured
WARP = 32


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel of matmul_slanted.cuh: `count` rows of A (8: at most), `lanes` beside one another, `blocks` a multiprocessor.

    `beside`: us of a launch; `turn`: of 8 rows of B of a thread; `work`: of a million multiply-adds of a multiprocessor, lanes without work
    counted; `wave`: of each turn of blocks beyond the first; `memory`: of reading and writing each matrix once, in parts of what an H200's
    memory takes. `speed` and `fixed`: by how much the loop is quicker than that, and the rest dearer.
    """

    kind: str
    count: int
    lanes: int
    blocks: int
    beside: float
    turn: float
    work: float
    wave: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"slanted_{self.count}x{self.lanes}_b{self.blocks}"

    @property
    def kernel(self) -> str:
        return f"matmul_{self.kind}_{self.name}"

    @property
    def threads(self) -> int:
        return (1024 if self.count == 1 else 512) // self.blocks

    def turns(self, n: int, sm_count: int) -> int:
        return -(-n // ((self.lanes - 1) * V * self.blocks * sm_count))

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        turns = self.turns(n, sm_count)
        begun = self.beside + self.wave * (turns - 1) - less_than_others(m, k, n, self.kind)
        rows = -(-k * self.lanes // self.threads)  # of B, of a thread
        work = self.work * self.blocks * self.lanes * V * k * m / 1e6
        loop = turns * (self.turn * rows / TURN + work)
        return Share.in_us(UNIT[self.kind], begun, loop, self.memory * memory_us(m, k, n, self.kind))

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: blocks of as many columns as makes them equal, by whole turns of the GPU."""
        each = -(-n // (V * self.turns(n, sm_count) * self.blocks * sm_count)) * V
        return Plan(self.kernel, (-(-n // each), 1, 1), (self.threads, 1, 1))


@dataclass(frozen=True)
class Sixteen(Estimated):
    """A kernel of matmul_slanted_few.cuh: `split` blocks of a cluster that share K.

    `step`: us of 128 rows of B of a block; `crowd`: by how much that is longer where a multiprocessor has two blocks; `wave`: of each block
    of a multiprocessor beyond its first; the others as Tile's.
    """

    kind: str
    split: int
    beside: float
    step: float
    crowd: float
    wave: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"slanted_16x{MMA_COLUMNS}" + (f"_s{self.split}" if self.split > 1 else "")

    @property
    def kernel(self) -> str:
        return f"matmul_{'cluster_' if self.split > 1 else ''}{self.kind}_{self.name}"

    @property
    def shared_bytes(self) -> int:
        """Every warp's sums, each row of them 4 floats longer; and a cluster's, as other blocks read them."""
        return 4 * 16 * (WARPS * (MMA_COLUMNS + 4) + (MMA_COLUMNS if self.split > 1 else 0))

    def tiles(self, n: int) -> int:
        return -(-n // (MMA_COLUMNS - V))

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = self.tiles(n) / clusters_at_once(self.split, sm_count)  # blocks of a multiprocessor
        turns = max(each / RESIDENT if self.split == 1 else math.ceil(each / RESIDENT), 1)  # clusters wait for one another
        crowded = 1 + self.crowd * (min(math.ceil(each), RESIDENT) - 1)
        begun = self.beside + self.wave * (math.ceil(each) - 1) - less_than_others(m, k, n, self.kind)
        loop = -(-k // (STEP * self.split)) * self.step * turns * crowded
        return Share.in_us(UNIT[self.kind], begun, loop, self.memory * memory_us(m, k, n, self.kind))

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (self.tiles(n) * self.split, 1, 1), (32 * WARPS, 1, 1), self.shared_bytes)


# Fitted to what H200s measured of 206 products, 4 % off on average of kernels that were quick (docs/lab/matmul-cuda.md).
#   lanes blocks, beside turn work wave memory
BY_LANES = (
    (8, 1, 3.43, 1.154, 5.08, 0.5, 1.0),
    (16, 1, 3.22, 1.175, 5.34, 0.5, 0.98),
    (32, 1, 3.53, 0.867, 4.79, 2.71, 0.89),
    (32, 2, 3.62, 0.651, 4.87, 1.93, 0.94),
)
OF_MANY = (
    (32, 1, 5.25, 2.13, 0.11, 3.3, 0.87),
    (32, 2, 5.12, 2.07, 0.0, 1.0, 0.86),
)
#   split, beside step crowd wave memory
BY_MMA = (
    (1, 2.9, 0.861, 0.0, 1.145, 1.313),
    (2, 3.52, 0.896, 0.071, 1.276, 0.883),
    (4, 3.5, 0.883, 0.047, 1.214, 1.047),
    (8, 3.955, 0.797, 0.216, 0.611, 0.965),
    (16, 3.353, 0.187, 4.452, 1.418, 0.535),
)
KINDS = ("float16", "bfloat16")
TILES = {kind: tuple(Tile(kind, count, *row) for count in range(1, FEW + 1) for row in BY_LANES)
         + tuple(Tile(kind, MANY, *row) for row in OF_MANY) for kind in KINDS}  # fmt: skip
SIXTEENS = {kind: tuple(Sixteen(kind, *row) for row in BY_MMA) for kind in KINDS}


def fitting(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int) -> tuple[Tile | Sixteen, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS). alignment: bytes that divide the addresses."""
    if kind not in TILES or m > 16 or n % 2 == 0 or n < COLUMNS_FROM or alignment < 16:
        return ()
    count = m if m <= FEW else MANY
    rows = (tile for tile in TILES[kind] if tile.count == count and m <= MANY and (tile.lanes == WARP or tile.turns(n, sm_count) == 1))
    return *rows, *(t for t in SIXTEENS[kind] if t.split == 1 or (k >= STEP * t.split and t.tiles(n) * t.split <= MOST * sm_count))
