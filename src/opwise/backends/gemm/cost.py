"""How long a product should take by a configuration, in us: one model for the kernels of all backends.

A configuration says what it makes the GPU do (`Work`), gpu.py what that can do. A step of K of a CTA takes its multiply-adds, its traffic
in shared memory, its load instructions, what all CTAs fetch from the L2 and from memory, and the wait for memory that the stages share:
they overlap imperfectly, as a p-norm of their times. Then

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

GROUP = 8  # tile rows that CTAs walk down together, in every backend's kernels
WGMMA = ("wgmma", "wgmma_tf32")
CLOCKS_OF_MULTICAST = 0.15  # of a cluster's barrier, that clusters take which exchange no sums


def alignment(*tensors: Tensor) -> int:
    """The greatest power of two, 16 at most, that divides all addresses, in bytes."""
    low = functools.reduce(operator.or_, (x.data_ptr() for x in tensors)) & 15
    return low & -low or 16


class Product(NamedTuple):
    """A (m, k) B (k, n). kind: float16, bfloat16, float32 or tfloat32. aligned: bytes, 16 at most, that divide the addresses.

    layout: NN, NT, TN or TT: of A and of B, N is row-major, T the transpose of a row-major matrix. C is row-major.
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
        """Elements of a row of A, B and C as they lie in memory."""
        a, b = self.layout[0], self.layout[1]
        return self.k if a == "N" else self.m, self.n if b == "N" else self.k, self.n

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 if self.kind in ("float32", "tfloat32") else 2

    @property
    def vector_bytes(self) -> int:
        """Bytes that divide the addresses and the rows of A, B and C: the greatest such power of two, 16 at most."""
        rows = [length * self.size for length in self.pitches]
        return min(self.alignment, 16, *(row & -row for row in rows))

    @property
    def bytes(self) -> int:
        """Of reading and writing each matrix once."""
        return self.size * (self.m * self.k + self.k * self.n + self.m * self.n)


@dataclass(frozen=True)
class Work:
    """What a configuration makes the GPU do for one product.

    ctas: of the grid, those that share K included; cluster: that are launched together; ctas_per_sm: that an SM has at once; warps of each.
    steps: of K of a CTA. Of a step: unit: the instruction that multiplies (a field of Gpu); macs: multiply-adds, those outside of C
    included; smem: bytes through shared memory; loads: load instructions of a warp; fetched: bytes from the L2. stages: steps under way.
    wave: bytes that the CTAs that run at once read from memory, over all of K; bytes: that the product reads and writes once.
    stored: bytes of C a CTA, narrow stores for as many as take as long. exchanged: bytes of partial sums that a CTA sends. waits: CTAs that
    finish a tile before it, one after the other. setup: does it fetch tensor maps by residue?
    persistent: a CTA goes on to its next tile, whose first steps are fetched meanwhile. pingpong: and stores beside multiplying.
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
    """What a plan chooses among: a dataclass, with a field `layout` where there are several."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...

    def work(self, product: Product) -> Work: ...

    def summation(self, product: Product) -> str:
        """The order in which K is summed, whatever m is: configurations of one have the same bits on one GPU. "" where a row's bits depend
        on its place, or nobody has looked."""


def split_summation(k: int, units: int, split: int, depth: int) -> str:
    """`summation` of wgmma's tiles whose K `split` CTAs share in steps of `depth`; the sums of unit i of a row of 16-column `units` are
    added up from that of CTA i % split on. Where that is not the same in all rows, and addition does not commute: ""."""
    if split == 1:
        return "wgmma"
    if split > 2 and units % split:
        return ""
    return f"wgmma/{split}" + (f"/{depth}" if k % (128 * split) else "")  # steps of 64 and of 128 end at the same places


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
    if work.persistent:  # the first steps of a tile are fetched under the last of the one before
        hidden = fixed + (_ends(work, work.ctas_per_sm, gpu) * gpu.pingpong_hides if work.pingpong else 0.0)
    else:  # CTAs of an SM hide the beginnings and ends of one another
        hidden = fixed * (1 - 1 / work.ctas_per_sm)
    clocks += waves * fixed - (waves - 1) * hidden
    least = work.bytes / gpu.dram + gpu.latency
    return gpu.launch_us + max(clocks, least) / gpu.clock_mhz


def _wave(work: Work, ctas: int, usable: int, gpu: Gpu) -> float:
    """Clocks of so many CTAs that run at once, on as many SMs as are usable."""
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
    # wgmma and TMA run beside one another, nearly without a loss; what threads do themselves, and waits for memory, overlap less.
    busiest = (_norm(gpu.overlap_wgmma, *inside),) if wgmma else inside
    step = _norm(gpu.overlap, *busiest, *others) + (gpu.step_wgmma if wgmma else gpu.step)
    return work.steps * step + _ends(work, beside, gpu)


def _norm(exponent: float, *terms: float) -> float:
    most = max(terms)
    total: float = most * math.fsum((t / most) ** exponent for t in terms) ** (1 / exponent)
    return total


def _ends(work: Work, beside: int, gpu: Gpu) -> float:
    """Clocks in which CTAs of one SM exchange their sums and store C."""
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
    """The work of CTAs that have a tile of C (rows x columns) each and go through K by `depth`. smem and loads: for each 1 of K.

    cluster: tiles below and beside one another whose CTAs fetch A and B for each other. split_k: CTAs of a cluster that share a tile's K.
    tiles: how many, where it is not C over the tile; fetched: bytes of a step, where they are not the tile's rows and columns.
    more: fields of Work.
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
    """Bytes of A and B that tiles running at once read, in groups of GROUP tile rows."""
    at_once = min(HOPPER.sms * ctas_per_sm // split_k, tiles)
    down = min(-(-product.m // rows), GROUP)
    across = min(-(-product.n // columns), max(1, -(-at_once // down)))
    return product.size * product.k * (min(down * rows, product.m) + min(across * columns, product.n))


def wgmma_smem(rows: int, columns: int, size: int, swap_ab: bool = False, a_by_registers: bool = False) -> float:
    """Bytes of shared memory for each 1 of K: an instruction of 64 rows reads both factors, and copies write the tile's."""
    high, wide = (columns, rows) if swap_ab else (rows, columns)
    instructions = -(-high // 64)
    return size * (instructions * ((0 if a_by_registers else 64) + wide) + rows + columns)


def mma_smem(rows: int, columns: int, warp_rows: int, warp_columns: int, size: int) -> float:
    """As wgmma_smem, of warps that load their tile's factors by ldmatrix."""
    warps = (rows // warp_rows) * (columns // warp_columns)
    return size * (warps * (warp_rows + warp_columns) + rows + columns)


def fma_smem(rows: int, columns: int, thread_rows: float, thread_columns: float, warp: tuple[float, float] = (4, 8)) -> float:
    """As wgmma_smem, of float32 by threads that have so many rows and columns each, in warps of so many threads down and across."""
    warps = (rows / thread_rows) * (columns / thread_columns) / 32
    return 4 * (warps * (warp[0] * thread_rows + warp[1] * thread_columns) + rows + columns)
