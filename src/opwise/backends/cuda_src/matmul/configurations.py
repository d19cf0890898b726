"""What a kernel's configurations have in common. A class of them stands beside each kernel, its list of tiles below it.

A configuration exists once: `takes` says which products it can compute, `work` what it makes the GPU do (gemm/cost.py tells the time),
`launch` how it is launched, and `instance` is the line of C++ that makes a kernel of the template beside it.
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
HOPPER = (9, 0)  # wgmma, and clusters as they were measured: on no later GPU
TMA_LIMIT = 2**30  # TMA's coordinates have 32 bits


@dataclass(frozen=True)
class Config(ABC):
    """UNIT: what is compiled in one go, of each kind apart where BY_KIND. layout: of A and B, as Product's."""

    KINDS: ClassVar[tuple[str, ...]] = KINDS
    UNIT: ClassVar[str]
    BY_KIND: ClassVar[bool] = True

    layout: str = field(default="NN", kw_only=True)

    @property
    @abstractmethod
    def name(self) -> str:
        """By which tuned tables know it."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """That it has instances for."""
        return self.KINDS

    def serves(self, kind: str) -> bool:
        """Has a kernel for products of that kind?"""
        return kind in self.kinds

    def unit(self, kind: str) -> str:
        unit = self.UNIT if self.layout == "NN" else f"{self.UNIT}_transposed"
        return f"{unit}_{kind}" if self.BY_KIND else unit

    @property
    def suffix(self) -> str:
        """Of the name of a tile that there is for several layouts."""
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
        """Dynamic shared memory of a CTA."""
        return 0

    def takes(self, product: Product, machine: Machine) -> bool:
        """Can it compute the product on that GPU? Kinds and shared memory are seen to by `offered`."""
        return True

    @abstractmethod
    def work(self, product: Product) -> Work: ...

    def summation(self, product: Product) -> str:
        """As gemm.cost.Configuration has it."""
        return ""

    @abstractmethod
    def launch(self, product: Product, machine: Machine) -> Plan:
        """Over all of C."""


@dataclass(frozen=True)
class Tiled(Config):
    """rows x columns of C are a CTA's tile, stages: steps of K in its ring."""

    rows: int
    columns: int
    stages: int

    def tiles(self, product: Product) -> int:
        return -(-product.m // self.rows) * -(-product.n // self.columns)


def tma_takes(product: Product, machine: Machine) -> bool:
    """Are there tensor maps of A, B and C, whose rows begin on 16 bytes?"""
    return machine.capability == HOPPER and product.vector_bytes == 16 and max(product[:3]) <= TMA_LIMIT


def line(ctas: int) -> tuple[int, int, int]:
    return (ctas, 1, 1)


def cluster_unit(kind: str) -> str:
    """The instruction that multiplies without wgmma."""
    return {"float32": "fma", "tfloat32": "mma_tf32"}.get(kind, "mma")


def wgmma_unit(kind: str) -> str:
    return "wgmma_tf32" if kind == "tfloat32" else "wgmma"
