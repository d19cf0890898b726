"""ffma.cu: float32 on sm_90 with K split over the warps of a CTA and, with stream-K, over the grid (ffma_stream_k.cuh)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from opwise.backends.cuda_src.matmul.configurations import HOPPER, TMA_LIMIT, Tiled, line
from opwise.backends.cuda_src.plan import FLOAT32, Matrix, Plan
from opwise.backends.gemm import gpu
from opwise.backends.gemm.cost import Product, Work, fma_smem, tiled
from opwise.backends.gemm.gpu import Machine

DEPTH = 16  # elements of K in a step of a warp
CLASSES, WIDER = 4, 4  # for unaligned rows: maps of a factor, and extra elements in a box's row
THREAD = 8, 16  # rows and columns per thread


@dataclass(frozen=True)
class Ffma(Tiled):
    """warps: of a CTA; each has its own steps of K, for the whole tile, and its own ring. residue: unaligned rows, four maps per factor.
    stream_k: one wave of CTAs, which share all steps of all tiles evenly; the CTAs of a tile add their sums in order."""

    KINDS: ClassVar = ("float32",)
    UNIT: ClassVar = "matmul_ffma"

    warps: int
    ctas_per_sm: int
    residue: bool = False
    stream_k: bool = False

    @property
    def name(self) -> str:
        rows = "residue" if self.residue else "aligned"
        return f"ffma_{rows}_{self.rows}x{self.columns}_w{self.warps}_{'stream_k' if self.stream_k else 's1'}"

    def kernel(self, kind: str) -> str:
        return f"matmul_ffma_{kind}_{self.name.removeprefix('ffma_')}"

    def instance(self, kind: str) -> str:
        macro = ("RESIDUE" if self.residue else "ALIGNED") + "_STREAM_K" * self.stream_k
        return f"{macro}({self.rows}, {self.columns}, {self.warps}, {self.ctas_per_sm}, {THREAD[0]}, {THREAD[1]}, {self.stages})"

    def shared_bytes(self, kind: str) -> int:
        """A ring per warp, an mbarrier per stage of each, the padding to a multiple of 1024. Boxes are aligned to 128 bytes."""
        wider, boxes = (4 * WIDER, CLASSES) if self.residue else (0, 1)
        a, b = self.rows * (4 * DEPTH + wider), DEPTH * (4 * self.columns + wider)
        filled = sum(-(-part // (128 * boxes)) * 128 * boxes for part in (a, b))
        stage = filled if self.residue else -(-filled // 1024) * 1024
        return self.warps * self.stages * (stage + 8) + 1024

    def takes(self, product: Product, machine: Machine) -> bool:
        fits = product.vector_bytes in (4, 8) if self.residue else product.vector_bytes == 16
        return fits and machine.capability == HOPPER and max(product[:3]) <= TMA_LIMIT

    def rounds(self, product: Product) -> int:
        """Steps of K per warp and tile."""
        return -(-product.k // (DEPTH * self.warps))

    def ctas(self, product: Product, sms: int) -> int:
        """One per tile. stream-K: one wave, at most one per round; a multiple of the tiles if that uses 90 % of the wave."""
        tiles, at_once = self.tiles(product), self.ctas_per_sm * sms
        if not self.stream_k:
            return tiles
        even = at_once // tiles * tiles
        return min(even if 10 * even >= 9 * at_once else at_once, tiles * self.rounds(product))

    def work(self, product: Product) -> Work:
        smem = fma_smem(self.rows, self.columns, *THREAD, (self.rows / THREAD[0], self.columns / THREAD[1]))
        smem += 2 * 4 * self.rows * self.columns * self.warps / product.k  # the reduction over warps
        found = tiled(
            product, self.rows, self.columns, DEPTH * self.warps, "fma", smem, self.stages, ctas_per_sm=self.ctas_per_sm,
            warps=self.warps, setup=self.residue,
        )  # fmt: skip
        if not self.stream_k:
            return found
        ctas = self.ctas(product, gpu.HOPPER.sms)
        steps, waits = -(-found.ctas * found.steps // ctas), max(ctas / found.ctas - 1, 0)
        return replace(found, ctas=ctas, steps=steps, exchanged=4 * self.rows * self.columns, waits=waits)

    def launch(self, product: Product, machine: Machine) -> Plan:
        """stream-K: scratch has a flag per CTA, by which it tells the next CTA that its sums are stored."""
        m, k, n = product[:3]
        parts, wider, classes = (CLASSES, WIDER, CLASSES) if self.residue else (1, 0, 0)
        a = Matrix(m, k, self.rows // parts, DEPTH + wider, FLOAT32, classes)
        b = Matrix(k, n, DEPTH // parts, self.columns + wider, FLOAT32, classes)
        flags = 4 * self.ctas_per_sm * machine.sms if self.stream_k else 0
        return Plan(
            self.kernel(product.kind), line(self.ctas(product, machine.sms)), (32 * self.warps, 1, 1), self.shared_bytes(product.kind),
            flags, (a, b), flags, cooperative=self.stream_k,
        )  # fmt: skip


# rows, columns, stages, warps, CTAs per SM
CONFIGS = (
    Ffma(64, 64, 3, 4, 2, stream_k=True),
    Ffma(64, 64, 2, 8, 1, residue=True),
    Ffma(64, 64, 2, 2, 4, residue=True),
)
