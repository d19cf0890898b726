"""skinny_m.cuh: at most 16 rows of A, on sm_90, 16 bits and TF32. B is loaded straight to registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, HOPPER, STORAGE, Config, cluster_unit, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, tiled
from opwise.backends.gemm.gpu import Machine

ROWS, COLUMNS = 16, 32  # of a tile
STEP = 64  # bytes of a row of A that a warp takes at once


@dataclass(frozen=True)
class SkinnyM(Config):
    """warps: of a CTA, which share K. split: CTAs of a cluster that share K. steps: whose loads a warp has in flight."""

    dtypes: tuple[str, ...]
    warps: int
    split: int
    ctas_per_sm: int
    steps: int
    vector_bytes: int

    UNIT: ClassVar = "matmul_extra"

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.dtypes

    @property
    def name(self) -> str:
        return f"skinny_m_{ROWS}x{COLUMNS}_w{self.warps}_v{self.vector_bytes}" + f"_s{self.split}" * (self.split > 1)

    def unit(self, kind: str) -> str:
        return f"{self.UNIT}{'_cluster' * (self.split > 1)}_{kind}"

    def instance(self, kind: str) -> str:
        tile = f"SkinnyMTile<{STORAGE[kind]}, {COLUMNS}, {self.warps}, {self.steps}, {self.vector_bytes}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, skinny_m_matmul, {self.split}, {self.ctas_per_sm}, {tile})"

    def shared_bytes(self, kind: str) -> int:
        """The sums of each warp, and those that a cluster exchanges, as in skinny_m.cuh."""
        return (self.warps + (self.split > 1)) * 4 * ROWS * COLUMNS

    def takes(self, product: Product, machine: Machine) -> bool:
        return machine.capability == HOPPER and product.m <= ROWS and product.vector_bytes >= self.vector_bytes

    def work(self, product: Product) -> Work:
        size, vector = BYTES[product.kind], self.vector_bytes
        return tiled(
            product, ROWS, COLUMNS, STEP // size * self.warps, cluster_unit(product.kind), 0.0, self.steps, split_k=self.split,
            ctas_per_sm=self.ctas_per_sm, loads=COLUMNS * size / (32 * vector) + ROWS * size / 512, warps=self.warps,
        )  # fmt: skip

    def launch(self, product: Product, machine: Machine) -> Plan:
        ctas, shared = -(-product.n // COLUMNS) * self.split, self.shared_bytes(product.kind)
        return Plan(self.kernel(product.kind), line(ctas), (32 * self.warps, 1, 1), shared)


HALF, TF32 = ("float16", "bfloat16"), ("tfloat32",)
# dtypes, warps, split-K, CTAs per SM, steps in flight, bytes of a load of B
CONFIGS = (
    SkinnyM(HALF, 8, 1, 2, 3, 8),
    SkinnyM(HALF, 4, 1, 4, 2, 8),
    SkinnyM(HALF, 8, 8, 2, 2, 8),
    SkinnyM(TF32, 8, 1, 2, 3, 16),
    SkinnyM(TF32, 8, 8, 2, 2, 16),
)
