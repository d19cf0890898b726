"""Whether a product of 16 rows of A at most runs a kernel of skinny_m.cuh, which one, over what grid: on Hopper, 16 bits and TF32."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import BYTES, HALF_LINE, UNIT, Estimated, Share, clusters_at_once, memory_us
from opwise.backends.cuda_src.matmul.kernels.swap_ab import LAUNCH, LAUNCH_MISALIGNED, MISALIGNED, ROWS, SIZE_LIMIT
from opwise.backends.cuda_src.plan import Plan

STEP = 64  # bytes of a row of A that a warp takes at once
LAUNCH_TFLOAT32 = 2.6  # us, as LAUNCH and LAUNCH_MISALIGNED, in TF32
ANYWHERE = 0.5  # part of the estimate that counts for rows that do not begin on 16 bytes, where other kernels never won
BESIDE_OTHERS = 0.15  # of a step, that it takes longer for each other block of the multiprocessor
# Where rows begin on 4 or 8 bytes and there are 4 at most, a kernel of gemv_rows.cuh is quicker for one of them, of more columns than
# these; and where B is so many times as wide as K is deep: 4x34x31750 takes 3.89 us by it, 4.84 by these; 3x1142x16428 14.6 and 13.0.
OF_ONE_COLUMNS, WIDE = 1001, 50
# K up to which tiles of 32 columns are quicker where rows begin on 16 bytes: of 16 bits clusters of them, of TF32 all. 11x2464x544 takes
# 4.10 us by clusters of eight, by wgmma 4.11, and 11x8616x304 5.58 and 4.78.
LONGEST = {"float16": 2464, "bfloat16": 2464, "tfloat32": 8192}

# In TF32 of a K from here on, and where tiles leave so much of the multiprocessors without one, cluster.py's clusters of two are
# quicker: 2x5364x2152 takes 17.6 us by them, 22.4 by these, 16x1024x1024 5.02 and 6.10; 13x2048x2824 11.5 and 11.2.
LONG_IN_PAIRS, FEW_IN_PAIRS = 1000, 0.6


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `columns` of its tile; `warps` that share K and `split` blocks of a cluster that do; `resident`
    blocks an SM; `granule`: bytes of an access of B, which divide addresses and rows.

    `step`: us of K's part of a warp, for each 64 bytes of A's row; `wave`: us of each block of a multiprocessor beyond its first; `beside`:
    of a launch; `memory`: of reading and writing each matrix once, in parts of what an H200's memory takes.
    """

    kind: str
    columns: int
    warps: int
    split: int
    resident: int
    granule: int
    beside: float
    step: float
    wave: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"skinny_m_16x{self.columns}_w{self.warps}_v{self.granule}" + (f"_s{self.split}" if self.split > 1 else "")

    @property
    def kernel(self) -> str:
        return f"matmul_extra_{'cluster_' if self.split > 1 else ''}{self.kind}_{self.name}"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Each warp's sums, as in SkinnyMTile, and a cluster's."""
        return (self.warps + (self.split > 1)) * 4 * ROWS * self.columns

    def takes(self, k: int, n: int, granule: int, sm_count: int) -> bool:
        """Pieces as wide as rows allow; and clusters that run at once, since a second turn of them takes as long as the first."""
        if self.granule > granule or self.granule < 8 <= granule:
            return False
        if self.kind == "tfloat32" and self.split == 1 and k >= LONG_IN_PAIRS and self.blocks(n) <= FEW_IN_PAIRS * sm_count:
            return False
        limited = granule >= 16 and self.columns == 32 and (self.split > 1 or self.kind == "tfloat32")
        at_once = self.blocks(n) <= self.resident * self.at_once(sm_count)
        return (self.split == 1 or at_once) and not (limited and k > LONGEST[self.kind])

    def blocks(self, n: int) -> int:
        return -(-n // self.columns) * self.split

    def at_once(self, sm_count: int) -> int:
        """Blocks that the GPU has with one a multiprocessor."""
        return clusters_at_once(self.split, sm_count) * self.split

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = self.blocks(n) / self.at_once(sm_count)  # of a multiprocessor
        steps = -(-k // (STEP // BYTES[self.kind] * self.warps * self.split))
        slanted = self.kind != "tfloat32" and self.granule >= 8 and n % HALF_LINE > 0
        memory = self.memory * (MISALIGNED if slanted else 1.0) * memory_us(m, k, n, self.kind)
        beside = self.beside + self.wave * max(math.ceil(each) - 1, 0) - self.launch_us(k, n)
        unit = UNIT[self.kind] * self.part(k, n)
        turns = max(each / self.resident, 1 + BESIDE_OTHERS * (min(math.ceil(each), self.resident) - 1))
        return Share.in_us(unit, beside, steps * self.step * turns, memory)

    def part(self, k: int, n: int) -> float:
        return ANYWHERE if self.kind != "tfloat32" and (k % 8 or n % 8) else 1.0

    def launch_us(self, k: int, n: int) -> float:
        if self.kind == "tfloat32":
            return LAUNCH_TFLOAT32
        return LAUNCH_MISALIGNED if k % HALF_LINE or n % HALF_LINE else LAUNCH

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (self.blocks(n), 1, 1), (self.threads, 1, 1), self.shared_bytes)


# Fitted to what H200s measured of 467 products.
#   columns warps split resident granule beside step wave memory
HALF = (
    (32, 8, 1, 2, 8, 2.1, 0.432, 0.578, 0.981),
    (32, 4, 1, 4, 8, 1.99, 0.411, 0.41, 0.859),
    (32, 8, 8, 2, 8, 2.28, 0.295, 0.53, 1.37),
    (32, 8, 1, 2, 4, 1.96, 0.482, 0.835, 1.4),
    (32, 8, 8, 2, 4, 2.68, 0.382, 0.75, 1.78),
)
TFLOAT32 = (
    (32, 8, 1, 2, 16, 1.97, 0.394, 0.52, 1.2),
    (32, 8, 8, 2, 16, 2.18, 0.388, 0.534, 1.3),
)
TILES = {kind: tuple(Tile(kind, *row) for row in rows) for kind, rows in (("tfloat32", TFLOAT32), ("float16", HALF), ("bfloat16", HALF))}


def fitting(m: int, k: int, n: int, kind: str, granule: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernels here for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS) on Hopper. granule: bytes that divide the
    addresses and rows."""
    if m > ROWS or max(k, n) > SIZE_LIMIT:
        return ()
    return tuple(tile for tile in TILES.get(kind, ()) if tile.takes(k, n, granule, sm_count))


def before_gemv(m: int, k: int, n: int, kind: str) -> bool:
    """Are these quicker than the kernel of gemv_rows.cuh for the product, where there is one?"""
    return kind != "tfloat32" and n <= (WIDE * k if m > 1 else OF_ONE_COLUMNS)
