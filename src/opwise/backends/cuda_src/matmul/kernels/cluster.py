"""Whether a product runs a kernel of cluster.cu, which one, over what grid: on Hopper, few tiles of what is not 16 bits by wgmma.

Tiles too few for the SMs share their K among the blocks of a cluster. An estimate is the time of the SM with most blocks: a block alone
does not keep it busy, `alone` of them would, and more take turns; and what a tile costs beside, the cluster's reduction above all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opwise.backends.cuda_src import plan
from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT, Share, Tiled, by_multiply_adds, clusters_at_once, most_have_k
from opwise.backends.cuda_src.plan import Matrix, Plan

SIZE_LIMIT = 2**30  # of kernels whose factors come by tensor maps: the copy engine's coordinates have 32 bits
LONG = 512  # of K, at least
# Of K, in float32 off 16 bytes: less is not shared by four where tiles are many, nor by sixteen, where tiles take turns twice as much:
# 643x45x360 takes 5.97 us by four, 4.56 by one; 136x49x121 4.08 by sixteen, 3.07 by four, 752x202x18 4.88 and 3.67. In TF32 few columns
# of less were never quicker here: 2744x136x13 takes 4.55, by skinny_n.py 3.67.
SHORT, SHORT_OF_MANY, SHORT_OF_COLUMNS = 64, 128, 256
MEMORY = 0.44  # an element of A and B of 4 bytes, read once, as multiply-adds of TF32


@dataclass(frozen=True)
class Tile(Tiled):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `way`: simt, mma or wgmma. `step_bytes`: of K, a stage holds per row of A. `granule` as in configuration.Kernel. `split`: blocks of a
    cluster that share K. `resident`: blocks that a multiprocessor holds at least; `alone`: that keep it busy. `speed`: multiply-adds of a
    busy one, relative to the fastest kernel of portable.cu for that type. `beside`: us of the clusters that run at once, whatever their
    speed; `fixed`: cost of a tile beyond its products, as elements of K. `turns`: clusters after clusters, or side by side: more, and the
    tiles were enough without. Of tiles by maps, where they were measured: rows of A from and to (0: any; of a low tile not by maps: its
    own), K from, tiles from; and `memory`: of an element of A or B, read once, where that is what limits.
    """

    kind: str
    way: str
    rows: int
    columns: int
    threads: int
    step_bytes: int
    stages: int
    granule: int
    split: int
    resident: int
    speed: float
    alone: float
    beside: float
    turns: float = 5
    m_from: int = 1
    m_to: int = 0
    k_from: int = 1
    tiles_from: int = 1
    memory: float = 0.0
    fixed: int = 0

    @property
    def name(self) -> str:
        return f"cluster_{self.way}_{self.rows}x{self.columns}_v{self.granule}_s{self.split}"

    @property
    def kernel(self) -> str:
        kind = by_multiply_adds(self.kind) if self.way == "simt" else self.kind
        return f"matmul_cluster_{kind}_{self.name.removeprefix('cluster_')}"

    @property
    def mapped(self) -> bool:
        """A and B come as tensor maps."""
        return self.way == "wgmma"

    @property
    def low(self) -> bool:
        """A tile of TF32 by wgmma and one consumer: boxes of A are no higher than A."""
        return self.mapped and self.rows * self.columns < 64 * 128

    @property
    def shared_bytes(self) -> int:
        """The ring; with maps two barriers a stage, and the way to a multiple of 1024."""
        ring = self.stages * self.step_bytes * (self.rows + self.columns)
        return ring + 16 * self.stages + 1024 if self.mapped else ring

    def takes(self, m: int, k: int, n: int, granule: int, sm_count: int) -> bool:
        """Where rows begin on 16 bytes other kernels are quick, too: a cluster is for a long K there, and for more rows than theirs."""
        if self.granule > granule or self.granule < 16 <= granule:
            return False
        if self.mapped:
            inside = self.m_from <= m <= (self.m_to or m) and k >= self.k_from and max(m, k, n) <= SIZE_LIMIT
            return inside and self.tiles_from <= self.tiles(m, n) <= self.at_once(sm_count) * self.turns
        if (self.rows < self.columns and m > (self.m_to or self.rows)) or self.columns < min(self.rows, 64, n):
            return False  # a low or narrow tile is for a C that is no higher or wider
        if self.split == 1:
            return True
        if self.way == "mma" and self.granule < 16 and not most_have_k(k * BYTES[self.kind], self.step_bytes, self.split):
            return False  # 523x29x136 of TF32 takes 4.75 us by four, 3.18 by unaligned_tma.cuh
        tiles = self.tiles(m, n)
        if self.way == "simt" and self.too_short(k, tiles, sm_count):
            return False
        few = tiles <= self.at_once(sm_count) * self.turns
        return few and (self.granule < 16 or (k >= LONG and (m > 16 or self.rows <= 16)))

    def too_short(self, k: int, tiles: int, sm_count: int) -> bool:
        """Is K too short to be shared by so many, or a C of few columns better off by skinny_n.py?"""
        if self.columns == 16:
            return self.kind == "tfloat32" and k < SHORT_OF_COLUMNS
        if self.rows == self.columns == 64:
            return k < SHORT and tiles > sm_count / 5
        many = tiles > self.at_once(sm_count)
        return self.rows == self.columns == 32 and self.granule < 16 and self.split == 16 and k < (2 if many else 1) * SHORT_OF_MANY

    def at_once(self, sm_count: int) -> int:
        """Tiles that the GPU has in the making with a block a multiprocessor."""
        return clusters_at_once(self.split, sm_count)

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        blocks = -(-self.tiles(m, n) // self.at_once(sm_count))  # of a multiprocessor, at most
        each = max(self.alone, blocks) * self.rows * self.columns
        beside = self.beside * UNIT[self.kind] * max(blocks / self.resident, 1)
        return Share(each, each * k / self.split, beside, self.memory * (m + n) * k)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: a cluster a tile."""
        factors: tuple[Matrix, ...] = ()
        if self.mapped:
            factors = Matrix(m, k, min(m, self.rows) if self.low else self.rows, 32, plan.TFLOAT32), Matrix(k, n, 32, 32, plan.TFLOAT32)
        grid = (self.tiles(m, n) * self.split, 1, 1)
        return Plan(self.kernel, grid, (self.threads, 1, 1), self.shared_bytes, matrices=factors)


# Fitted to what an H200 measured of 60 products (docs/lab.md), within 5 % of most.
#   way  rows columns threads step stages granule split resident speed alone beside turns m_from m_to k_from tiles_from memory
# float32's 16x32 of two is for two of its rows as well: 20x2048x5120 takes 26.8 us by it, by others 28.3 or more, in cuBLAS 31.1. Its 32x32
# have more turns: 24x4096x2560, by 80 clusters of 8, takes 29.2 us, by the next best 41.2 and in cuBLAS 37.3. TF32's 16x32 of two begins
# once, beside whole tiles as low: 16x8192x8192 took 75.4 us in two waves, by whole ones 64.5.
FLOAT32 = (
    ("simt", 4, 64, 128, 256, 4, 16, 8, 3, 0.335, 1.0, 1.2),
    ("simt", 16, 64, 128, 256, 3, 4, 4, 3, 0.657, 1.25, 0.0),
    ("simt", 16, 64, 128, 256, 3, 4, 16, 3, 0.657, 1.0, 1.0),
    ("simt", 64, 16, 128, 256, 3, 16, 4, 3, 1.012, 1.0, 1.0),
    ("simt", 64, 16, 128, 256, 3, 4, 1, 3, 0.739, 1.25, 2.0),
    ("simt", 64, 16, 128, 256, 3, 4, 4, 3, 0.683, 1.25, 0.5),
    ("simt", 64, 32, 256, 256, 3, 16, 1, 2, 1.052, 1.0, 1.5),
    ("simt", 64, 32, 256, 256, 3, 4, 1, 2, 0.831, 1.0, 2.0),
    ("simt", 16, 32, 128, 256, 6, 16, 2, 2, 0.715, 1.0, 1.6, 5, 1, 32),
    ("simt", 16, 32, 128, 256, 6, 16, 16, 2, 0.77, 1.5, 0.9),
    ("simt", 32, 32, 128, 128, 6, 16, 8, 3, 1.02, 1.0, 3.0, 12),
    ("simt", 32, 32, 128, 128, 6, 16, 16, 3, 1.15, 1.0, 2.5, 12),
    ("simt", 32, 32, 128, 128, 6, 4, 4, 3, 0.84, 1.5, 2.5),
    ("simt", 32, 32, 128, 128, 6, 4, 16, 3, 0.62, 1.0, 2.5),
    ("simt", 64, 64, 128, 64, 6, 4, 2, 3, 0.97, 1.25, 3.0),
)
TFLOAT32 = (
    ("simt", 16, 64, 128, 256, 3, 4, 16, 3, 0.167, 1.0, 1.0, 3),
    ("simt", 64, 16, 128, 256, 3, 16, 4, 3, 0.258, 1.0, 1.0),
    ("simt", 64, 16, 128, 256, 3, 4, 4, 3, 0.174, 1.25, 0.5),
    ("mma", 16, 32, 128, 256, 6, 16, 2, 2, 0.252, 1.0, 2.0, 1.35),
    ("mma", 16, 32, 128, 256, 6, 16, 8, 2, 0.30, 1.0, 0.9, 3),
    ("mma", 16, 32, 128, 256, 6, 16, 16, 2, 0.254, 1.0, 1.1),
    ("mma", 32, 32, 128, 128, 6, 16, 16, 3, 0.70, 1.0, 3.0),
    ("mma", 64, 32, 128, 128, 5, 16, 2, 3, 0.57, 1.0, 3.5),
    ("mma", 32, 32, 128, 128, 6, 4, 16, 3, 0.20, 1.0, 3.5),
    ("wgmma", 64, 128, 384, 128, 8, 16, 2, 1, 1.96, 1.0, 3.9, 1, 17, 256, 768, 28, MEMORY),
    ("wgmma", 64, 128, 384, 128, 8, 16, 4, 1, 1.90, 1.0, 2.0, 1, 17, 0, 1024),
    ("wgmma", 64, 128, 384, 128, 8, 16, 8, 1, 1.76, 1.0, 3.0, 1, 17, 0, 1024),
    ("wgmma", 128, 128, 384, 128, 6, 16, 4, 1, 2.93, 1.0, 3.0, 1, 17, 0, 1024),
    ("wgmma", 64, 64, 256, 128, 6, 16, 1, 2, 1.75, 1.0, 1.6, 1, 17, 64, 1, 64, MEMORY),
    ("wgmma", 64, 64, 256, 128, 6, 16, 16, 2, 1.22, 1.0, 1.0, 1, 33, 0, 8192, 4),
)
HALF = (
    ("mma", 32, 32, 128, 128, 2, 2, 16, 3, 0.063, 1.5, 3.0),
    ("mma", 64, 64, 128, 128, 2, 2, 4, 2, 0.204, 1.75, 3.5),
)
ROWS: dict[str, tuple[tuple[Any, ...], ...]] = {"float32": FLOAT32, "tfloat32": TFLOAT32, "float16": HALF, "bfloat16": HALF}


TILES = {kind: tuple(Tile(kind, *row) for row in rows) for kind, rows in ROWS.items()}


def fitting(m: int, k: int, n: int, kind: str, granule: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernels here for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS) on Hopper. granule: bytes that divide the
    addresses and rows."""
    return tuple(tile for tile in TILES.get(kind, ()) if tile.takes(m, k, n, granule, sm_count))
