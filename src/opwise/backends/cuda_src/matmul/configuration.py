"""What the tables of kernels/__init__.py and wgmma.py say of a kernel, and what matmul/__init__.py makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from opwise.backends.cuda_src.matmul import cost
from opwise.backends.cuda_src.matmul.cost import BY_SECTORS, HALF_LINE, LINE, SECTOR, Share, Tiled, clusters_at_once, in_clusters, waves

TENSOR_CORES_FROM = (8, 0)  # mma.sync m16n8k16, TF32 and cp.async
WGMMA_ON = (9, 0)  # and on no later GPU
LOW = 16  # rows or columns of C that leave most of a tile empty, which costs less
MEASURED_ON = (9, 0)  # kernels that are offered where they were measured and nowhere else
# Most KB of shared memory a block may ask for, from the CUDA programming guide's table of compute capabilities. Others: 99.
SHARED_LIMIT = {(7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


class Among(NamedTuple):
    """The products a kernel was measured for: K from and to, tiles a multiprocessor from and to, m and n from and to; `slanted`: only where
    rows of A or B, in 16 bits, are not a multiple of 32 bytes apart; `straight`: only where both are a multiple of 128 bytes apart."""

    k_from: int
    k_to: int
    few: float
    many: float
    rows_from: int = 16
    columns_from: int = 32
    rows_to: int = 2**62
    columns_to: int = 2**62
    slanted: bool = False
    straight: bool = False

    def holds(self, m: int, k: int, n: int, tiles: float) -> bool:
        """tiles: a multiprocessor."""
        inside = self.k_from <= k <= self.k_to and self.rows_from <= m <= self.rows_to and self.columns_from <= n <= self.columns_to
        slanted, straight = bool(k % SECTOR or n % SECTOR), not (k % LINE or n % LINE)
        return inside and self.few <= tiles <= self.many and (slanted or not self.slanted) and (straight or not self.straight)


@dataclass(frozen=True)
class Kernel(Tiled):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `granule`: bytes that must divide the three addresses and the rows of A, B and C. `step_bytes`: bytes of K a stage holds per row of A.
    `speed`: multiply-adds per time, relative to one another; of Hopper's own, of a block that is alone. `fixed`: cost of a tile
    beyond its products, as elements of K. `memory`: of an element of A or B, read once. `crowd`: by how much a step is longer
    where every SM has a block, in parts of itself. `lean`: what suffers where one factor is the larger and its tiles are read more than
    once, 1: A from a quarter of B on, -1: B from A on, 0: nothing.
    `split`: blocks of a cluster that share a tile's K, as in split_k.cuh; of these `resident`: blocks a multiprocessor, `inbox`: bytes
    for what other blocks push (Numba: for what else lies beside the ring). `swap_ab`: of swap_ab.cuh, one tile a block (`split` 1).
    `boxes`: of C beside the ring, where there is no `split`. `cluster`: rows and columns of tiles whose blocks
    fetch parts of A (side by side) or of B (one below the other) for each other, as in wgmma.cuh.
    `alone`: what an SM's only tile takes, in tiles of many. `slow_lines`: what misaligned rows cost it, in parts of what they cost others;
    `by_sectors`: of that, those of whole sectors. `among`: where a kernel was measured that is offered nowhere else.
    """

    name: str
    rows: int
    columns: int
    threads: int
    step_bytes: int
    stages: int
    granule: int
    speed: float
    fixed: int
    simt: bool = False
    wgmma: bool = False
    split: int = 0
    resident: int = 1
    inbox: int = 0
    swap_ab: bool = False
    boxes: int = 4
    cluster: tuple[int, int] = (1, 1)
    alone: float = 1.0
    crowd: float = 0.0
    lean: int = 0
    memory: float = 0.0
    slow_lines: float = 1.0
    by_sectors: float = BY_SECTORS
    among: Among | None = None

    @property
    def cut(self) -> bool:
        """Are the boxes of an A that is lower than a tile as low as A? So that they are where nobody else counts their bytes."""
        return self.split > 0 and not self.swap_ab and self.cluster == (1, 1)

    def tiles(self, m: int, n: int) -> int:
        return math.prod(in_clusters(m, n, self.rows, self.columns, self.cluster))

    def shared_bytes(self, size: int) -> int:
        ring = self.stages * (self.rows * self.step_bytes + self.step_bytes // size * self.columns * size)
        if self.split:  # as in SplitKTile and SwapTile: two barriers a stage and one a warp, the way to a multiple of 1024
            return ring + self.inbox + 16 * self.stages + self.threads // 4 + 1024
        if self.wgmma:  # as in WarpgroupTile
            return ring + self.boxes * 64 * 128 + self.inbox + 16 * self.stages + 1024
        return ring

    def runs_on(self, capability: tuple[int, int]) -> bool:
        return capability == WGMMA_ON if self.wgmma else self.simt or capability >= TENSOR_CORES_FROM

    def takes(self, m: int, k: int, n: int, sm_count: int, capability: tuple[int, int]) -> bool:
        """Is the product among those that this kernel was measured for, if it is for some alone?"""
        return self.among is None or (capability == MEASURED_ON and self.among.holds(m, k, n, self.tiles(m, n) / sm_count))

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if self.wgmma:
            return self._hopper_share(m, k, n, sm_count)
        tiles = self.tiles(m, n)
        turns = -(-tiles // sm_count) if tiles > sm_count else self.alone
        if min(m, n) > LOW:
            turns = max(turns, self.alone)  # 681x40x852 takes 8.89 us by 154 tiles of 64x64_v4, in cuBLAS 4.56
        each = turns * self.rows * self.columns
        return Share(each, each * k, memory=self.memory * (m + n) * k)

    def source_name(self, kind: str) -> str:
        return f"matmul_wgmma_{kind}_{self.name}" if self.wgmma else f"matmul_{kind}_{self.name}"

    def _hopper_share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        """Of Hopper's own kernels, in multiply-adds: cost.py has the numbers."""
        rows, columns, split, resident = self.rows, self.columns, max(self.split, 1), self.resident
        step = self.step_bytes // 2 * split
        high, wide = self.cluster
        together = high * wide
        down, across = in_clusters(m, n, rows, columns, self.cluster)
        tiles = down * across
        begun = waves(tiles // together, split * together, resident, sm_count)
        depth = -(-k // step) * (step // split)
        weight = self.alone if begun <= (2 if n >= 2 * m and k >= cost.LONG_FOR_PAIRS else 1) else 1.0
        busy = min(tiles * split / sm_count, resident)
        outside = (0 if self.cut and down == 1 else rows - m / down) + columns - n / across
        steep = 0.0
        if self.lean > 0 and across > 1:
            steep = max(math.log2(4 * m / n), 0)
        elif self.lean < 0 and down > 1:
            steep = max(math.log2(n / m), 0)
        beside = begun * depth * (cost.OUTSIDE * outside + cost.LEANING * (rows + columns) * steep)
        each = begun * rows * columns
        work = each, each * depth * (weight + self.crowd * busy), beside, cost.MEMORY * (m + n) * k
        if not (k % HALF_LINE or n % HALF_LINE):
            return Share(*work)
        full, rest = divmod(tiles // together / clusters_at_once(split * together, sm_count), resident)
        worst = self.slow_lines * (1 if k % SECTOR or n % SECTOR else self.by_sectors)
        a_row, b_row = cost.SLANTED_A if k % HALF_LINE else 0, cost.SLANTED_B if n % HALF_LINE else 0
        fetched = worst * k / split * (m / down / wide * a_row + n / across / high * b_row)  # by a block
        return Share(*work, max(1 - full * resident / begun, 0), (full * resident * fetched, rest * fetched))
