"""Whether a product runs a kernel of skinny_n.cuh, which one, over what grid: B of 5 to 16 columns, by mma.sync, 16 bits and TF32.

Such a product takes the time of reading A once, if enough warps read at any time: where A is low, those of a block share K, and on Hopper
those of a cluster's blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT, Estimated, Share, clusters_at_once, granule_of, memory_us
from opwise.backends.cuda_src.matmul.kernels.gemv import LAUNCH, LEAST_ROWS, PART
from opwise.backends.cuda_src.plan import Plan

ROWS, STEP = 16, 64  # of A: that a warp has at least; bytes of each that it takes at once
THREADS, RESIDENT = 256, 2  # of a block; blocks that a multiprocessor has at once
PART_OF_WHOLE = 0.9  # as gemv.PART, of 16 columns on 16 bytes, for which more of the other kernels were made
FEWEST, MOST = 5, 16  # columns of B: that a choice by the estimate was measured for


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `count` of B's columns at most, `high` sixteens of A's rows a warp, `sharing` threads that share a row's K, `split` blocks
    of a cluster that do; `granule` and `granule_a`: bytes of an access of B and of A, which divide their rows and addresses (of
    A 1: its rows begin anywhere, A on 16).

    `beside`: us of a launch; `step`: of 64 bytes of K, for a warp that a block has to itself; `wave`: of each block of a multiprocessor
    beyond its first; `crowd`: of a step, that it takes longer for another block beside; `memory`: of reading and writing each matrix once,
    in parts of what an H200's memory takes.
    """

    kind: str
    count: int
    granule: int
    granule_a: int
    high: int
    sharing: int
    split: int
    beside: float
    step: float
    wave: float
    crowd: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        granules = f"{self.granule}a{self.granule_a}" if self.granule_a < 16 else f"{self.granule}"
        return f"skinny_n_{self.count}_h{self.high}_t{self.sharing}_v{granules}" + (f"_s{self.split}" if self.split > 1 else "")

    @property
    def kernel(self) -> str:
        return f"matmul_extra_{'cluster_' if self.split > 1 else ''}{self.kind}_{self.name}"

    @property
    def part(self) -> float:
        return PART_OF_WHOLE if self.granule == 16 and self.count == MOST else PART

    @property
    def block_rows(self) -> int:
        return ROWS * self.high * THREADS // self.sharing

    @property
    def shared_bytes(self) -> int:
        """For ldmatrix: 64 bytes of K of B for each step that a warp has under way, as in SkinnyNTile. And a cluster's sums."""
        of_b = THREADS // 32 * (4 // self.high) * STEP * self.count if self.granule == 16 else 0
        return of_b + (4 * self.block_rows * self.count if self.split > 1 else 0)

    def blocks(self, m: int) -> int:
        return -(-m // self.block_rows) * self.split

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = self.blocks(m) / (clusters_at_once(self.split, sm_count) * self.split)  # of a multiprocessor
        steps = -(-k * BYTES[self.kind] // (STEP * self.sharing // 32 * self.split))
        turns = max(each / RESIDENT if self.split == 1 else math.ceil(each / RESIDENT), 1)  # clusters wait for one another
        crowded = 1 + self.crowd * (min(math.ceil(each), RESIDENT) - 1)
        unit = UNIT[self.kind] * self.part
        begun = self.beside - LAUNCH + self.wave * max(math.ceil(each) - 1, 0)
        return Share.in_us(unit, begun, steps * self.step * turns * crowded, self.memory * memory_us(m, k, n, self.kind))

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        return Plan(self.kernel, (self.blocks(m), 1, 1), (THREADS, 1, 1), self.shared_bytes)


# Fitted to what H200s measured, in 16 bits of 406 products, 8 % off on average of the kernels that were quick; of the time of the quickest
# of all that are offered the plan's choice loses 1.4 % (docs/lab/matmul-cuda.md).
#   high sharing split beside step wave crowd memory
HALF = (
    (1, 256, 1, 2.364, 0.213, 0.385, 0.099, 1.397),
    (2, 32, 1, 1.441, 0.599, 0.251, 0.0, 1.52),
    (2, 64, 1, 2.329, 0.432, 0.28, 0.003, 1.299),
    (2, 128, 1, 2.517, 0.454, 0.419, 0.0, 1.127),
    (2, 256, 1, 2.347, 0.481, 0.438, 0.002, 1.269),
    (2, 256, 4, 2.495, 0.594, 0.519, 0.074, 0.929),
    (2, 256, 8, 2.605, 0.582, 0.623, 0.0, 1.022),
    (1, 256, 8, 3.448, 0.085, 0.32, 1.0, 2.125),
)
TFLOAT32 = (
    (1, 256, 1, 2.399, 0.317, 0.766, 0.025, 0.965),
    (2, 32, 1, 2.207, 0.393, 0.0, 0.0, 0.978),
    (2, 64, 1, 2.263, 0.49, 0.241, 0.67, 0.425),
    (2, 128, 1, 2.172, 0.455, 0.412, 0.0, 0.914),
    (2, 256, 1, 2.58, 0.44, 0.541, 0.249, 0.68),
    (2, 256, 4, 2.656, 0.453, 0.756, 0.105, 0.714),
    (2, 256, 8, 2.769, 0.487, 0.79, 0.0, 0.749),
    (1, 256, 8, 3.327, 0.349, 0.569, 0.0, 0.851),
)
#   count granule granule_a, us more beside, times step, times memory
OF_HALF = (
    (8, 16, 16, -0.284, 1.068, 0.66),
    (8, 2, 16, -0.461, 1.104, 0.988),
    (8, 2, 1, 0.473, 1.51, 1.425),
    (16, 16, 16, -0.2, 1.321, 0.823),
    (16, 2, 16, 0.046, 1.221, 1.27),
    (16, 2, 1, -0.016, 2.656, 1.716),
)
OF_TFLOAT32 = (
    (8, 4, 16, -0.409, 1.218, 1.136),
    (8, 4, 4, -0.144, 1.318, 1.508),
    (16, 4, 16, 0.315, 1.197, 1.642),
    (16, 4, 4, 0.446, 1.935, 1.4),
)


def _tiles(kind: str) -> Iterator[Tile]:
    rows, families = (TFLOAT32, OF_TFLOAT32) if kind == "tfloat32" else (HALF, OF_HALF)
    for count, granule, granule_a, more, slower, times in families:
        for high, sharing, split, beside, step, wave, crowd, memory in rows:
            if (granule_a == 1 and high != 2) or ((high, split) == (1, 1) and (granule_a < 16 or granule == 2)):
                continue  # hardly ever the quickest
            model = beside + more, step * slower, wave, crowd, memory * times
            yield Tile(kind, count, granule, granule_a, high, sharing, split, *model)


TILES = {kind: tuple(_tiles(kind)) for kind in ("tfloat32", "float16", "bfloat16")}


def fitting(m: int, k: int, n: int, kind: str, alignment: int, clusters: bool) -> tuple[Tile, ...]:
    """The kernels for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS) on a GPU with mma.sync for 16 bits. alignment: bytes
    that divide the addresses; clusters: may their blocks share K?"""
    if kind not in TILES or not FEWEST <= n <= MOST or m < LEAST_ROWS:
        return ()
    size = BYTES[kind]
    of_a = granule_of(alignment, k * size)
    granule_a = 16 if of_a >= 16 else 4 if size == 4 else 1
    count = 8 if n <= 8 else MOST
    granule = 16 if size == 2 and n == count and granule_a == 16 else size
    if granule_a == 1 and alignment < 16:
        return ()
    fit = count, granule, granule_a
    return tuple(t for t in TILES[kind] if (t.count, t.granule, t.granule_a) == fit and (clusters or t.split == 1))
