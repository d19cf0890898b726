"""skinny_n.cuh: B of 5 to 16 columns, by mma.sync, 16 bits and TF32. A is read once; a warp has 32 rows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, STORAGE, TENSOR_CORES_FROM, Config, cluster_unit, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, tiled
from opwise.backends.gemm.gpu import Machine

HIGH, STEP = 2, 64  # 16-row groups of A per warp; bytes of a row in a step
THREADS, CTAS_PER_SM = 256, 2
FEWEST, MOST = 5, 16  # columns of B


@dataclass(frozen=True)
class SkinnyN(Config):
    """count: most columns of B, 8 or 16. sharing: threads that share a row's K. vector_bytes: bytes of a load of B. of_a: alignment of A's
    rows; 1: any, with A itself aligned to 16 bytes."""

    UNIT: ClassVar = "matmul_extra"

    dtypes: tuple[str, ...]
    count: int
    sharing: int
    vector_bytes: int
    of_a: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.dtypes

    @property
    def name(self) -> str:
        vectors = f"{self.vector_bytes}a{self.of_a}" if self.of_a < 16 else f"{self.vector_bytes}"
        return f"skinny_n_{self.count}_h{HIGH}_t{self.sharing}_v{vectors}"

    @property
    def rows(self) -> int:
        """Rows of a CTA."""
        return 16 * HIGH * THREADS // self.sharing

    def instance(self, kind: str) -> str:
        more = f", {self.of_a}" if self.of_a < 16 else ""
        tile = f"SkinnyNTile<{STORAGE[kind]}, {self.count}, {HIGH}, {self.sharing // 32}, {self.vector_bytes}{more}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, skinny_n_matmul, 1, {CTAS_PER_SM}, {tile})"

    def shared_bytes(self, kind: str) -> int:
        """For ldmatrix: STEP bytes of K of B for each of a warp's steps in flight, as in SkinnyNTile."""
        return THREADS // 32 * (4 // HIGH) * STEP * self.count if self.vector_bytes == 16 else 0

    def takes(self, product: Product, machine: Machine) -> bool:
        """8-column kernels take 5 to 8 columns, 16-column ones 9 to 16. 16-byte loads of B: 16-bit types, exactly `count` columns."""
        size, row = product.size, product.k * product.size
        of_a = 16 if product.alignment == 16 and row % 16 == 0 else 4 if size == 4 else 1
        count = 8 if product.n <= 8 else MOST
        whole = size == 2 and product.n == count and of_a == 16
        fits = FEWEST <= product.n <= MOST and (of_a > 1 or product.alignment == 16)
        same = (self.count, self.of_a, self.vector_bytes) == (count, of_a, 16 if whole else size)
        return machine.capability >= TENSOR_CORES_FROM and fits and same

    def work(self, product: Product) -> Work:
        size, warps = BYTES[product.kind], self.sharing // 32
        loads = self.rows * size / (32 * max(self.of_a, size)) + 8 / warps * self.count * size / (32 * self.vector_bytes)
        stages = 2 if self.of_a == 16 else 1
        depth, unit = STEP // size * warps, cluster_unit(product.kind)
        return tiled(product, self.rows, self.count, depth, unit, 0.0, stages, ctas_per_sm=CTAS_PER_SM, loads=loads)

    def launch(self, product: Product, machine: Machine) -> Plan:
        return Plan(self.kernel(product.kind), line(-(-product.m // self.rows)), (THREADS, 1, 1), self.shared_bytes(product.kind))


HALF, TF32 = ("float16", "bfloat16"), ("tfloat32",)
VECTORS = ((HALF, 16, 16), (HALF, 2, 16), (HALF, 2, 1), (TF32, 4, 16), (TF32, 4, 4))  # dtypes, bytes of an access of B, of A
CONFIGS = tuple(SkinnyN(kinds, count, sharing, b, a) for kinds, b, a in VECTORS for count in (8, 16) for sharing in (32, 256))
