"""portable.cu: B of 7 columns at most (gemv_columns.cuh), A of 4 rows at most (gemv_rows.cuh). The other factor is read once, by threads
that share K and multiply by FMA; a tile would spend its time on rows or columns that lie outside of C."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, HALF, STORAGE, Config, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, tiled
from opwise.backends.gemm.gpu import Machine

MOST_COLUMNS, MOST_NARROW, MOST_ROWS = 7, 4, 4  # of B by 16-byte and by narrower accesses, of A
ROWS, THREADS = 4, 256  # of gemv_columns: rows of A that threads have, threads of a CTA
ROWS_THREADS = 1024  # of gemv_rows: of all CTAs of an SM


@dataclass(frozen=True)
class Gemv(Config):
    """count: B's columns or A's rows. vector_bytes: of an access. TF32 has nothing to gain: float32's kernels take its products."""

    UNIT: ClassVar = "matmul"

    kind: str
    count: int
    vector_bytes: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def serves(self, kind: str) -> bool:
        return self.kind == ("float32" if kind == "tfloat32" else kind)

    def kernel(self, kind: str) -> str:
        return f"{self.UNIT}_{self.kind}_{self.name}"


@dataclass(frozen=True)
class GemvColumns(Gemv):
    """sharing: threads that share a row's K."""

    sharing: int

    @property
    def name(self) -> str:
        return f"gemv_columns_{self.count}_t{self.sharing}_v{self.vector_bytes}"

    def instance(self, kind: str) -> str:
        tile = f"GemvColumnsTile<{STORAGE[kind]}, {self.count}, {self.sharing}, {self.vector_bytes}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, gemv_columns_matmul, 2, {tile})"

    def takes(self, product: Product, machine: Machine) -> bool:
        """Rows of A alone must begin on 16 bytes; B is read as it lies."""
        wide = product.alignment == 16 and product.k * product.size % 16 == 0
        return product.n == self.count and self.vector_bytes == (16 if wide else product.size)

    def work(self, product: Product) -> Work:
        rows, size = ROWS * THREADS // self.sharing, product.size
        depth = self.sharing * self.vector_bytes // size
        loads = rows * size / (32 * self.vector_bytes) + THREADS / self.sharing * product.n * size / 128
        stages = 2 if self.vector_bytes == 16 else 8
        return tiled(product, rows, product.n, depth, "fma", 0.0, stages, ctas_per_sm=4, loads=loads)

    def launch(self, product: Product, machine: Machine) -> Plan:
        ctas = -(-product.m * self.sharing // (ROWS * THREADS))
        return Plan(self.kernel(product.kind), line(ctas), (THREADS, 1, 1))


@dataclass(frozen=True)
class GemvRows(Gemv):
    """columns: of B that a CTA has, ctas_per_sm of them an SM, whose threads share K."""

    columns: int
    ctas_per_sm: int

    @property
    def name(self) -> str:
        return f"gemv_rows_{self.count}x{self.columns}_b{self.ctas_per_sm}_v{self.vector_bytes}"

    @property
    def threads(self) -> int:
        return ROWS_THREADS // self.ctas_per_sm

    def instance(self, kind: str) -> str:
        tile = f"GemvRowsTile<{STORAGE[kind]}, {self.count}, {self.columns}, {self.ctas_per_sm}, {self.vector_bytes}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, gemv_rows_matmul, {self.ctas_per_sm}, {tile})"

    def takes(self, product: Product, machine: Machine) -> bool:
        """Rows of B and C begin on an access."""
        fits = product.alignment >= self.vector_bytes and product.n * product.size % self.vector_bytes == 0
        return product.m == self.count and fits

    def work(self, product: Product) -> Work:
        depth = self.threads * self.vector_bytes // (self.columns * product.size)  # rows of B that a CTA reads at once
        loads = self.columns * product.size / (32 * self.vector_bytes)
        return tiled(
            product, self.count, self.columns, depth, "fma", 0.0, 8, ctas_per_sm=self.ctas_per_sm, loads=loads, warps=self.threads // 32
        )  # fmt: skip

    def launch(self, product: Product, machine: Machine) -> Plan:
        return Plan(self.kernel(product.kind), line(-(-product.n // self.columns)), (self.threads, 1, 1))


SHARING = 8, THREADS, 32  # threads: 8 lanes, a CTA, a warp
WIDTHS = {2: ((32, 1), (128, 2), (128, 8)), 4: ((32, 1), (128, 2), (128, 8)), 16: ((32, 1), (64, 4), (128, 4))}  # bytes -> columns, CTAs


def _configs() -> tuple[Gemv, ...]:
    found: list[Gemv] = []
    for kind in ("float32", *HALF):
        size = BYTES[kind]
        found += [GemvColumns(kind, n, 16, sharing) for n, sharing in every(range(1, MOST_COLUMNS + 1), SHARING)]
        found += [GemvColumns(kind, n, size, sharing) for n, sharing in every(range(1, MOST_NARROW + 1), SHARING[1:])]
        for vector_bytes in (2, 4) if size == 2 else (4, 16):
            widths = WIDTHS[vector_bytes]
            found += [GemvRows(kind, m, vector_bytes, *width) for m, width in every(range(1, MOST_ROWS + 1), widths)]
    return tuple(found)


CONFIGS = _configs()
