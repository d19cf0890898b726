"""The base classes of kernel configurations. The module beside each .cu or .cuh file has a subclass and its list of tiles.

Of a configuration, `takes` says which products it can compute, `work` is the model from which gemm/cost.py predicts the time, `launch` is
the plan, and `instance` is the line of C++ that instantiates the kernel template.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from opwise.backends.cuda_src.plan import Plan
from opwise.backends.gemm.cost import Product, Work
from opwise.backends.gemm.gpu import Machine

HALF = ("float16", "bfloat16")
KINDS = ("float32", "tfloat32", *HALF)
STORAGE = {"float32": "float", "tfloat32": "float", "float16": "float16", "bfloat16": "bfloat16"}  # C++ type of an element
BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2}
TENSOR_CORES_FROM = (8, 0)  # mma.sync m16n8k16, TF32 and cp.async
HOPPER = (9, 0)  # wgmma exists on sm_90 only, and the cluster kernels were measured there only
TMA_LIMIT = 2**30  # TMA's coordinates have 32 bits


@dataclass(frozen=True)
class Config(ABC):
    """UNIT: name of the translation unit; BY_KIND: each kind has its own. layout: of A and B, as in Product."""

    KINDS: ClassVar[tuple[str, ...]] = KINDS
    UNIT: ClassVar[str]
    BY_KIND: ClassVar[bool] = True

    layout: str = field(default="NN", kw_only=True)

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in tuned tables."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that it has instances for."""
        return self.KINDS

    def serves(self, kind: str) -> bool:
        """Whether it has a kernel for products of that kind."""
        return kind in self.kinds

    def unit(self, kind: str) -> str:
        unit = self.UNIT if self.layout == "NN" else f"{self.UNIT}_transposed"
        return f"{unit}_{kind}" if self.BY_KIND else unit

    @property
    def suffix(self) -> str:
        """The layout in the name, as "_nt"; "" for NN."""
        return "" if self.layout == "NN" else f"_{self.layout.lower()}"

    def kernel(self, kind: str) -> str:
        """The kernel's name in C++."""
        return f"{self.unit(kind)}_{self.name}"

    @abstractmethod
    def instance(self, kind: str) -> str:
        """The line of C++ that defines `kernel(kind)`, by a macro of the unit's file."""

    def instances(self) -> dict[tuple[str, str], str]:
        """(unit, kernel) -> line, of all kinds."""
        return {(self.unit(kind), self.kernel(kind)): self.instance(kind) for kind in self.kinds}

    def shared_bytes(self, kind: str) -> int:
        """Dynamic shared memory of a CTA, in bytes."""
        return 0

    def takes(self, product: Product, machine: Machine) -> bool:
        """Whether it can compute the product on that GPU. `offered` checks kind, layout and shared memory."""
        return True

    @abstractmethod
    def work(self, product: Product) -> Work: ...

    def summation(self, product: Product) -> str:
        """As in gemm.cost.Configuration."""
        return ""

    @abstractmethod
    def launch(self, product: Product, machine: Machine) -> Plan:
        """The plan for the whole product."""


@dataclass(frozen=True)
class Tiled(Config):
    """rows, columns: of a CTA's tile of C. stages: steps of K in its ring."""

    rows: int
    columns: int
    stages: int

    def tiles(self, product: Product) -> int:
        return -(-product.m // self.rows) * -(-product.n // self.columns)


def tma_takes(product: Product, machine: Machine) -> bool:
    """Whether A, B and C can have tensor maps: sm_90, rows aligned to 16 bytes."""
    return machine.capability == HOPPER and product.vector_bytes == 16 and max(product[:3]) <= TMA_LIMIT


def line(ctas: int) -> tuple[int, int, int]:
    return (ctas, 1, 1)


def cluster_unit(kind: str) -> str:
    """gemm.cost's name of the arithmetic unit without wgmma."""
    return {"float32": "fma", "tfloat32": "mma_tf32"}.get(kind, "mma")


def wgmma_unit(kind: str) -> str:
    return "wgmma_tf32" if kind == "tfloat32" else "wgmma"
