"""What the tables of matmul_kernels.py and matmul_wgmma.py say of a kernel, and what matmul_plan.py makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from opwise.backends.cuda_src.matmul_model import BY_SECTORS, LINE, SECTOR, HopperTile, Share, in_clusters

TENSOR_CORES_FROM = (8, 0)  # mma.sync m16n8k16, TF32 and cp.async
WGMMA_ON = (9, 0)  # and on no later GPU
LOW = 16  # rows or columns of C that leave most of a tile empty, which costs less
MEASURED_ON = (9, 0)  # kernels that are offered where they were measured and nowhere else
# Most KB of shared memory a block may ask for, from the CUDA programming guide's table of compute capabilities. Others: 99.
SHARED_LIMIT = {(7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


class Among(NamedTuple):
    """The products a kernel was measured for: K from and to, tiles a multiprocessor from and to, m and n from, m and n to; `granule_to`:
    bytes that divide addresses and rows at most; `slanted`: only where rows of A or B, in 16 bits, are not a multiple of 32 bytes apart.
    `slanted_b`: only where those of B are not. Where rows of both are not, tiles may be `many_slanted`, if that is more. `straight`: only
    where they are a multiple of 128 bytes."""

    k_from: int
    k_to: int
    few: float
    many: float
    rows_from: int = 16
    columns_from: int = 32
    rows_to: int = 2**62
    granule_to: int = 16
    slanted: bool = False
    slanted_b: bool = False
    many_slanted: float = 0.0
    columns_to: int = 2**62
    straight: bool = False

    def holds(self, m: int, k: int, n: int, granule: int, tiles: float) -> bool:
        """tiles: a multiprocessor. granule: bytes that divide addresses and rows."""
        slanted = k % SECTOR > 0, n % SECTOR > 0
        many = max(self.many, self.many_slanted) if all(slanted) else self.many
        large = self.rows_from <= m <= self.rows_to and self.columns_from <= n <= self.columns_to
        large = large and (any(slanted) or not self.slanted) and (slanted[1] or not self.slanted_b)
        straight = not (k % LINE or n % LINE)
        return (
            large
            and self.few <= tiles <= many
            and (straight or not self.straight)
            and self.k_from <= k <= self.k_to
            and granule <= self.granule_to
        )


@dataclass(frozen=True)
class Kernel(HopperTile):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `granule`: bytes that must divide the three addresses and the rows of A, B and C. `step_bytes`: bytes of K a stage holds per row of A.
    `speed`: multiply-adds per time, relative to one another; of Hopper's own, of a block that is alone. `fixed`: cost of a tile
    beyond its products, as elements of K. `memory`: of an element of A or B, read once. `crowd`, `lean`: as in matmul_model.HopperTile.
    `split`: blocks of a cluster that share a tile's K, as in matmul_split.cuh; of these `resident`: blocks a multiprocessor, `inbox`: bytes
    for what other blocks push (or for what else lies beside the ring). `turned`: of matmul_turned.cuh, one tile a block (`split` 1),
    or of matmul_turned_pair.cuh.
    `boxes`: of C beside the ring, where there is no `split`. `cluster`: rows and columns of tiles whose blocks
    fetch parts of A (side by side) or of B (one below the other) for each other, as in matmul_wgmma.cuh and matmul_pair.cuh.
    `alone`: what a multiprocessor's only tile takes, in tiles of many; of Hopper's own, as in matmul_model.HopperTile. `at_once`: blocks
    that it begins and ends together, so that it has a multiple of them or one. `whole`: a step is all of K, A and B begin on 16 bytes:
    matmul_whole.cuh. `slow_lines`, `by_sectors`: as in matmul_model.HopperTile.
    `among`: where a kernel was measured that is offered nowhere else; or several such places.
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
    turned: bool = False
    boxes: int = 4
    cluster: tuple[int, int] = (1, 1)
    alone: float = 1.0
    at_once: int = 1
    crowd: float = 0.0
    lean: int = 0
    memory: float = 0.0
    whole: bool = False
    slow_lines: float = 1.0
    by_sectors: float = BY_SECTORS
    among: Among | tuple[Among, ...] | None = None

    @property
    def cut(self) -> bool:
        """Are the boxes of an A that is lower than a tile as low as A? So that they are where nobody else counts their bytes."""
        return self.split > 0 and not self.turned and self.cluster == (1, 1)

    def tiles(self, m: int, n: int) -> int:
        return math.prod(in_clusters(m, n, self.rows, self.columns, self.cluster))

    def shared_bytes(self, size: int) -> int:
        ring = self.stages * (self.rows * self.step_bytes + self.step_bytes // size * self.columns * size)
        if self.split:  # as in SplitTile and TurnedTile: two barriers a stage and one a warp, the way to a multiple of 1024
            return ring + self.inbox + 16 * self.stages + self.threads // 4 + 1024
        if self.wgmma:  # as in WarpgroupTile and TurnedPairTile
            return ring + self.boxes * 64 * 128 + self.inbox + 16 * self.stages + 1024
        return ring + self.inbox

    def runs_on(self, capability: tuple[int, int]) -> bool:
        return capability == WGMMA_ON if self.wgmma else self.simt or capability >= TENSOR_CORES_FROM

    def takes(self, m: int, k: int, n: int, granule: int, sm_count: int, capability: tuple[int, int]) -> bool:
        """Is the product among those that this kernel was measured for, if it is for some alone?"""
        if self.whole and (2 * k > self.step_bytes or n > self.columns):
            return False
        if self.among is None:
            return True
        if capability != MEASURED_ON:
            return False
        places = (self.among,) if isinstance(self.among, Among) else self.among
        tiles = self.tiles(m, n) / sm_count
        return any(place.holds(m, k, n, granule, tiles) for place in places)

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if self.wgmma:
            return self.hopper_share(m, k, n, sm_count)
        tiles = self.tiles(m, n)
        turns = -(-tiles // (sm_count * self.at_once)) * self.at_once if tiles > sm_count else self.alone
        if min(m, n) > LOW:
            turns = max(turns, self.alone)  # 681x40x852 takes 8.89 us by 154 tiles of 64x64_v4, in cuBLAS 4.56
        each = turns * self.rows * self.columns
        return Share(each, each * k, memory=self.memory * (m + n) * k)

    def source_name(self, kind: str) -> str:
        return f"matmul_wgmma_{kind}_{self.name}" if self.wgmma else f"matmul_{kind}_{self.name}"
