"""Whether a product of a short K and many tiles runs a kernel of matmul_many.cuh, which one, over what grid: on Hopper.

Its time is to begin, to read and to write. With more than a tile or two a multiprocessor the kernels of matmul_once.cuh, whose steps take
registers, go in turns. Estimates are in the unit of matmul_kernel.Kernel.estimate, so that all compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import BYTES, Share, Tiled, memory_us
from opwise.backends.cuda_src.matmul_once import LINE, THREADS, accesses, room
from opwise.backends.cuda_src.plan import Plan

MANY = "many"  # in a kernel's name
ON = (9, 0)  # and on no later GPU: nothing here has been measured on one
PAD = 16  # bytes between rows of a tile of C in shared memory
# K to, tiles a multiprocessor, rows and columns from: as measured.
LONGEST, FEWEST, ROWS_FROM, COLUMNS_FROM = 200, 0.5, 250, 65
MOST = {"float16": 16, "bfloat16": 16, "tfloat32": 7, "float32": 7}  # tiles a multiprocessor
# us by which the estimates of others are less than what they take: by what a choice among all loses.
OTHERS = {"float16": 2.7, "bfloat16": 2.7, "tfloat32": 2.5, "float32": 2.7}


@dataclass(frozen=True)
class Tile(Tiled):
    """A kernel's tile of C, `step` of K, bytes of an access; and what its choice goes by, in us.

    `begun`: of a launch; `again`: of each step beyond the first; `tile`: of each tile of the busiest multiprocessor; `work`: of 128 bytes
    of K in each of them; `memory`: in parts of what an H200's memory takes to read and write each matrix. `speed` and `fixed`: by how much
    tiles are quicker than that, and the rest dearer.
    """

    kind: str
    rows: int
    columns: int
    step: int
    granule: int
    begun: float
    again: float
    tile: float
    work: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"{MANY}_{self.rows}x{self.columns}x{self.step}_v{self.granule}"

    @property
    def kernel(self) -> str:
        return f"matmul_{self.kind}_{self.name}"

    @property
    def shared_bytes(self) -> int:
        """Of a step, or of the tile that goes out: as Laid in matmul_many.cuh."""
        return max(room(self.kind, self.rows, self.columns, self.step), self.rows * (4 * self.columns + PAD))

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        most = math.ceil(self.tiles(m, n) / sm_count)
        begun = self.begun - OTHERS[self.kind] + self.again * (-(-k // self.step) - 1)
        loop = most * (self.tile + self.work * k * BYTES[self.kind] / LINE) + self.memory * memory_us(m, k, n, self.kind)
        return Share.in_us(UNIT[self.kind], begun, loop)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: a block a tile."""
        return Plan(self.kernel, (self.tiles(m, n), 1, 1), (THREADS, 1, 1), self.shared_bytes)


# Fitted to what an H200 measured of 120 products, 5 % off on average.
#   rows columns step granule, begun again tile work memory
FLOAT32 = (
    (32, 64, 32, 4, 2.24, 0.71, 0.04, 0.53, 0.96),
    (64, 64, 64, 4, 2.60, 0.76, 0.25, 0.90, 0.53),
    (64, 128, 32, 4, 3.69, 0.73, 0.23, 1.55, 0.35),
    (32, 64, 32, 16, 2.17, 0.67, 0.10, 0.37, 1.43),
    (64, 64, 64, 16, 2.50, 0.76, 0.00, 0.78, 1.57),
    (64, 128, 32, 16, 2.48, 0.88, 0.31, 1.45, 0.80),
)
TFLOAT32 = (
    (64, 64, 32, 4, 2.30, 0.95, 0.62, 0.22, 0.34),
    (64, 128, 32, 4, 3.14, 0.73, 0.00, 0.94, 0.67),
)
HALF = (
    (64, 64, 64, 4, 2.06, 0.77, 0.33, 0.23, 0.74),
    (64, 128, 64, 4, 2.41, 0.84, 0.33, 0.48, 1.15),
    (64, 64, 64, 8, 2.06, 0.77, 0.33, 0.23, 0.74),
    (64, 128, 64, 8, 2.41, 0.84, 0.33, 0.48, 1.15),
    (64, 64, 128, 8, 2.11, 0.88, 0.34, 0.26, 0.90),
)
TABLES = {"float32": FLOAT32, "tfloat32": TFLOAT32, "float16": HALF, "bfloat16": HALF}
TILES = {kind: tuple(Tile(kind, *row) for row in table) for kind, table in TABLES.items()}


def fitting(m: int, k: int, n: int, kind: str, granule: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS). granule: bytes that divide addresses and rows."""
    if k > LONGEST or m < ROWS_FROM or n < COLUMNS_FROM:
        return ()
    fits = [tile for tile in TILES[kind] if tile.granule == accesses(kind, granule)]
    return tuple(tile for tile in fits if FEWEST <= tile.tiles(m, n) / sm_count <= MOST[kind])
