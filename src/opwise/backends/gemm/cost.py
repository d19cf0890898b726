"""The predicted time of a product by a configuration, in us: one model for the kernels of all backends.

A configuration states its work (`Work`), gpu.py the GPU's rates. One step of K of a CTA has these terms: multiply-adds, shared memory
traffic, load instructions, bytes from the L2, bytes from DRAM, and DRAM latency divided by the stages. They overlap partly: the time of a
step is a p-norm of the terms. Then

    time = launch + waves of CTAs x (latency + steps of K x step + exchange of partial sums + store of C)
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from opwise.backends.gemm.gpu import HOPPER, Gpu

GROUP = 8  # tile rows of a group of CTAs that the model assumes for the reuse in L2; kernels have 8 or 16
WGMMA = ("wgmma", "wgmma_tf32")
CLOCKS_OF_MULTICAST = 0.15  # added for every cluster, as a fraction of Gpu.barrier; that itself is added where sums are exchanged


def alignment(*tensors: Tensor) -> int:
    """Bytes: the greatest power of two, at most 16, that divides the addresses of all tensors."""
    low = functools.reduce(operator.or_, (x.data_ptr() for x in tensors)) & 15
    return low & -low or 16


class Product(NamedTuple):
    """C (m, n) = A (m, k) B (k, n). kind: float16, bfloat16, float32 or tfloat32. alignment: bytes, at most 16, that divide all addresses.

    layout: NN, NT, TN or TT, for A and B. N: row-major; T: the transpose of a row-major matrix. C is row-major.
    """

    m: int
    k: int
    n: int
    kind: str
    alignment: int = 16
    layout: str = "NN"

    @classmethod
    def of(cls, a: Tensor, b: Tensor, out: Tensor, kind: str) -> Product:
        layout = "".join("N" if x.is_contiguous() else "T" for x in (a, b))
        return cls(a.shape[0], a.shape[1], b.shape[1], kind, alignment(a, b, out), layout)

    @property
    def pitches(self) -> tuple[int, int, int]:
        """Row lengths, in elements, of A, B and C as stored."""
        a, b = self.layout[0], self.layout[1]
        return self.k if a == "N" else self.m, self.n if b == "N" else self.k, self.n

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 if self.kind in ("float32", "tfloat32") else 2

    @property
    def vector_bytes(self) -> int:
        """Bytes: the greatest power of two, at most 16, that divides the addresses and the stored rows of A, B and C."""
        rows = [length * self.size for length in self.pitches]
        return min(self.alignment, 16, *(row & -row for row in rows))

    @property
    def bytes(self) -> int:
        """Compulsory bytes: A and B read once, C written once."""
        return self.size * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True)
class Work:
    """The work of a configuration for one product.

    ctas: CTAs of the grid (tiles x split-K); cluster: CTAs of a cluster; ctas_per_sm: resident CTAs of an SM; warps: of a CTA.
    steps: steps of K of a CTA. Per CTA and step: unit: the multiplying instruction (a field of Gpu); macs: multiply-adds, padding of the
    tile included; smem: bytes through shared memory; loads: warp-wide loads; fetched: bytes from the L2. stages: steps in flight.
    wave: DRAM bytes that one wave of CTAs reads over all of K; bytes: compulsory bytes of the product.
    stored: bytes of C a CTA stores, scaled up where stores are narrower than 8 bytes. exchanged: bytes of partial sums a CTA sends.
    waits: CTAs that must finish the same tile before this one, in sequence. setup: a CTA fetches tensor maps by residue of the rows.
    persistent: CTAs loop over tiles, and prefetch the next tile's first steps. pingpong: one tile is stored while the next is multiplied.
    """

    ctas: int
    steps: int
    unit: str
    macs: float
    smem: float
    fetched: float
    stages: int
    wave: float
    bytes: float
    stored: float
    loads: float = 0.0
    exchanged: float = 0.0
    warps: int = 8
    cluster: int = 1
    ctas_per_sm: int = 1
    persistent: bool = False
    pingpong: bool = False
    setup: bool = False
    waits: float = 0.0


class Configuration(Protocol):
    """What a plan chooses among: a dataclass, with a field `layout` if its kernels take several layouts."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...

    def work(self, product: Product) -> Work: ...

    def summation(self, product: Product) -> str:
        """A name for the order in which K is summed: configurations with the same name give the same bits on one GPU, for every m. "" if a
        row's bits depend on its position in the tile, or if this was not examined."""


def split_summation(k: int, units: int, split: int, depth: int) -> str:
    """`summation` of wgmma tiles with split-K: `split` CTAs share k in steps of `depth`. A tile row has `units` units of 16 columns; the
    partial sums of unit i are added in rank order from CTA i % split on. "" if rows differ in that order and split > 2."""
    if split == 1:
        return "wgmma"
    if split > 2 and units % split:
        return ""
    return f"wgmma/{split}" + (f"/{depth}" if k % (128 * split) else "")  # else depths 64 and 128 cut K at the same places


def predicted_us(work: Work, gpu: Gpu) -> float:
    """Time of one launch from a cold L2, in us."""
    usable = gpu.sms_of(work.cluster)
    full, rest = divmod(work.ctas, usable * work.ctas_per_sm)
    fixed = gpu.latency + work.setup * gpu.setup
    fixed += gpu.barrier * work.waits
    if work.cluster > 1:
        fixed += gpu.barrier * ((work.exchanged > 0) + CLOCKS_OF_MULTICAST)
    clocks = full * _wave(work, usable * work.ctas_per_sm, usable, gpu) if full else 0.0
    clocks += _wave(work, rest, usable, gpu) if rest else 0.0
    waves = full + (rest > 0)
    if work.persistent:  # a tile's first steps are fetched during the last steps of the one before
        hidden = fixed + (_ends(work, work.ctas_per_sm, gpu) * gpu.pingpong_hides if work.pingpong else 0.0)
    else:  # CTAs that share an SM hide each other's prologues and epilogues
        hidden = fixed * (1 - 1 / work.ctas_per_sm)
    clocks += waves * fixed - (waves - 1) * hidden
    least = work.bytes / gpu.dram + gpu.latency
    return gpu.launch_us + max(clocks, least) / gpu.clock_mhz


def _wave(work: Work, ctas: int, usable: int, gpu: Gpu) -> float:
    """Clocks of one wave of `ctas` CTAs on `usable` SMs."""
    beside = -(-ctas // usable)  # CTAs of the busiest SM
    wgmma = work.unit in WGMMA
    busy = 1.0 if wgmma else min(1.0, beside * work.warps / gpu.warps)
    inside = (
        beside * work.macs / (getattr(gpu, work.unit) * busy),
        beside * work.smem / gpu.smem,
        max(ctas / gpu.sms / gpu.l2, beside / gpu.l2_sm) * work.fetched,
    )
    others = (
        beside * work.loads * gpu.load,
        ctas / (usable * work.ctas_per_sm) * work.wave / max(work.steps, 1) / gpu.dram,
        gpu.fetch / work.stages,
    )
    # wgmma and TMA are asynchronous and overlap almost fully (a large exponent); work of the threads and DRAM latency overlap less.
    busiest = (_norm(gpu.overlap_wgmma, *inside),) if wgmma else inside
    step = _norm(gpu.overlap, *busiest, *others) + (gpu.step_wgmma if wgmma else gpu.step)
    return work.steps * step + _ends(work, beside, gpu)


def _norm(exponent: float, *terms: float) -> float:
    most = max(terms)
    total: float = most * math.fsum((t / most) ** exponent for t in terms) ** (1 / exponent)
    return total


def _ends(work: Work, beside: int, gpu: Gpu) -> float:
    """Clocks in which the `beside` CTAs of one SM exchange partial sums and store C."""
    return beside * (work.stored / gpu.store + work.exchanged / gpu.exchange)


# -- what tiles have in common -----------------------------------------------------------------------------------------------


def tiled(
    product: Product,
    rows: int,
    columns: int,
    depth: int,
    unit: str,
    smem: float,
    stages: int,
    *,
    cluster: tuple[int, int] = (1, 1),
    split_k: int = 1,
    ctas_per_sm: int = 1,
    tiles: int = 0,
    fetched: float | None = None,
    loads: float = 0.0,
    **more: bool | int,
) -> Work:
    """The work of CTAs with a tile of C (rows x columns) each, in steps of `depth` of K. smem and loads: per 1 of K.

    cluster: tiles (down, across) whose CTAs multicast A and B to each other. split_k: CTAs of a cluster that share a tile's K.
    tiles: their number, if not ceil(m / rows) x ceil(n / columns); fetched: bytes of a step from the L2, if not those of A's and B's tile.
    more: other fields of Work.
    """
    m, k, n, size = product.m, product.k, product.n, product.size
    high, wide = cluster
    down, across = -(-m // (rows * high)) * high, -(-n // (columns * wide)) * wide
    tiles = tiles or down * across
    if fetched is None:
        fetched = depth * size * (min(rows, m) / wide + min(columns, n) / high)
    return Work(
        ctas=tiles * split_k, steps=-(-k // (depth * split_k)), unit=unit, macs=rows * columns * depth, smem=smem * depth, fetched=fetched,
        stages=stages, wave=_wave_bytes(product, rows, columns, tiles, ctas_per_sm, split_k), bytes=product.bytes,
        stored=min(rows, m) * min(columns, n) * size * max(1.0, 8 / product.vector_bytes), loads=loads * depth,
        exchanged=4 * rows * columns * (split_k - 1) / split_k, cluster=max(split_k, high * wide), ctas_per_sm=ctas_per_sm, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _wave_bytes(product: Product, rows: int, columns: int, tiles: int, ctas_per_sm: int, split_k: int) -> float:
    """Bytes of A and B that one wave of tiles reads, in groups of GROUP tile rows."""
    at_once = min(HOPPER.sms * ctas_per_sm // split_k, tiles)
    down = min(-(-product.m // rows), GROUP)
    across = min(-(-product.n // columns), max(1, -(-at_once // down)))
    return product.size * product.k * (min(down * rows, product.m) + min(across * columns, product.n))


def wgmma_smem(rows: int, columns: int, size: int, swap_ab: bool = False, a_by_registers: bool = False) -> float:
    """Shared memory traffic in bytes per 1 of K: each wgmma, of 64 rows, reads both factors; copies write the tiles of A and B once."""
    high, wide = (columns, rows) if swap_ab else (rows, columns)
    instructions = -(-high // 64)
    return size * (instructions * ((0 if a_by_registers else 64) + wide) + rows + columns)


def mma_smem(rows: int, columns: int, warp_rows: int, warp_columns: int, size: int) -> float:
    """As wgmma_smem, where each warp loads the factors of its own tile by ldmatrix."""
    warps = (rows // warp_rows) * (columns // warp_columns)
    return size * (warps * (warp_rows + warp_columns) + rows + columns)


def fma_smem(rows: int, columns: int, thread_rows: float, thread_columns: float, warp: tuple[float, float] = (4, 8)) -> float:
    """As wgmma_smem, for float32 FMA: register tiles of thread_rows x thread_columns, warps of `warp` threads down and across."""
    warps = (rows / thread_rows) * (columns / thread_columns) / 32
    return 4 * (warps * (warp[0] * thread_rows + warp[1] * thread_columns) + rows + columns)
