"""Products of 4-byte elements on sm_90 whose factors come by TMA: TF32 by wgmma (wgmma_tf32.cu), float32 by FMA (ffma_tma.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import Tiled, line, tma_takes
from opwise.backends.cuda_src.plan import FLOAT32, TFLOAT32, Matrix, Plan
from opwise.backends.gemm.cost import Product, Work, fma_smem, tiled, wgmma_smem
from opwise.backends.gemm.gpu import Machine

DEPTH = 32  # elements of K in a stage


def ring_bytes(rows: int, columns: int, stages: int) -> int:
    """The ring, two mbarriers per stage (FMA uses one), the padding to a multiple of 1024."""
    return stages * (4 * DEPTH * (rows + columns) + 16) + 1024


def tf32_smem(rows: int, columns: int) -> float:
    """Shared memory traffic per k: the product is transposed, and B is read to registers for wgmma."""
    return wgmma_smem(rows, columns, 4, swap_ab=True, a_by_registers=True) + 2 * 4 * columns


@dataclass(frozen=True)
class WgmmaTf32(Tiled):
    """Persistent, one CTA per SM. TMA rounds the factors to TF32."""

    KINDS: ClassVar = ("tfloat32",)
    UNIT: ClassVar = "matmul_wgmma"

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}"

    def instance(self, kind: str) -> str:
        return f"KERNEL({self.kernel(kind)}, Tf32Tile<{self.rows}, {self.stages}>)"

    def shared_bytes(self, kind: str) -> int:
        return ring_bytes(self.rows, self.columns, self.stages)

    def takes(self, product: Product, machine: Machine) -> bool:
        return tma_takes(product, machine)

    def summation(self, product: Product) -> str:
        return "wgmma_tf32"

    def work(self, product: Product) -> Work:
        smem = tf32_smem(self.rows, self.columns)
        return tiled(product, self.rows, self.columns, DEPTH, "wgmma_tf32", smem, self.stages, persistent=True)

    def launch(self, product: Product, machine: Machine) -> Plan:
        m, k, n = product[:3]
        maps = Matrix(m, k, self.rows, DEPTH, TFLOAT32), Matrix(k, n, DEPTH, 32, TFLOAT32)
        ctas = min(self.tiles(product), machine.sms)
        return Plan(self.kernel(product.kind), line(ctas), (384, 1, 1), self.shared_bytes(product.kind), matrices=maps)


@dataclass(frozen=True)
class FfmaTma(Tiled):
    """One CTA per tile, 8 x 16 elements per thread."""

    KINDS: ClassVar = ("float32",)
    UNIT: ClassVar = "matmul_ffma"

    @property
    def name(self) -> str:
        return f"tma_{self.rows}x{self.columns}_8x16"

    def instance(self, kind: str) -> str:
        return f"TMA_KERNEL({self.kernel(kind)}, FfmaTmaTile<8, 16, 8>)"

    def shared_bytes(self, kind: str) -> int:
        return ring_bytes(self.rows, self.columns, self.stages)

    def takes(self, product: Product, machine: Machine) -> bool:
        return tma_takes(product, machine)

    def summation(self, product: Product) -> str:
        return self.name

    def work(self, product: Product) -> Work:
        smem = fma_smem(self.rows, self.columns, 8, 16)
        return tiled(product, self.rows, self.columns, DEPTH, "fma", smem, self.stages, ctas_per_sm=2, warps=4)

    def launch(self, product: Product, machine: Machine) -> Plan:
        m, k, n = product[:3]
        maps = Matrix(m, k, self.rows, DEPTH, FLOAT32), Matrix(k, n, DEPTH, self.columns, FLOAT32)
        return Plan(self.kernel(product.kind), line(self.tiles(product)), (128, 1, 1), self.shared_bytes(product.kind), matrices=maps)


# rows, columns, stages
CONFIGS = (WgmmaTf32(256, 128, 4), WgmmaTf32(192, 128, 4), WgmmaTf32(128, 128, 6), WgmmaTf32(64, 128, 8), FfmaTma(128, 128, 3))
