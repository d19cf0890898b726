"""The configurations of matmul's kernels (tile, stages, split-K): which of them support a product, and the work each does on the GPU.

Names in tuned tables: 128x256 (wgmma), 64x64_s2 (split_k; s: CTAs that split K), tma_128x128 (float32 by TMA), mma_128x256 and fma_64x64_s4
(any GPU). The suffix _nt, _tn or _tt says which factors are transposes of row-major matrices.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import ClassVar

from opwise.backends.gemm.cost import Product, Work, fma_smem, mma_smem, split_summation, tiled, wgmma_smem
from opwise.backends.gemm.gpu import Machine
from opwise.backends.numba_cuda.common import ptx

HOPPER = (9, 0)  # wgmma exists on sm_90 alone; clusters were measured there alone
TMA_LIMIT = 2**30  # the largest m, n or k for TMA, whose coordinates are 32-bit
BY_ELEMENT = "NT"  # layouts of A and of B that kernels/fma.py transposes while copying, with 4-byte copies
UNITS = {"float32": "fma", "tfloat32": "mma_tf32"}  # the cost model's unit for kernels without wgmma; 16-bit dtypes: "mma"


@dataclass(frozen=True)
class Tile:
    """A CTA's tile of C in elements. layout: of A and B, N (row-major) or T (transposed) each, as in Product."""

    rows: int
    columns: int
    layout: str = field(default="NN", kw_only=True)

    @property
    def suffix(self) -> str:
        """The layout's suffix in a tile's name; empty for NN."""
        return "" if self.layout == "NN" else f"_{self.layout.lower()}"

    def tiles(self, m: int, n: int) -> int:
        return -(-m // self.rows) * -(-n // self.columns)


@dataclass(frozen=True)
class HopperTile(Tile):
    """A tile for sm_90, by TMA. kernel: its module in kernels/. step_bytes: of K in a stage. split: CTAs of a cluster that share K."""

    kernel: str
    threads: int
    stages: int
    step_bytes: int = 128
    split: int = 1
    ctas_per_sm: int = 1

    @property
    def name(self) -> str:
        kind = {"fma_tma": "tma_", "split_k": ""}.get(self.kernel, "")
        return f"{kind}{self.rows}x{self.columns}" + (f"_s{self.split}" if self.kernel == "split_k" else "") + self.suffix

    @property
    def persistent(self) -> bool:
        return self.kernel in ("wgmma", "wgmma_tf32")

    @property
    def inbox(self) -> int:
        """Bytes that receive the other CTAs' partial sums. Units of 16 x 16 float32 (1024 bytes) are divided evenly, rounded up."""
        return (self.split - 1) * -(-self.rows * self.columns // 256 // self.split) * 1024

    @property
    def shared_bytes(self) -> int:
        """Of wgmma and split_k: the ring, staging boxes of C or the inbox, the mbarriers, and padding to align the ring to 1024 bytes."""
        ring = self.stages * self.step_bytes * (self.rows + self.columns)
        beside = self.inbox + self.threads // 4 if self.kernel == "split_k" else self.rows // 32 * 64 * 128
        return ring + beside + 16 * self.stages + 1024

    def takes(self, product: Product, machine: Machine) -> bool:
        kind = {"wgmma_tf32": "tfloat32", "fma_tma": "float32"}.get(self.kernel)
        fits = product.layout == self.layout and product.vector_bytes == 16 and max(product[:3]) <= TMA_LIMIT
        return machine.capability == HOPPER and fits and (product.kind == kind if kind else product.size == 2)

    def summation(self, product: Product) -> str:
        if product.size == 4:
            return self.name if self.kernel == "fma_tma" else "wgmma_tf32"
        return split_summation(product.k, self.columns // 16, self.split, self.step_bytes // 2)

    def work(self, product: Product) -> Work:
        rows, columns, size = self.rows, self.columns, product.size
        if self.kernel == "fma_tma":
            unit, smem, resident = "fma", fma_smem(rows, columns, 8, 16), 2
        elif self.kernel == "wgmma_tf32":  # computes C' = B' A', with B' in registers
            unit, smem, resident = "wgmma_tf32", wgmma_smem(rows, columns, 4, swap_ab=True, a_by_registers=True) + 8 * columns, 1
        else:
            unit, smem, resident = "wgmma", wgmma_smem(rows, columns, 2), self.ctas_per_sm
        return tiled(
            product, rows, columns, self.step_bytes // size, unit, smem, self.stages, split_k=self.split, ctas_per_sm=resident,
            persistent=self.persistent, warps=self.threads // 32,
        )  # fmt: skip


@dataclass(frozen=True)
class PortableTile(Tile):
    """A tile for any GPU from sm_80 on. split: CTAs of a cluster that share K; more than 1 needs sm_90."""

    UNIT: ClassVar[str]

    split: int = field(default=1, kw_only=True)

    @property
    def name(self) -> str:
        return f"{self.UNIT}_{self.rows}x{self.columns}" + f"_s{self.split}" * (self.split > 1) + self.suffix

    def summation(self, product: Product) -> str:
        return self.name if self.split == 1 else ""


@dataclass(frozen=True)
class MmaTile(PortableTile):
    """A tile for mma.sync: down x across warps a CTA. ctas_per_sm: the occupancy that limits the compiler's registers a thread."""

    UNIT: ClassVar = "mma"

    down: int
    across: int
    stages: int
    ctas_per_sm: int

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    def takes(self, product: Product, machine: Machine) -> bool:
        return product.layout == self.layout and product.kind != "float32" and (self.split == 1 or machine.capability == HOPPER)

    def work(self, product: Product) -> Work:
        rows, columns, size = self.rows, self.columns, product.size
        smem = mma_smem(rows, columns, rows // self.down, columns // self.across, size)
        vector_bytes = 16 if whole_rows(product) else size
        return tiled(
            product, rows, columns, 64 // size, UNITS.get(product.kind, "mma"), smem, self.stages - 1, split_k=self.split,
            ctas_per_sm=self.ctas_per_sm, loads=(rows + columns) * size / (32 * vector_bytes), warps=self.threads // 32,
        )  # fmt: skip


@dataclass(frozen=True)
class FmaTile(PortableTile):
    """high x wide outputs a thread (multiples of 4). resident: CTAs that fit an SM; ctas_per_sm: minimum the compiler must allow for."""

    UNIT: ClassVar = "fma"

    high: int = 8
    wide: int = 8
    stages: int = 3
    resident: int = 1
    ctas_per_sm: int = 1

    @property
    def threads(self) -> int:
        return (self.rows // self.high) * (self.columns // self.wide)

    def takes(self, product: Product, machine: Machine) -> bool:
        return product.layout == self.layout and product.kind == "float32" and (self.split == 1 or machine.capability == HOPPER)

    def work(self, product: Product) -> Work:
        """A factor transposed while copying is fetched in 4-byte copies, others in 16-byte ones where rows are aligned."""
        rows, columns = self.rows, self.columns
        of_a, of_b = (4 if whole_rows(product) and by != alone else 1 for by, alone in zip(self.layout, BY_ELEMENT, strict=True))
        loads = (rows / of_a + columns / of_b) / 32
        return tiled(
            product, rows, columns, 16, "fma", fma_smem(rows, columns, self.high, self.wide), self.stages - 1, split_k=self.split,
            ctas_per_sm=self.resident, loads=loads, warps=self.threads // 32,
        )  # fmt: skip


AnyTile = MmaTile | FmaTile
Way = HopperTile | AnyTile

# rows, columns, kernel, threads, stages
WGMMA = (
    HopperTile(128, 256, "wgmma", 288, 4),
    HopperTile(128, 192, "wgmma", 288, 4),
    HopperTile(128, 128, "wgmma", 288, 6),
    HopperTile(128, 64, "wgmma", 288, 8),
    HopperTile(192, 192, "wgmma", 416, 3),  # 2048 x 2304 is 132 of these tiles
)
# 128x128 with split 6 is for 512 x 8192 x 512: 16 clusters of 6 CTAs run at once, on 96 of 132 SMs.
SPLIT_K = (
    HopperTile(64, 64, "split_k", 160, 6, 256),
    HopperTile(64, 64, "split_k", 160, 6, 256, 2),
    HopperTile(64, 64, "split_k", 160, 6, 128, 4, 2),
    HopperTile(64, 64, "split_k", 160, 6, 128, 8, 2),
    HopperTile(64, 64, "split_k", 160, 6, 128, 16, 2),
    HopperTile(64, 128, "split_k", 160, 4, 256),
    HopperTile(64, 128, "split_k", 160, 4, 256, 2),
    HopperTile(128, 128, "split_k", 288, 5, 128, 4),
    HopperTile(128, 128, "split_k", 288, 5, 128, 6),
    HopperTile(128, 128, "split_k", 288, 5, 128, 8),
    HopperTile(128, 192, "split_k", 288, 4, 128, 2),
)
TF32 = tuple(HopperTile(rows, 128, "wgmma_tf32", 288, stages) for rows, stages in ((256, 4), (192, 4), (128, 6), (64, 8)))
FMA_TMA = HopperTile(128, 128, "fma_tma", 128, 3)
MMA_128X256, MMA_128X128, MMA_64X64 = MmaTile(128, 256, 2, 4, 4, 1), MmaTile(128, 128, 2, 4, 4, 1), MmaTile(64, 64, 2, 2, 4, 3)
FMA_128X128, FMA_64X64 = FmaTile(128, 128), FmaTile(64, 64, resident=6)
ANY_GPU: tuple[AnyTile, ...] = (MMA_128X256, MMA_128X128, MMA_64X64, FMA_128X128, FMA_64X64)
# Transposed factors: wgmma and split_k for x @ w.t() (NT), the kernels for any GPU for every layout.
HOPPER_NT = tuple(replace(tile, layout="NT") for tile in (*WGMMA, *SPLIT_K))
ANY_TRANSPOSED = tuple(replace(tile, layout=layout) for layout in ("NT", "TN", "TT") for tile in ANY_GPU[1:])
SPLITS = 1, 2, 4, 8, 16
MOST_SPLIT = {128 * 256: 1, 128 * 128: 8}  # by a tile's elements; smaller tiles give as many CTAs and exchange fewer sums


def offered(product: Product, machine: Machine) -> dict[str, Way]:
    """Name -> configuration, for all that support the product. OPWISE_EXTRA=off leaves out the tiles for skinny and tiny products."""
    return {way.name: way for way in configurations() if way.takes(product, machine)}


def configurations() -> tuple[Way, ...]:
    tiles = ANY_GPU
    if os.environ.get("OPWISE_EXTRA") != "off":
        from opwise.backends.numba_cuda.matmul import extra

        tiles = (*ANY_GPU, *extra.TILES)
    split = (replace(tile, split=s) for tile in tiles for s in SPLITS if s <= MOST_SPLIT.get(tile.rows * tile.columns, max(SPLITS)))
    return (*WGMMA, *SPLIT_K, *TF32, FMA_TMA, *split, *HOPPER_NT, *ANY_TRANSPOSED)


def storage_of(kind: str) -> str:
    """The dtype of the elements in memory: TF32 is stored as float32."""
    return "float32" if kind == "tfloat32" else kind


def whole_rows(product: Product) -> bool:
    """True if every row that 16-byte copies read, or vector stores write, starts at a multiple of 16 bytes. float32 factors that fma.py
    transposes are exempt: it reads them in 4-byte copies."""
    each = ptx.ELEMENTS[storage_of(product.kind)]
    by_element = BY_ELEMENT if product.kind == "float32" else "--"
    factors = zip(product.pitches, product.layout, by_element, strict=False)
    rows = [product.n, *(pitch for pitch, by, alone in factors if by != alone)]
    return product.alignment == 16 and all(row % each == 0 for row in rows)
