"""Whether a small product runs a kernel of small_gemm.cuh, which one, over what grid: on Hopper.

Such a product takes a launch and a wait for the memory. Kernels that fill a ring of steps, share one among warps or fetch by tensor maps
take up to a microsecond more: to begin, to meet, to read the map. Here a block asks for all of a step of its K at once, and where K is
longer, a cluster shares it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT, Share, Tiled, clusters_at_once, memory_us
from opwise.backends.cuda_src.plan import Plan

THREADS = 128  # of a block
ALONE = 64  # bytes of K that blocks do not share
LINE = 128  # bytes of K, by which `deep` is told
# Blocks a multiprocessor, steps of each, and steps' parts of which one is asked for in vain: as measured. Of rows that begin on 2 bytes,
# whose elements come one by one, a further step takes as long as the first.
MOST, MOST_OF_CLUSTERS, STEPS, STEPS_OF_CLUSTERS, LEAST = 4, 3, {2: 2}, {2: 1}, 4
ANY_STEPS, ANY_STEPS_OF_CLUSTERS = 4, 2
# Where gemv.py's were quicker: of so few rows and more columns, or of rows that begin on 2 bytes; and of fewer columns.
LOW, WIDE = 2, 1024
COLUMNS_FROM = {"float32": 8, "tfloat32": 5, "float16": 5, "bfloat16": 5}
# us by which the estimates of others are less than what they take: by what a choice among all loses.
OTHERS, OTHERS_OF_FEW, FEW = {"float16": 2.7, "bfloat16": 2.7, "tfloat32": 2.5, "float32": 1.3}, 2.7, 16  # rows or columns
# Bytes of an access by those that divide addresses and rows. Of 16 bits 16 bytes were no quicker than 8.
GRANULES = {2: {2: 2, 4: 2, 8: 8, 16: 8}, 4: {4: 4, 8: 4, 16: 16}}


def room(kind: str, rows: int, columns: int, step: int) -> int:
    """Bytes of shared memory for a step of A, whose rows are 16 bytes longer than it, and of B: as in SmallGemmTile, SmallGemmFmaTile."""
    size = BYTES[kind]
    beside = {"float32": 0, "tfloat32": 32}.get(kind, 16)
    return rows * (step * size + 16) + step * (columns * size + beside)


@dataclass(frozen=True)
class Tile(Tiled):
    """A kernel's tile of C, `step` of K, bytes of an access, and blocks of a cluster that `split` K; and what its choice goes by, in us.

    `begun`: of a launch and a step; `again`: of each further step; `deep`: of 128 bytes of K; `more`: of a step, for each block beyond the
    first of a multiprocessor; `memory`: in parts of what an H200's memory takes to read and write each matrix.
    """

    kind: str
    rows: int
    columns: int
    step: int
    granule: int
    split: int
    begun: float
    again: float
    deep: float
    more: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"small_gemm_{self.rows}x{self.columns}x{self.step}_v{self.granule}" + (f"_s{self.split}" if self.split > 1 else "")

    @property
    def kernel(self) -> str:
        return f"matmul_extra_{'cluster_' if self.split > 1 else ''}{self.kind}_{self.name}"

    @property
    def shared_bytes(self) -> int:
        return room(self.kind, self.rows, self.columns, self.step)

    def part(self, k: int) -> int:
        """Of K, that a block has at most."""
        unit = ALONE // BYTES[self.kind]
        return math.ceil(math.ceil(k / unit) / self.split) * unit

    def each(self, m: int, n: int, sm_count: int) -> float:
        """Blocks a multiprocessor."""
        return self.tiles(m, n) / clusters_at_once(self.split, sm_count)

    def takes(self, m: int, k: int, n: int, sm_count: int, shortest: int) -> bool:
        """Is it worth trying? shortest: the least step of those that could be."""
        part, each = self.part(k), self.each(m, n, sm_count)
        if shortest < self.step >= LEAST * k:
            return False
        if self.split == 1:
            return part <= STEPS.get(self.granule, ANY_STEPS) * self.step and each <= MOST
        few_steps = part <= STEPS_OF_CLUSTERS.get(self.granule, ANY_STEPS_OF_CLUSTERS) * self.step
        return k > self.step and LEAST * part >= self.step and few_steps and each <= MOST_OF_CLUSTERS

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        part, each = self.part(k), self.each(m, n, sm_count)
        steps, beyond = -(-part // self.step), max((each + math.ceil(each)) / 2 - 1, 0.0)
        less = OTHERS_OF_FEW if min(m, n) <= FEW else OTHERS[self.kind]
        begun = self.begun - less + self.memory * memory_us(m, k, n, self.kind)
        loop = self.again * (steps - 1) + self.more * beyond * steps + self.deep * part * BYTES[self.kind] / LINE
        return Share.in_us(UNIT[self.kind], begun, loop)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: a block a tile, or a cluster."""
        return Plan(self.kernel, (self.tiles(m, n) * self.split, 1, 1), (THREADS, 1, 1), self.shared_bytes)


# Fitted to what H200s measured of 880 products, 4 % off on average.
#   rows columns step granule split, begun again deep more memory
HALF = (
    (16, 32, 64, 2, 1, 2.04, 0.56, 0.18, 0.22, 1.6),
    (32, 32, 64, 2, 1, 2.13, 0.62, 0.28, 0.29, 2.4),
    (16, 64, 64, 8, 1, 1.87, 0.30, 0.26, 0.09, 2.6),
    (32, 64, 64, 8, 1, 1.93, 0.30, 0.27, 0.10, 2.8),
    (16, 32, 128, 8, 1, 1.96, 0.18, 0.20, 0.23, 2.2),
    (16, 32, 128, 2, 8, 2.66, 0.33, 0.11, 0.82, 1.0),
    (16, 32, 128, 8, 8, 2.62, 0.20, 0.19, 0.34, 0.9),
)
TFLOAT32 = (
    (16, 32, 32, 4, 1, 1.81, 0.23, 0.26, 0.03, 3.1),
    (32, 32, 32, 4, 1, 1.91, 0.26, 0.30, 0.09, 3.1),
    (16, 32, 64, 16, 1, 1.98, 0.15, 0.21, 0.17, 1.0),
    (32, 32, 64, 16, 1, 2.11, 0.23, 0.20, 0.24, 1.5),
    (16, 32, 64, 4, 8, 2.68, 0.25, 0.22, 0.29, 0.4),
    (16, 32, 64, 16, 8, 2.53, 0.07, 0.28, 0.26, 0.5),
)
FLOAT32 = (
    (16, 32, 32, 4, 1, 1.84, 0.19, 0.36, 0.20, 4.4),
    (16, 64, 32, 4, 1, 1.89, 0.58, 0.43, 0.24, 3.8),
    (16, 64, 32, 16, 1, 1.88, 0.26, 0.37, 0.34, 1.3),
    (16, 32, 64, 16, 1, 1.78, 0.09, 0.42, 0.58, 0.5),
    (16, 32, 64, 4, 8, 2.49, 0.35, 0.42, 0.63, 0.6),
    (16, 32, 64, 16, 8, 2.30, 0.00, 0.52, 0.53, 0.6),
    (32, 32, 64, 16, 4, 2.55, 0.16, 0.42, 0.78, 1.1),
)
TABLES = {"float32": FLOAT32, "tfloat32": TFLOAT32, "float16": HALF, "bfloat16": HALF}
TILES = {kind: tuple(Tile(kind, *row) for row in table) for kind, table in TABLES.items()}


def fitting(m: int, k: int, n: int, kind: str, granule: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS). granule: bytes that divide addresses and rows."""
    if n < COLUMNS_FROM[kind] or (m <= LOW and (n > WIDE or granule == 2)):
        return ()
    found = [tile for tile in TILES[kind] if tile.granule == GRANULES[BYTES[kind]].get(granule)]
    shortest = min((tile.step for tile in found), default=0)
    return tuple(tile for tile in found if tile.takes(m, k, n, sm_count, shortest))
