"""Whether a product of 16 rows of A at most runs a kernel of swap_ab.cuh with a tile of 16 rows, and which one: on Hopper, 16 bits.

The 16 rows of A are the columns of wgmma's second factor, B's columns its 64 rows. B is under way in shared memory, for a wide B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import BYTES, HALF_LINE, UNIT, Estimated, Share, memory_us
from opwise.backends.cuda_src.plan import Matrix, Plan

SIZE_LIMIT = 2**30  # TMA's coordinates have 32 bits
ROWS = 16  # of A, at most
DEPTH = 64  # elements of K in a stage
MISALIGNED = 1.17  # times what memory takes, where B's rows are no multiple of 64 bytes apart
# Launch overhead (us) that the other families' estimates leave out; with rows of A or B that are no multiple of 64 bytes apart.
LAUNCH, LAUNCH_MISALIGNED = 2.1, 3.0
FOR_WIDE, WIDE_B = 0.8, 8192  # part of the estimate that counts from so many columns of B on, where other kernels hardly win


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `columns` of its tile, `resident` blocks an SM, `stages` of its ring.

    `beside`: us of a launch; `step`: us of a stage; `wave`: us of each block of an SM beyond its first; `memory`: of reading and writing
    each matrix once, in parts of what an H200's memory takes.
    """

    kind: str
    columns: int
    resident: int
    stages: int
    beside: float
    step: float
    wave: float
    memory: float
    speed: float = 1.0
    fixed: float = 1.0
    granule: int = 16  # bytes that divide addresses and rows

    @property
    def name(self) -> str:
        return f"{ROWS}x{self.columns}_b{self.resident}"

    @property
    def kernel(self) -> str:
        return f"matmul_wgmma_{self.kind}_{self.name}"

    @property
    def threads(self) -> int:
        return 2 * self.columns + 32

    @property
    def shared_bytes(self) -> int:
        """As in SwapTile: the ring, two barriers a stage, the way to a multiple of 1024."""
        return self.stages * (BYTES[self.kind] * DEPTH * (ROWS + self.columns) + 16) + 1024

    def blocks(self, n: int) -> int:
        return -(-n // self.columns)

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = self.blocks(n) / sm_count
        memory = self.memory * (MISALIGNED if n % HALF_LINE else 1.0) * memory_us(m, k, n, self.kind)
        launch = LAUNCH_MISALIGNED if k % HALF_LINE or n % HALF_LINE else LAUNCH
        begun = self.beside + self.wave * max(math.ceil(each) - 1, 0) - launch
        unit = UNIT[self.kind] * (FOR_WIDE if n >= WIDE_B else 1.0)
        return Share.in_us(unit, begun, -(-k // DEPTH) * self.step * max(math.ceil(each / self.resident), 1), memory)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C. Boxes of A are as low as A."""
        maps = Matrix(m, k, m, DEPTH), Matrix(k, n, DEPTH, 64), Matrix(m, n, ROWS, 64)
        return Plan(self.kernel, (self.blocks(n), 1, 1), (self.threads, 1, 1), self.shared_bytes, matrices=maps)


#   columns resident stages beside step wave memory
HALF = (
    (128, 2, 6, 2.79, 0.168, 0.7, 0.95),
    (128, 3, 4, 2.76, 0.205, 0.381, 0.929),
)
TILES = {kind: tuple(Tile(kind, *row) for row in HALF) for kind in ("float16", "bfloat16")}


def fitting(m: int, k: int, n: int, kind: str) -> tuple[Tile, ...]:
    """The kernels here for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS) on Hopper, addresses and rows on 16 bytes."""
    return TILES.get(kind, ()) if m <= ROWS and max(k, n) <= SIZE_LIMIT else ()
