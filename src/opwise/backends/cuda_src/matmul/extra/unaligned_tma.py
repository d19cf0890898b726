"""Whether a product runs a kernel of unaligned_tma.cu, which one, over what grid: on Hopper, 16 bits and TF32 whose rows begin anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from opwise.backends.cuda_src import plan
from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT, Estimated, Share, clusters_at_once, most_have_k
from opwise.backends.cuda_src.plan import Matrix, Plan

SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
THREADS = 384
GRANULE = 16  # bytes that divide all addresses and rows: then other kernels are there
ROW = 128  # bytes of a box's row
WIDE = 128  # columns of B that a stage holds
# In TF32 a C of few columns where A is read from the memory for a long K: cluster.py's are quicker (8192x4095x9 59.7 us, here 70.5).
NARROW, LONG = 16, 2048
APART = {4: 10, 2: 9}  # rows of 128 bytes from class to class of B


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel's tile of C and what its choice goes by.

    `rows` follow one another in A where `straight`, else they are of one class. `split`: blocks of a cluster that share K; with 1, a block
    takes tile after tile. `step`, `crowd`, `tile`, `beside`: us of a step of K, of what a full GPU adds to it, of a tile beyond its steps,
    of a launch beyond its tiles.
    """

    kind: str
    rows: int
    split: int
    stages: int
    straight: bool
    step: float
    crowd: float
    tile: float
    beside: float
    speed: float = 1.0
    fixed: float = 1.0

    @property
    def name(self) -> str:
        return f"unaligned_tma_{self.rows}_s{self.split}{'_straight' if self.straight else ''}"

    @property
    def kernel(self) -> str:
        return f"matmul_unaligned_tma_{self.kind}_{self.name.removeprefix('unaligned_tma_')}"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return BYTES[self.kind]

    @property
    def classes(self) -> int:
        """Of rows: as many as 16 bytes have elements."""
        return 16 // self.size

    @property
    def columns(self) -> int:
        """Of a stage's, those that every class has."""
        return WIDE - self.classes

    @property
    def shared_bytes(self) -> int:
        """The ring, two or three barriers a stage, the way to a multiple of 1024."""
        stage = self.rows * ROW + WIDE * self.size * self.classes * APART[self.size]
        if self.straight:
            stage += self.classes * (-(-self.rows // self.classes * (ROW + 16) // ROW) * ROW)
        return self.stages * (-(-stage // 1024) * 1024) + (24 if self.straight else 16) * self.stages + 1024

    def takes(self, k: int) -> bool:
        """No cluster of blocks most of which would have no K: 62x16x90 of TF32 takes 3.54 us by four, 2.80 by one."""
        return self.split == 1 or most_have_k(k * self.size, ROW, self.split)

    def tiles(self, m: int, n: int) -> int:
        every = 1 if self.straight else self.classes
        return -(-m // (self.rows * every)) * every * -(-n // self.columns)

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        at_once = clusters_at_once(self.split, sm_count)
        turns, steps, unit = -(-self.tiles(m, n) // at_once), -(-k // (ROW // self.size * self.split)), UNIT[self.kind]
        step = self.step + self.crowd * min(self.tiles(m, n) * self.split / sm_count, 1)
        return Share(turns * self.tile * unit, turns * steps * step * unit, self.beside * unit)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        element, wide = plan.TFLOAT32 if self.kind == "tfloat32" else plan.UINT16, ROW // self.size
        a = (self.rows // self.classes, wide + 16 // self.size) if self.straight else (self.rows, wide)  # a chunk more, to be cut from
        factors = Matrix(m, k, *a, element, self.classes), Matrix(k, n, 8, wide, element, self.classes)
        tiles = self.tiles(m, n)
        grid = (tiles * self.split if self.split > 1 else min(tiles, sm_count), 1, 1)
        return Plan(self.kernel, grid, (THREADS, 1, 1), self.shared_bytes, matrices=factors)


# Fitted to what an H200 measured of 65 products, within 10 % on average (docs/lab/matmul-cuda.md).
#   rows split stages straight step crowd tile beside
TFLOAT32 = (
    (256, 1, 4, False, 0.180, 0.670, 4.18, 2.04),
    (128, 1, 6, False, 0.152, 0.386, 2.26, 2.13),
    (64, 1, 8, False, 0.156, 0.219, 1.15, 2.05),
    (64, 8, 8, False, 0.114, 0.194, 1.99, 1.95),
    (40, 1, 6, True, 0.280, 0.050, 0.47, 2.60),
)
HALF = (
    (256, 1, 4, False, 0.373, 0.467, 3.07, 2.19),
    (128, 1, 6, False, 0.319, 0.241, 1.72, 2.27),
    (64, 1, 8, False, 0.329, 0.120, 0.99, 2.03),
    (64, 8, 8, False, 0.232, 0.098, 2.25, 1.84),
    (40, 1, 6, True, 0.387, 0.000, 0.13, 2.73),
)
TILES = {kind: tuple(Tile(kind, *row) for row in rows) for kind, rows in (("tfloat32", TFLOAT32), ("float16", HALF), ("bfloat16", HALF))}


def fitting(m: int, k: int, n: int, kind: str, granule: int) -> tuple[Tile, ...]:
    """The kernels here for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS) on Hopper. granule: bytes that divide the
    addresses and rows."""
    if granule >= GRANULE or max(m, k, n) > SIZE_LIMIT or (kind == "tfloat32" and n <= NARROW and min(m / 2, k) >= LONG):
        return ()
    return tuple(tile for tile in TILES.get(kind, ()) if tile.takes(k))
