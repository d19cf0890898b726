"""portable.cu: matmul on any GPU, by mma.sync (mma_sync.cuh) or by FMA (simt.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import BYTES, HALF, STORAGE, TENSOR_CORES_FROM, Tiled, cluster_unit, line
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work, fma_smem, mma_smem, tiled
from opwise.backends.gemm.gpu import Machine


@dataclass(frozen=True)
class MmaSync(Tiled):
    """warps: in M, N and K. step_bytes: of a row of A, in a stage. vector_bytes: alignment of addresses and rows, 16, 4 or 2."""

    KINDS: ClassVar = ("tfloat32", *HALF)
    UNIT: ClassVar = "matmul"

    step_bytes: int
    warps: tuple[int, int, int]
    ctas_per_sm: int
    vector_bytes: int

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}_v{self.vector_bytes}{self.suffix}"

    @property
    def kinds(self) -> tuple[str, ...]:
        return HALF if self.vector_bytes == 2 else self.KINDS

    @property
    def threads(self) -> int:
        high, wide, deep = self.warps
        return 32 * high * wide * deep

    def arguments(self, kind: str) -> str:
        """The template arguments of MmaTile."""
        warps = ", ".join(map(str, self.warps))
        return f"{STORAGE[kind]}, {self.rows}, {self.columns}, {self.step_bytes}, {warps}, {self.stages}, {self.vector_bytes}{orders(self)}"

    def instance(self, kind: str) -> str:
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, mma_sync_matmul, {self.ctas_per_sm}, MmaTile<{self.arguments(kind)}>)"

    def shared_bytes(self, kind: str) -> int:
        return self.stages * self.step_bytes * (self.rows + self.columns)

    def takes(self, product: Product, machine: Machine) -> bool:
        return machine.capability >= TENSOR_CORES_FROM and self.vector_bytes == accesses(product)

    def summation(self, product: Product) -> str:
        return self.name

    def work(self, product: Product) -> Work:
        return mma_work(self, product)

    def launch(self, product: Product, machine: Machine) -> Plan:
        return Plan(self.kernel(product.kind), line(self.tiles(product)), (self.threads, 1, 1), self.shared_bytes(product.kind))


def mma_work(config: MmaSync, product: Product, split_k: int = 1) -> Work:
    rows, columns, size = config.rows, config.columns, product.size
    high, wide, deep = config.warps
    smem = mma_smem(rows, columns, rows // high, columns // wide, size)
    return tiled(
        product, rows, columns, config.step_bytes // size, cluster_unit(product.kind), smem, config.stages - 1, split_k=split_k,
        ctas_per_sm=config.ctas_per_sm, loads=(rows + columns) * size / (32 * config.vector_bytes), warps=high * wide * deep,
    )  # fmt: skip


@dataclass(frozen=True)
class Simt(Tiled):
    """threads_n x threads_m threads per slice of K share the tile; `slices` such groups share a step of `depth` k."""

    KINDS: ClassVar = ("float32", *HALF)
    UNIT: ClassVar = "matmul"

    threads_n: int
    threads_m: int
    depth: int
    slices: int
    ctas_per_sm: int
    vector_bytes: int

    @property
    def name(self) -> str:
        return f"simt_{self.rows}x{self.columns}_v{self.vector_bytes}{self.suffix}"

    @property
    def kinds(self) -> tuple[str, ...]:
        return HALF if self.vector_bytes == 2 else ("float32",)

    @property
    def threads(self) -> int:
        return self.threads_n * self.threads_m * self.slices

    def arguments(self, kind: str) -> str:
        """The template arguments of SimtTile."""
        each = f"{self.rows // self.threads_m}, {self.columns // self.threads_n}"
        steps = f"{self.depth}, {self.slices}, {self.stages}, {self.vector_bytes}"
        return f"{STORAGE[kind]}, {self.threads_n}, {self.threads_m}, {each}, {steps}{orders(self)}"

    def instance(self, kind: str) -> str:
        return f"KERNEL({self.kernel(kind)}, {STORAGE[kind]}, simt_matmul, {self.ctas_per_sm}, SimtTile<{self.arguments(kind)}>)"

    def shared_bytes(self, kind: str) -> int:
        return self.stages * self.depth * BYTES[kind] * (self.rows + self.columns)

    def takes(self, product: Product, machine: Machine) -> bool:
        """16-bit types use FMA only on GPUs without mma.sync for them."""
        if product.size == 2:
            return machine.capability < TENSOR_CORES_FROM
        return self.vector_bytes == accesses(product)

    def summation(self, product: Product) -> str:
        return self.name

    def work(self, product: Product) -> Work:
        return simt_work(self, product)

    def launch(self, product: Product, machine: Machine) -> Plan:
        return Plan(self.kernel(product.kind), line(self.tiles(product)), (self.threads, 1, 1), self.shared_bytes(product.kind))


def simt_work(config: Simt, product: Product, split_k: int = 1) -> Work:
    rows, columns = config.rows, config.columns
    smem = fma_smem(rows, columns, rows / config.threads_m, columns / config.threads_n)
    return tiled(
        product, rows, columns, config.depth, "fma", smem, config.stages - 1, split_k=split_k, ctas_per_sm=config.ctas_per_sm,
        loads=(rows + columns) * product.size / (32 * config.vector_bytes), warps=config.threads // 32,
    )  # fmt: skip


def accesses(product: Product) -> int:
    """The widest load that addresses and rows allow: 16 or 4 bytes by cp.async, 2 through registers."""
    return 16 if product.vector_bytes == 16 else max(product.vector_bytes & 2, min(product.vector_bytes, 4))


def orders(config: MmaSync | Simt) -> str:
    """The arguments A_T and B_T of MmaTile and SimtTile, omitted for row-major factors."""
    return "" if config.layout == "NN" else "".join(f", {str(order == 'T').lower()}" for order in config.layout)


# rows, columns, stages, bytes of K per step, warps in M, N, K, CTAs per SM, bytes of a load
MMA = (
    MmaSync(128, 256, 3, 128, (2, 4, 1), 1, 16),
    MmaSync(128, 128, 4, 64, (2, 2, 1), 2, 16),
    MmaSync(64, 64, 4, 128, (2, 2, 1), 3, 16),
    MmaSync(16, 32, 6, 256, (1, 1, 4), 2, 16),
    MmaSync(128, 128, 4, 64, (2, 4, 1), 1, 4),
    MmaSync(64, 64, 4, 128, (2, 2, 1), 2, 4),
    MmaSync(128, 128, 2, 64, (2, 4, 1), 1, 2),
    MmaSync(64, 64, 2, 64, (2, 2, 1), 3, 2),
)
# rows, columns, stages, threads in N and M, K of a step, its slices, CTAs per SM, bytes of a load
SIMT = (
    Simt(128, 128, 3, 8, 16, 16, 1, 2, 16),
    Simt(64, 64, 4, 16, 8, 16, 1, 3, 16),
    Simt(16, 32, 6, 8, 4, 64, 4, 2, 16),
    Simt(128, 128, 3, 16, 16, 16, 1, 1, 4),
    Simt(64, 64, 4, 16, 8, 16, 1, 3, 4),
    Simt(64, 64, 3, 16, 8, 16, 1, 2, 2),
)


def _transposed(layout: str) -> tuple[MmaSync | Simt, ...]:
    """The tiles of a layout. With 4-byte elements a step has 128 bytes of K: a shorter transposed B would be read with bank conflicts.
    Large tiles have 256 threads if 128 would spill."""
    warps_n, mma_ctas = (2, 2) if layout == "NT" else (4, 1)
    threads_n, simt_ctas = (8, 2) if layout == "TN" else (16, 1)
    return (
        MmaSync(128, 128, 3, 128, (2, warps_n, 1), mma_ctas, 16, layout=layout),
        MmaSync(64, 64, 4, 128, (2, 2, 1), 3, 16, layout=layout),
        MmaSync(64, 64, 4, 128, (2, 2, 1), 2, 4, layout=layout),
        MmaSync(64, 64, 2, 64, (2, 2, 1), 3, 2, layout=layout),
        Simt(128, 128, 2, threads_n, 16, 32, 1, simt_ctas, 16, layout=layout),
        Simt(64, 64, 3, 16, 8, 32, 1, 3, 16, layout=layout),
        Simt(64, 64, 3, 16, 8, 32, 1, 2, 4, layout=layout),
    )


CONFIGS = (*MMA, *SIMT, *_transposed("NT"), *_transposed("TN"), *_transposed("TT"))
