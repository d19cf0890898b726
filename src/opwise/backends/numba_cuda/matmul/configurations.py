"""The configurations of matmul's kernels: tiles, stages, split-K, and the numbers by which plan.py rates them.

A tile's name in tuned tables: 128x256 or 64x64_s2 (s: blocks that split K) of wgmma, tma_128x128 of float32 by TMA, mma_128x256 and
fma_64x64_s4 of the kernels for any GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.numba_cuda.common import ptx

HopperTile = Kernel  # cuda_src's description of the same kernels in CUDA C++, with its estimate

# ---- sm_90's own kernels: A and B by TMA ----------------------------------------------------------------------------------------
# Name, rows, columns, threads, bytes of K a stage, stages, bytes that divide rows, multiply-adds per time while the SM has no other block,
# cost of a tile beyond its products in elements of K; crowd, lean and by_sectors as in cuda_src's model of the same kernels in CUDA C++.
BY_SECTORS = 0.85  # fitted to Numba's times: what rows of whole 32-byte sectors cost, in parts of what other misaligned pitches cost
WGMMA = (
    HopperTile("128x256", 128, 256, 288, 128, 4, 16, 2.7, 243, wgmma=True, crowd=0.28, by_sectors=BY_SECTORS),
    HopperTile("128x192", 128, 192, 288, 128, 4, 16, 2.4, 221, wgmma=True, crowd=0.15, by_sectors=BY_SECTORS),
    HopperTile("128x128", 128, 128, 288, 128, 6, 16, 2.0, 208, wgmma=True, crowd=0.17, by_sectors=BY_SECTORS),
    HopperTile("128x64", 128, 64, 288, 128, 8, 16, 2.94, 459, wgmma=True, crowd=1.05, lean=1, by_sectors=BY_SECTORS),
)
# `split` blocks of a cluster, `resident` blocks an SM, `inbox` KiB for the partial sums that other blocks push. Six blocks share a tile
# of 128x128 where that makes 16 clusters, which 96 of 132 SMs run at once: 512 x 8192 x 512 takes 12.4 us, by clusters of four 14.2.
SPLIT_K = tuple(
    HopperTile(name, rows, columns, threads, step, stages, 16, speed, fixed, wgmma=True, by_sectors=BY_SECTORS, split=split,
               resident=resident, inbox=inbox * 1024, crowd=crowd, lean=lean)
    for name, rows, columns, threads, step, stages, speed, fixed, split, resident, inbox, crowd, lean in (
        ("64x64_s1", 64, 64, 160, 256, 6, 1.61, 373, 1, 1, 0, 0.47, 1),
        ("64x64_s2", 64, 64, 160, 256, 6, 2.16, 1215, 2, 1, 8, 1.62, -1),
        ("64x64_s4", 64, 64, 160, 128, 6, 1.06, 594, 4, 2, 12, 0.64, 0),
        ("64x64_s8", 64, 64, 160, 128, 6, 1.13, 524, 8, 2, 14, 0.66, 0),
        ("64x64_s16", 64, 64, 160, 128, 6, 2.82, 3359, 16, 2, 15, 3.59, 0),
        ("64x128_s1", 64, 128, 160, 256, 4, 1.82, 635, 1, 1, 0, 0.26, 0),
        ("64x128_s2", 64, 128, 160, 256, 4, 1.87, 569, 2, 1, 16, 0.73, -1),
        ("128x128_s4", 128, 128, 288, 128, 5, 3.67, 1238, 4, 1, 48, 1.36, 0),
        ("128x128_s6", 128, 128, 288, 128, 5, 2.61, 790, 6, 1, 55, 0.68, 0),
        ("128x128_s8", 128, 128, 288, 128, 5, 4.2, 1830, 8, 1, 56, 1.6, 0),
    )
)  # fmt: skip
TF32 = tuple(
    HopperTile(f"{rows}x128", rows, 128, 288, 128, stages, 16, speed, 64)
    for rows, stages, speed in ((256, 4, 1.0), (192, 4, 0.97), (128, 6, 0.845), (64, 8, 0.6))
)
FMA_TMA = HopperTile("tma_128x128", 128, 128, 128, 128, 3, 16, 1.0, 32, simt=True)
# TF32 and FMA_TMA have no split-K, and are compared with the kernels for any GPU in us: by kind and rows of a tile, its ns for each 1 of K.
BEGIN_US = 3.0
K_NS = {("float32", 128): 87.0, ("tfloat32", 64): 8.3, ("tfloat32", 128): 11.5, ("tfloat32", 192): 15.0, ("tfloat32", 256): 19.5}
MANY = {"float32": 4, "tfloat32": 1}  # tiles an SM from which nothing else is as quick


# ---- any GPU --------------------------------------------------------------------------------------------------------------------


class MmaTile(NamedTuple):
    """rows x columns of C a block, by warps in a grid of down x across."""

    rows: int
    columns: int
    down: int
    across: int
    stages: int
    ctas_per_sm: int  # which bounds the registers
    split: int = 1  # blocks of a cluster that share K

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across


class FmaTile(NamedTuple):
    """rows x columns of C a block, high x wide (multiples of 4) of them a thread."""

    rows: int
    columns: int
    high: int = 8
    wide: int = 8
    stages: int = 3
    ctas_per_sm: int = 1
    split: int = 1

    @property
    def threads(self) -> int:
        return (self.rows // self.high) * (self.columns // self.wide)


AnyTile = MmaTile | FmaTile
Way = HopperTile | AnyTile
MMA_128X256, MMA_128X128, MMA_64X64 = MmaTile(128, 256, 2, 4, 4, 1), MmaTile(128, 128, 2, 4, 4, 1), MmaTile(64, 64, 2, 2, 4, 3)
FMA_128X128, FMA_64X64 = FmaTile(128, 128), FmaTile(64, 64)
SPLITS = 1, 2, 4, 8, 16
MOST_SPLIT = {128 * 256: 1, 128 * 128: 8}  # by a tile's elements: beyond, smaller tiles have as many blocks, and their sums travel less


class Cost(NamedTuple):
    """On an H200, of which an SM runs `resident` blocks at once: a block takes `fixed_us`, and for each 1 of its part of K `alone_ns` where
    it is the SM's only one; of several each takes `busy_ns` for each that is there, if that is more."""

    resident: int
    fixed_us: float
    alone_ns: float
    busy_ns: float


Costs = Mapping[tuple[str, bool], Mapping[AnyTile, Cost]]
# (kind, do all rows start at multiples of 16 bytes?) -> tile, of one block, -> cost. Fitted to 1274 times of 22 products
# (docs/lab/numba.md), but for 16 bits whose rows start on 16 bytes, which get wgmma on Hopper: those are estimates.
COSTS: Costs = {
    ("float32", True): {FMA_128X128: Cost(1, 3.8, 98.5, 96.0), FMA_64X64: Cost(6, 2.9, 53.9, 28.8)},
    ("float32", False): {FMA_128X128: Cost(1, 5.0, 87.2, 101), FMA_64X64: Cost(6, 4.2, 55.2, 29.4)},
    ("tfloat32", True): {
        MMA_128X256: Cost(1, 6.4, 75.0, 75.0),
        MMA_128X128: Cost(1, 4.1, 46.1, 46.2),
        MMA_64X64: Cost(3, 2.8, 16.9, 15.2),
    },
    ("tfloat32", False): {
        MMA_128X256: Cost(1, 8.5, 130, 130),
        MMA_128X128: Cost(1, 2.2, 80.0, 80.0),
        MMA_64X64: Cost(3, 1.7, 35.3, 23.7),
    },
    ("16-bit", True): {MMA_128X256: Cost(1, 5.5, 38, 38), MMA_128X128: Cost(1, 4.5, 21, 21), MMA_64X64: Cost(4, 3.5, 8.5, 6)},
    ("16-bit", False): {
        MMA_128X256: Cost(1, 0.1, 85.6, 85.0),
        MMA_128X128: Cost(1, 4.0, 50.9, 49.4),
        MMA_64X64: Cost(3, 2.4, 36.6, 15.5),
    },
}
REDUCE_US = {1: 0.0, 2: 1.4, 4: 1.2, 8: 1.5, 16: 2.4}  # of so many blocks: to meet and to add up their partial sums


def costs_of(kind: str, whole: bool) -> Mapping[AnyTile, Cost]:
    """kind: float32, tfloat32, float16 or bfloat16. With OPWISE_EXTRA=off without the tiles for skinny and tiny products."""
    key = kind if kind in ("float32", "tfloat32") else "16-bit", whole
    if os.environ.get("OPWISE_EXTRA") == "off":
        return COSTS[key]
    from opwise.backends.numba_cuda.matmul import extra

    return {**COSTS[key], **extra.COSTS[key]}


def storage_of(kind: str) -> str:
    """The dtype of the elements."""
    return "float32" if kind == "tfloat32" else kind


def whole_rows(kind: str, k: int, n: int, at_16_bytes: bool) -> bool:
    """Do all rows that 16-byte copies fetch, or whole vectors store, start at multiples of 16 bytes? at_16_bytes: do the matrices?"""
    each = ptx.ELEMENTS[storage_of(kind)]
    return at_16_bytes and n % each == 0 and (kind == "float32" or k % each == 0)  # float32's A is fetched element by element


def name_of(way: Way) -> str:
    if isinstance(way, HopperTile):
        return way.name
    kernel = "fma" if isinstance(way, FmaTile) else "mma"
    return f"{kernel}_{way.rows}x{way.columns}" + f"_s{way.split}" * (way.split > 1)


def tiles_of(tile: AnyTile, m: int, n: int) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)
