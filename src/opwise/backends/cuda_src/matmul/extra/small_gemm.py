"""small_gemm.cuh: few tiles and a short K, on sm_90. A CTA has all loads of a step in flight at once, without a ring or tensor maps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, HALF, HOPPER, STORAGE, Config, cluster_unit, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, fma_smem, mma_smem, tiled
from opwise.backends.gemm.gpu import Machine

THREADS, CTAS_PER_SM = 128, 2
ALONE = 64  # bytes of K: a CTA's share is a multiple


@dataclass(frozen=True)
class SmallGemm(Config):
    """rows, columns: of the tile. depth: K of a step. split: CTAs of a cluster that share K. warps_m: warps along M, unused by FMA."""

    dtypes: tuple[str, ...]
    rows: int
    columns: int
    depth: int
    vector_bytes: int
    split: int = 1
    warps_m: int = 1

    UNIT: ClassVar = "matmul_extra"

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.dtypes

    @property
    def name(self) -> str:
        return f"small_gemm_{self.rows}x{self.columns}x{self.depth}_v{self.vector_bytes}" + f"_s{self.split}" * (self.split > 1)

    def unit(self, kind: str) -> str:
        return f"{self.UNIT}{'_cluster' * (self.split > 1)}_{kind}"

    def instance(self, kind: str) -> str:
        sizes = f"{self.rows}, {self.columns}, {self.depth}"
        tile = f"SmallGemmTile<{STORAGE[kind]}, {sizes}, {self.warps_m}, {self.vector_bytes}>"
        if kind == "float32":
            tile = f"SmallGemmFmaTile<{sizes}, {self.vector_bytes}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, small_gemm_matmul, {self.split}, {CTAS_PER_SM}, {tile})"

    def shared_bytes(self, kind: str) -> int:
        """A step of A and of B, with padded rows, as in SmallGemmTile and SmallGemmFmaTile."""
        size, beside = BYTES[kind], {"float32": 0, "tfloat32": 32}.get(kind, 16)
        return self.rows * (self.depth * size + 16) + self.depth * (self.columns * size + beside)

    def takes(self, product: Product, machine: Machine) -> bool:
        """16-bit types have no 16-byte loads: they were no faster than 8-byte loads."""
        narrow = product.size if product.size == 2 else 4
        whole = 8 if product.size == 2 else 16
        return machine.capability == HOPPER and self.vector_bytes == (whole if product.vector_bytes >= whole else narrow)

    def work(self, product: Product) -> Work:
        size, rows, columns = product.size, self.rows, self.columns
        if product.kind == "float32":
            smem = fma_smem(rows, columns, rows * columns // 4 // THREADS, 4)
        else:
            smem = mma_smem(rows, columns, 16, max(8, columns * self.warps_m // 4), size)
        found = tiled(
            product, rows, columns, self.depth, cluster_unit(product.kind), smem, 1, split_k=self.split, ctas_per_sm=4,
            loads=(rows + columns) * size / (32 * self.vector_bytes), warps=THREADS // 32,
        )  # fmt: skip
        unit = ALONE // size
        part = math.ceil(math.ceil(product.k / unit) / self.split) * unit  # most elements of K of a CTA
        filled = min(part, self.depth) / self.depth  # fraction of a step
        return replace(
            found, steps=-(-part // self.depth), macs=found.macs * filled, smem=found.smem * filled, loads=found.loads * filled,
            fetched=found.fetched * filled,
        )  # fmt: skip

    def launch(self, product: Product, machine: Machine) -> Plan:
        tiles = -(-product.m // self.rows) * -(-product.n // self.columns)
        return Plan(self.kernel(product.kind), line(tiles * self.split), (THREADS, 1, 1), self.shared_bytes(product.kind))


TF32, FLOAT32 = ("tfloat32",), ("float32",)
# dtypes, rows, columns, K of a step, bytes of a load, split-K, warps along M
CONFIGS = (
    SmallGemm(HALF, 16, 32, 64, 2),
    SmallGemm(HALF, 32, 32, 64, 2, warps_m=2),
    SmallGemm(HALF, 16, 64, 64, 8),
    SmallGemm(HALF, 32, 64, 64, 8, warps_m=2),
    SmallGemm(HALF, 16, 32, 128, 8),
    SmallGemm(HALF, 16, 32, 128, 2, 8),
    SmallGemm(HALF, 16, 32, 128, 8, 8),
    SmallGemm(TF32, 16, 32, 32, 4),
    SmallGemm(TF32, 32, 32, 32, 4, warps_m=2),
    SmallGemm(TF32, 16, 32, 64, 16),
    SmallGemm(TF32, 32, 32, 64, 16, warps_m=2),
    SmallGemm(TF32, 16, 32, 64, 4, 8),
    SmallGemm(TF32, 16, 32, 64, 16, 8),
    SmallGemm(FLOAT32, 16, 32, 32, 4),
    SmallGemm(FLOAT32, 16, 64, 32, 4),
    SmallGemm(FLOAT32, 16, 64, 32, 16),
    SmallGemm(FLOAT32, 16, 32, 64, 16),
    SmallGemm(FLOAT32, 16, 32, 64, 4, 8),
    SmallGemm(FLOAT32, 16, 32, 64, 16, 8),
    SmallGemm(FLOAT32, 32, 32, 64, 16, 4),
)
