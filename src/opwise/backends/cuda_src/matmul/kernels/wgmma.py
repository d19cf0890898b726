"""wgmma.cu: 16-bit matmul on sm_90 by TMA and wgmma: the persistent kernel (wgmma.cuh), ping-pong (pingpong.cuh), split-K over a cluster
(split_k.cuh), and swapped operands (swap_ab.cuh).

There are several widths because a partial wave takes as long as a full one: 3072 x 3072 is 2.2 waves of 128 x 256, 2.9 of 128 x 192.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import HALF, Tiled, line, tma_takes, wgmma_unit
from opwise.backends.cuda_src.plan import Matrix, Plan
from opwise.backends.gemm.cost import Product, Work, split_summation, tiled, wgmma_smem
from opwise.backends.gemm.gpu import Machine

DEPTH = 64  # elements of K in a row of a box: 128 bytes


@dataclass(frozen=True)
class Hopper(Tiled):
    """A tile of wgmma.cu. The rows of A, B and C must be aligned to 16 bytes."""

    KINDS: ClassVar = HALF
    UNIT: ClassVar = "matmul_wgmma"
    BY_KIND: ClassVar = False

    def kernel(self, kind: str) -> str:
        return f"{self.UNIT}_{kind}_{self.name}"

    @property
    def order(self) -> str:
        """The templates' argument B_T, omitted for a row-major B."""
        return ", true" if self.layout == "NT" else ""

    def takes(self, product: Product, machine: Machine) -> bool:
        return tma_takes(product, machine)

    def summation(self, product: Product) -> str:
        return "wgmma"


@dataclass(frozen=True)
class Wgmma(Hopper):
    """Persistent, one CTA per SM: a producer warpgroup and two consumers of 64 or 128 rows each, three for 192 x 192.

    cluster: 2 if CTAs side by side multicast A to each other. boxes: through which C is stored. pingpong: consumers alternate, each with a
    tile of its own.
    """

    cluster: int = 1
    boxes: int = 4
    pingpong: bool = False

    @property
    def name(self) -> str:
        return (
            f"{'pingpong_' * self.pingpong}{self.rows}x{self.columns}"
            + (f"_1x{self.cluster}" if self.cluster > 1 and not self.pingpong else "")
            + self.suffix
        )

    @property
    def consumers(self) -> int:
        return 3 if self.rows == self.columns == 192 else 2

    @property
    def box(self) -> int:
        """Columns of B and of C that are copied at a time."""
        return 32 if self.columns % 64 else 64

    def instance(self, kind: str) -> str:
        """A WarpgroupTile; its last numbers are boxes of C per consumer, and consumers that read a stage."""
        readers = 1 if self.pingpong else self.consumers
        function = "pingpong_matmul" if self.pingpong else "warpgroup_matmul"
        tile = f"{kind}, {self.rows}, {self.columns}, {self.stages}, {self.boxes // self.consumers}, {readers}{self.order}"
        return f"KERNEL({self.kernel(kind)}, {function}, {self.cluster}, {tile})"

    def shared_bytes(self, kind: str) -> int:
        """As in WarpgroupTile: the ring, the boxes of C, two mbarriers per stage, the padding to a multiple of 1024."""
        return self.stages * (128 * (self.rows + self.columns) + 16) + self.boxes * 128 * self.box + 1024

    def ctas(self, product: Product) -> int:
        """One per tile, in whole clusters."""
        return -(-product.m // self.rows) * -(-product.n // (self.columns * self.cluster)) * self.cluster

    def work(self, product: Product) -> Work:
        return tiled(
            product, self.rows, self.columns, DEPTH, wgmma_unit(product.kind), wgmma_smem(self.rows, self.columns, 2), self.stages,
            cluster=(1, self.cluster), persistent=True, pingpong=self.pingpong,
        )  # fmt: skip

    def launch(self, product: Product, machine: Machine) -> Plan:
        m, k, n = product[:3]
        b = Matrix(n, k, self.columns, DEPTH) if self.layout == "NT" else Matrix(k, n, DEPTH, self.box)
        maps = Matrix(m, k, self.rows // self.cluster, DEPTH), b, Matrix(m, n, 64, self.box)
        ctas = min(self.ctas(product), machine.sms // self.cluster * self.cluster)
        threads = 128 * (self.consumers + 1)
        return Plan(self.kernel(product.kind), line(ctas), (threads, 1, 1), self.shared_bytes(product.kind), matrices=maps)


@dataclass(frozen=True)
class SplitK(Hopper):
    """`split` CTAs of a cluster share a tile's K and push their partial sums to each other's shared memory. One warp fills the ring.

    depth: elements of K per stage. group: GROUP of tile_position.
    """

    depth: int
    split: int
    ctas_per_sm: int = 1
    group: int = 16

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}_s{self.split}{self.suffix}"

    @property
    def threads(self) -> int:
        return 2 * self.rows + 32

    def instance(self, kind: str) -> str:
        tile = f"{self.rows}, {self.columns}, {self.depth}, {self.stages}, {self.split}, {self.ctas_per_sm}, {self.group}{self.order}"
        return f"SPLIT_KERNEL({self.kernel(kind)}, {kind}, {tile})"

    def shared_bytes(self, kind: str) -> int:
        """As in SplitKTile: the ring, the inbox, two mbarriers per stage and one per warp, the padding to a multiple of 1024."""
        inbox = 4 * self.rows * self.columns * (self.split - 1) // self.split
        return self.stages * (2 * self.depth * (self.rows + self.columns) + 16) + inbox + self.threads // 4 + 1024

    def work(self, product: Product) -> Work:
        return tiled(
            product, self.rows, self.columns, self.depth, wgmma_unit(product.kind), wgmma_smem(self.rows, self.columns, 2), self.stages,
            split_k=self.split, ctas_per_sm=self.ctas_per_sm,
        )  # fmt: skip

    def summation(self, product: Product) -> str:
        return split_summation(product.k, self.columns // 16, self.split, self.depth)

    def launch(self, product: Product, machine: Machine) -> Plan:
        """Boxes of A are no higher than A, as split_k.cuh expects."""
        m, k, n = product[:3]
        b = Matrix(n, k, self.columns, 64) if self.layout == "NT" else Matrix(k, n, self.depth, 64)
        maps = Matrix(m, k, min(m, self.rows), 64), b
        threads, shared = (self.threads, 1, 1), self.shared_bytes(product.kind)
        return Plan(self.kernel(product.kind), line(self.tiles(product) * self.split), threads, shared, matrices=maps)


@dataclass(frozen=True)
class SwapAB(Hopper):
    """C' = B' A': the tile's rows are wgmma's columns, so they may be any multiple of 16. One CTA per tile."""

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return 2 * self.columns + 32

    def instance(self, kind: str) -> str:
        return f"SWAP_AB_KERNEL({self.kernel(kind)}, {kind}, 1, {self.rows}, {self.columns}, {self.stages})"

    def shared_bytes(self, kind: str) -> int:
        """As in SwapTile, and as SplitK's."""
        return self.stages * (128 * (self.rows + self.columns) + 16) + self.threads // 4 + 1024

    def work(self, product: Product) -> Work:
        smem = wgmma_smem(self.rows, self.columns, 2, swap_ab=True)
        return tiled(product, self.rows, self.columns, DEPTH, wgmma_unit(product.kind), smem, self.stages)

    def launch(self, product: Product, machine: Machine) -> Plan:
        m, k, n = product[:3]
        maps = Matrix(m, k, self.rows, DEPTH), Matrix(k, n, DEPTH, 64), Matrix(m, n, self.rows, 64)
        threads, shared = (self.threads, 1, 1), self.shared_bytes(product.kind)
        return Plan(self.kernel(product.kind), line(self.tiles(product)), threads, shared, matrices=maps)


# rows, columns, stages
ROW_MAJOR = (
    Wgmma(128, 256, 4),
    Wgmma(128, 192, 4),
    Wgmma(128, 128, 6),
    Wgmma(128, 64, 8),
    Wgmma(256, 160, 4, cluster=2),  # 2048 x 5120 is 256 of these tiles, 97 % of two waves
    Wgmma(192, 192, 4, cluster=2, boxes=3),  # 2112 cubed is 121 of these tiles, 132 CTAs
    Wgmma(128, 128, 6, cluster=2, pingpong=True),
    Wgmma(192, 128, 5, cluster=2, boxes=2, pingpong=True),
    SwapAB(144, 128, 6),  # 1536 cubed is 132 of these tiles
    SplitK(64, 64, 6, depth=128, split=1),
    SplitK(64, 64, 6, depth=128, split=2),
    SplitK(64, 64, 6, depth=64, split=4, ctas_per_sm=2),
    SplitK(64, 64, 6, depth=64, split=8, ctas_per_sm=2),
    SplitK(64, 64, 6, depth=64, split=16, ctas_per_sm=2),
    SplitK(64, 128, 4, depth=128, split=1, group=4),
    SplitK(128, 128, 5, depth=64, split=4),
    SplitK(128, 192, 4, depth=64, split=2),
)
CONFIGS = (*ROW_MAJOR, *(replace(tile, layout="NT") for tile in ROW_MAJOR if not isinstance(tile, SwapAB)))
