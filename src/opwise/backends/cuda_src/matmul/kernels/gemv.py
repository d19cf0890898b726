"""portable.cu: B of at most 7 columns (gemv_columns.cuh), by FMA. A is read once, by threads that share K. A tile would mostly compute
columns outside of C."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, HALF, STORAGE, Config, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, tiled
from opwise.backends.gemm.gpu import Machine

MOST_COLUMNS, MOST_NARROW = 7, 4  # most columns of B with 16-byte loads, and with single elements
ROWS, THREADS = 4, 256  # as in gemv_columns.cuh: rows of A per group of threads, threads of a CTA


@dataclass(frozen=True)
class Gemv(Config):
    """count: columns of B. vector_bytes: of a load. sharing: threads that share a row's K. The float32 kernels also take TF32 products,
    which tensor cores would not make faster."""

    UNIT: ClassVar = "matmul"

    kind: str
    count: int
    vector_bytes: int
    sharing: int

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def serves(self, kind: str) -> bool:
        return self.kind == ("float32" if kind == "tfloat32" else kind)

    def kernel(self, kind: str) -> str:
        return f"{self.UNIT}_{self.kind}_{self.name}"

    @property
    def name(self) -> str:
        return f"gemv_columns_{self.count}_t{self.sharing}_v{self.vector_bytes}"

    def instance(self, kind: str) -> str:
        tile = f"GemvColumnsTile<{STORAGE[kind]}, {self.count}, {self.sharing}, {self.vector_bytes}>"
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, gemv_columns_matmul, 2, {tile})"

    def takes(self, product: Product, machine: Machine) -> bool:
        """16-byte loads need aligned tensors and rows of A; B is read contiguously."""
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


SHARING = 8, THREADS, 32  # threads that share a row's K: 8 lanes, a CTA, a warp


def _configs() -> tuple[Gemv, ...]:
    found = []
    for kind in ("float32", *HALF):
        found += [Gemv(kind, n, 16, sharing) for n, sharing in every(range(1, MOST_COLUMNS + 1), SHARING)]
        found += [Gemv(kind, n, BYTES[kind], sharing) for n, sharing in every(range(1, MOST_NARROW + 1), SHARING[1:])]
    return tuple(found)


CONFIGS = _configs()
