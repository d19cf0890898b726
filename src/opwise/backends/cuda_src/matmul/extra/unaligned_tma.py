"""unaligned_tma.cuh: 16 bits and TF32 on sm_90 with unaligned rows, by wgmma. The rows of a residue class are multiples of 16 bytes apart,
and each class has its own tensor map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src import plan
from opwise.backends.cuda_src.matmul.configurations import BYTES, HALF, HOPPER, STORAGE, TMA_LIMIT, Config, line, wgmma_unit
from opwise.backends.cuda_src.plan import Matrix, Plan
from opwise.backends.gemm.cost import Product, Work, tiled, wgmma_smem
from opwise.backends.gemm.gpu import Machine

THREADS = 384
ROW = 128  # bytes of a box's row
WIDE = 128  # columns of B that a stage holds
APART = {4: 10, 2: 9}  # rows of 128 bytes from class to class of B


@dataclass(frozen=True)
class Unaligned(Config):
    """rows: of a tile; consecutive rows if `straight`, else of one residue class. split: CTAs of a cluster that share K; with 1, the kernel
    is persistent."""

    KINDS: ClassVar = ("tfloat32", *HALF)
    UNIT: ClassVar = "matmul_unaligned_tma"

    rows: int
    split: int
    stages: int
    straight: bool = False

    @property
    def name(self) -> str:
        return f"unaligned_tma_{self.rows}_s{self.split}{'_straight' * self.straight}"

    def kernel(self, kind: str) -> str:
        return f"{self.unit(kind)}_{self.name.removeprefix('unaligned_tma_')}"

    def instance(self, kind: str) -> str:
        tile = f"UnalignedTile<{STORAGE[kind]}, {self.rows}, {self.stages}, {str(self.straight).lower()}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, {self.split}, {tile})"

    def stage_bytes(self, kind: str) -> int:
        size = BYTES[kind]
        classes = 16 // size
        raw = classes * -(-self.rows // classes * (ROW + 16) // ROW) * ROW if self.straight else 0
        return self.rows * ROW + WIDE * size * classes * APART[size] + raw

    def shared_bytes(self, kind: str) -> int:
        """The ring, two or three mbarriers per stage, and the padding to a multiple of 1024."""
        return self.stages * (-(-self.stage_bytes(kind) // 1024) * 1024 + (24 if self.straight else 16)) + 1024

    def takes(self, product: Product, machine: Machine) -> bool:
        return machine.capability == HOPPER and product.vector_bytes < 16 and max(product[:3]) <= TMA_LIMIT

    def tiles(self, product: Product) -> int:
        """The number of tiles; a tile's columns are those valid for all shifts."""
        classes = 16 // product.size
        every = 1 if self.straight else classes
        return -(-product.m // (self.rows * every)) * every * -(-product.n // (WIDE - classes))

    def work(self, product: Product) -> Work:
        """Includes a further copy of the factors within shared memory, which aligns them."""
        size = product.size
        smem = wgmma_smem(self.rows, WIDE, size) + 3 * size * (self.rows + WIDE)
        return tiled(
            product, self.rows, WIDE, ROW // size, wgmma_unit(product.kind), smem, self.stages, split_k=self.split,
            tiles=self.tiles(product), fetched=self.stage_bytes(product.kind), persistent=self.split == 1, setup=True,
        )  # fmt: skip

    def launch(self, product: Product, machine: Machine) -> Plan:
        m, k, n, kind = product[:4]
        classes, wide = 16 // product.size, ROW // product.size
        element = plan.TFLOAT32 if kind == "tfloat32" else plan.UINT16
        a = (self.rows // classes, wide + classes) if self.straight else (self.rows, wide)  # 16 bytes wider, for the shift
        maps = Matrix(m, k, *a, element, classes), Matrix(k, n, 8, wide, element, classes)
        tiles = self.tiles(product)
        ctas = tiles * self.split if self.split > 1 else min(tiles, machine.sms)
        return Plan(self.kernel(kind), line(ctas), (THREADS, 1, 1), self.shared_bytes(kind), matrices=maps)


# rows, split-K, stages
CONFIGS = (Unaligned(256, 1, 4), Unaligned(128, 1, 6), Unaligned(64, 1, 8), Unaligned(64, 8, 8), Unaligned(40, 1, 6, straight=True))
