"""cluster.cu: few tiles and a long K on sm_90, for products that wgmma's split-K cannot take. The CTAs of a cluster share a tile's K and
reduce their sums through distributed shared memory (cluster_reduce.cuh). Tiles are those of mma_sync and simt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import HOPPER, STORAGE, Config, line
from opwise.backends.cuda_src.matmul.kernels.portable import MmaSync, Simt, accesses, mma_work, simt_work
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work
from opwise.backends.gemm.gpu import Machine


@dataclass(frozen=True)
class Cluster(Config):
    """split: CTAs of a cluster that share the K of `tile`."""

    UNIT: ClassVar = "matmul_cluster"

    tile: MmaSync | Simt
    split: int

    @property
    def way(self) -> str:
        return "mma" if isinstance(self.tile, MmaSync) else "simt"

    @property
    def name(self) -> str:
        return f"cluster_{self.way}_{self.tile.rows}x{self.tile.columns}_v{self.tile.vector_bytes}_s{self.split}"

    @property
    def kinds(self) -> tuple[str, ...]:
        if isinstance(self.tile, Simt):
            return ("float32",)
        return self.tile.kinds if self.tile.vector_bytes == 2 else ("tfloat32",)

    def serves(self, kind: str) -> bool:
        """FMA tiles also take TF32 products: TF32 is allowed, not required."""
        return kind in self.kinds or (kind == "tfloat32" and self.way == "simt")

    def kernel(self, kind: str) -> str:
        kind = "float32" if self.way == "simt" else kind
        return f"{self.UNIT}_{kind}_{self.name.removeprefix('cluster_')}"

    def instance(self, kind: str) -> str:
        storage, name = STORAGE[kind], type(self.tile).__name__
        template, function = {"MmaSync": ("MmaTile", "mma_sync_matmul"), "Simt": ("SimtTile", "simt_matmul")}[name]
        head = f"{self.kernel(kind)}, {storage} *, {storage}, {function}, {self.split}, {self.tile.ctas_per_sm}"
        return f"KERNEL({head}, {template}<{self.tile.arguments(kind)}>)"

    def shared_bytes(self, kind: str) -> int:
        return self.tile.shared_bytes(kind)

    def takes(self, product: Product, machine: Machine) -> bool:
        return machine.capability == HOPPER and self.tile.vector_bytes == accesses(product)

    def work(self, product: Product) -> Work:
        tile = self.tile
        return mma_work(tile, product, self.split) if isinstance(tile, MmaSync) else simt_work(tile, product, self.split)

    def launch(self, product: Product, machine: Machine) -> Plan:
        ctas = self.tile.tiles(product) * self.split
        return Plan(self.kernel(product.kind), line(ctas), (self.tile.threads, 1, 1), self.shared_bytes(product.kind))


def _simt(rows: int, columns: int, threads_n: int, threads_m: int, depth: int, slices: int, stages: int, ctas: int, vector: int) -> Simt:
    return Simt(rows, columns, stages, threads_n, threads_m, depth, slices, ctas, vector)


# Simt tiles: rows, columns, threads in N and M, K of a step, its slices, stages, CTAs per SM, bytes of a load.
CONFIGS = (
    Cluster(_simt(4, 64, 16, 4, 64, 2, 4, 3, 16), 8),
    Cluster(_simt(16, 64, 16, 4, 64, 2, 3, 3, 4), 4),
    Cluster(_simt(16, 64, 16, 4, 64, 2, 3, 3, 4), 16),
    Cluster(_simt(64, 16, 4, 8, 64, 4, 3, 3, 16), 4),
    Cluster(_simt(64, 16, 4, 8, 64, 4, 3, 3, 4), 1),
    Cluster(_simt(64, 16, 4, 8, 64, 4, 3, 3, 4), 4),
    Cluster(_simt(64, 32, 8, 8, 64, 4, 3, 2, 16), 1),
    Cluster(_simt(64, 32, 8, 8, 64, 4, 3, 2, 4), 1),
    Cluster(_simt(16, 32, 8, 4, 64, 4, 6, 2, 16), 2),
    Cluster(_simt(16, 32, 8, 4, 64, 4, 6, 2, 16), 16),
    Cluster(_simt(32, 32, 8, 8, 32, 2, 6, 3, 16), 8),
    Cluster(_simt(32, 32, 8, 8, 32, 2, 6, 3, 16), 16),
    Cluster(_simt(32, 32, 8, 8, 32, 2, 6, 3, 4), 4),
    Cluster(_simt(32, 32, 8, 8, 32, 2, 6, 3, 4), 16),
    Cluster(_simt(64, 64, 16, 8, 16, 1, 6, 3, 4), 2),
    Cluster(MmaSync(16, 32, 6, 256, (1, 1, 4), 2, 16), 2),
    Cluster(MmaSync(16, 32, 6, 256, (1, 1, 4), 2, 16), 8),
    Cluster(MmaSync(16, 32, 6, 256, (1, 1, 4), 2, 16), 16),
    Cluster(MmaSync(32, 32, 6, 128, (2, 1, 2), 3, 16), 16),
    Cluster(MmaSync(64, 32, 5, 128, (4, 1, 1), 3, 16), 2),
    Cluster(MmaSync(32, 32, 2, 128, (2, 1, 2), 3, 2), 16),
    Cluster(MmaSync(64, 64, 2, 128, (2, 2, 1), 2, 2), 4),
)
