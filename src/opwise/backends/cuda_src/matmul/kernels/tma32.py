"""Whether a float32 product runs a kernel whose factors come by TMA, which one, over what grid: TF32 by wgmma (wgmma_tf32.cu), else FMA
(ffma_tma.cuh, an instance in ffma.cu)."""

from __future__ import annotations

from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import Share, Tiled
from opwise.backends.cuda_src.plan import FLOAT32, TFLOAT32, Matrix, Plan

GRANULE = 16  # bytes that must divide the three addresses and the rows of A, B and C
SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
DEPTH = 32  # elements of K in a stage
# Of multiply-adds, tiles a multiprocessor at least: 119 of them for 2176x256x832 take 26.9 us, smaller ones 34.4, 100 for 1200x200x1200
# 23.7 and 21.8.
LEAST_WAVE = 0.85


@dataclass(frozen=True)
class Tile(Tiled):
    """A kernel's tile of C (rows x columns) and what it is launched with; `rows_from`, `columns_from`: where it was measured.

    `speed`: multiply-adds per time, relative to the fastest kernel of portable.cu for that type; `fixed`: cost of a tile beyond its
    products, as elements of K. Measured on an H200: docs/lab.md.
    """

    name: str
    kind: str
    rows: int
    columns: int
    threads: int
    stages: int
    speed: float
    fixed: int
    rows_from: int = 1
    columns_from: int = 1

    @property
    def kernel(self) -> str:
        return f"matmul_{'wgmma_tfloat32' if self.kind == 'tfloat32' else 'ffma_float32'}_{self.name}"

    @property
    def shared_bytes(self) -> int:
        """The ring, two barriers a stage, the way to a multiple of 1024. (Multiply-adds have one barrier a stage.)"""
        return self.stages * (4 * DEPTH * (self.rows + self.columns) + 16) + 1024

    def takes(self, m: int, n: int, sm_count: int) -> bool:
        """FMA whose tiles leave many SMs idle loses to smaller ones; TF32 does whose tiles lie mostly outside of C."""
        filled = self.kind == "tfloat32" or self.tiles(m, n) >= LEAST_WAVE * sm_count
        return filled and m >= self.rows_from and n >= self.columns_from

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        each = -(-self.tiles(m, n) // sm_count) * self.rows * self.columns
        return Share(each, each * k)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: TF32's blocks stay for tile after tile, the others compute one."""
        block, tiles = (self.threads, 1, 1), self.tiles(m, n)
        if self.kind == "tfloat32":
            factors = Matrix(m, k, self.rows, DEPTH, TFLOAT32), Matrix(k, n, DEPTH, 32, TFLOAT32)
            return Plan(self.kernel, (min(tiles, sm_count), 1, 1), block, self.shared_bytes, matrices=factors)
        factors = Matrix(m, k, self.rows, DEPTH, FLOAT32), Matrix(k, n, DEPTH, self.columns, FLOAT32)
        return Plan(self.kernel, (tiles, 1, 1), block, self.shared_bytes, matrices=factors)


# cuBLAS's speed is 2.5 times that of portable.cu's TF32, and 1.4 times that of its float32; these multiply-adds' is 1.52 times that.
# 64x128's fixed cost by 480x32x504, which takes 3.5 us by it, 4.6 by 64x64 of any GPU; 1024x32x256 3.5 and 3.7.
TF32 = (
    Tile("256x128", "tfloat32", 256, 128, 384, 4, 2.6, 64, 65, 33),
    Tile("192x128", "tfloat32", 192, 128, 384, 4, 2.46, 64, 65, 33),
    Tile("128x128", "tfloat32", 128, 128, 384, 6, 2.11, 64, 65, 33),
    Tile("64x128", "tfloat32", 64, 128, 384, 8, 1.78, 70, 33, 33),
)
FMA = (Tile("tma_128x128_8x16", "float32", 128, 128, 128, 3, 1.52, 32),)
TILES = {"tfloat32": TF32, "float32": FMA}


def fitting(m: int, k: int, n: int, kind: str, sm_count: int) -> tuple[Tile, ...]:
    """The kernels here for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS) on Hopper, with GRANULE dividing all addresses
    and rows."""
    if max(m, k, n) > SIZE_LIMIT:
        return ()
    return tuple(tile for tile in TILES.get(kind, ()) if tile.takes(m, n, sm_count))
