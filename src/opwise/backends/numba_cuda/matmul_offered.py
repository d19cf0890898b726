"""Which of Numba's kernels a product gets, and which others could compute it: what `opwise tune` measures, and a tuned table names.

A name is the tile's: 128x256, pingpong_128x128, 144x128 or 64x64_s2 by wgmma, tma_128x128 in float32 on Hopper; mma_128x256 and fma_64x64
of the kernels for any GPU, fma_32x32_s8 where eight blocks share K, fma_64x64_s1 by the same steps and one block.
"""

from __future__ import annotations

from dataclasses import replace

from opwise.backends.cuda_src import matmul as cuda_matmul
from opwise.backends.cuda_src.matmul import configuration
from opwise.backends.cuda_src.matmul.configuration import Among
from opwise.backends.cuda_src.matmul.configuration import Kernel as Tile
from opwise.backends.cuda_src.matmul.kernels import wgmma as cuda_wgmma
from opwise.backends.numba_cuda import ptx
from opwise.backends.numba_cuda.matmul_elsewhere import estimates, tiles_elsewhere
from opwise.backends.numba_cuda.matmul_fma import FmaTile
from opwise.backends.numba_cuda.matmul_fma_tma import TILE as FMA_SIDE
from opwise.backends.numba_cuda.matmul_pingpong import PAIRS, SHARED_PAIRS, SQUARE, TALL
from opwise.backends.numba_cuda.matmul_tensor import Tile as TensorTile
from opwise.backends.numba_cuda.matmul_tensor import storage_of
from opwise.backends.numba_cuda.matmul_wgmma_tf32 import TILES as TF32_TILES

TABLE = "numba_cuda/matmul"
# Of 16 tiles, as many as clusters of six that run at once, 96 of 132 multiprocessors have a part, where clusters of four use 64: 512 x 8192
# x 512 takes 12.4 us for 14.2 on an H200. Of 8 tiles clusters of eight are faster, 256 x 8192 x 512 10.2 us for 11.2, and so s4's numbers,
# by which the two were equal there, are not taken over.
SIX = replace(next(tile for tile in cuda_wgmma.SPLIT if tile.name == "128x128_s4"),
              name="128x128_s6", split=6, inbox=55 * 1024, speed=2.61, fixed=790, crowd=0.68)  # fmt: skip
# CUDA C++'s kernels in Python, and so its model of them. But rows of whole sectors, fitted to times of Numba's, cost more: 2000 cubed takes
# 25.6 us by pairs of 128x256, by pairs of pingpong_128x128 27.8.
BY_SECTORS = 0.85
ALONE: tuple[Tile, ...] = (*cuda_wgmma.WGMMA, SQUARE, TALL, *cuda_wgmma.SWAP_AB, *cuda_wgmma.SPLIT, SIX)
# Where requests to the L2 are the limit: pairs of tiles, one below the other.
PAIR = Tile("64x128_p2x1", 64, 128, 160, 256, 4, 16, 2.1, 400, wgmma=True, split=1, cluster=(2, 1), crowd=0.2,
            among=Among(512, 8192, 0.9, 1.0, rows_from=512, columns_from=512, slanted=True))  # fmt: skip
IN_PAIRS: tuple[Tile, ...] = (*PAIRS, *SHARED_PAIRS, PAIR)
HALF_TILES = tuple(replace(tile, by_sectors=BY_SECTORS) for tile in ALONE + IN_PAIRS)
FMA_TILE = Tile("tma_128x128", FMA_SIDE, FMA_SIDE, 128, 128, 3, 16, 1.0, 32, simt=True)


# Hopper's own tiles of 4-byte elements know no shared K: where multiprocessors are left without one, kernels for any GPU may be quicker.
# By a tile's kind and rows: what its beginning and end take on an H200, in us, and each 1 of K, in ns, as in matmul_elsewhere.Cost.
BEGIN_US = 3.0
K_NS = {("float32", 128): 87.0, ("tfloat32", 64): 8.3, ("tfloat32", 128): 11.5, ("tfloat32", 192): 15.0, ("tfloat32", 256): 19.5}
MANY = {"float32": 4, "tfloat32": 1}  # tiles a multiprocessor from which nothing else is as quick

Way = Tile | TensorTile | FmaTile


def name_of(way: Way) -> str:
    if isinstance(way, Tile):
        return way.name
    if isinstance(way, FmaTile):
        return f"fma_{way.rows}x{way.columns}" + (f"_s{way.split}" if way.lean else "")
    return f"mma_{way.rows}x{way.columns}" + (f"_s{way.split}" if way.split > 1 else "")


def hopper_tiles(m: int, k: int, n: int, kind: str, aligned: bool, capability: tuple[int, int]) -> tuple[Tile, ...]:
    """Those of Hopper's own kernels that take the product. kind: float32, tfloat32, float16, bfloat16; aligned: do all three matrices
    start at multiples of 16 bytes?"""
    each = ptx.ELEMENTS[storage_of(kind)]
    whole = aligned and k % each == 0 and n % each == 0 and max(m, k, n) <= cuda_matmul.WGMMA_SIZE_LIMIT
    if capability != configuration.WGMMA_ON or not whole:
        return ()
    if kind == "float32":
        return (FMA_TILE,)
    return TF32_TILES if kind == "tfloat32" else HALF_TILES


def own_on_hopper(m: int, k: int, n: int, kind: str, aligned: bool, processors: int, capability: tuple[int, int]) -> Tile | None:
    """The tile that Hopper's own kernel should compute of this product at a time; None where that kernel cannot or should not run."""
    tiles = hopper_tiles(m, k, n, kind, aligned, capability)
    known = (tile for tile in tiles if tile.takes(m, k, n, processors, capability))  # where it was measured, if it is for some alone
    best = min(known, key=lambda tile: tile.estimate(m, k, n, processors), default=None)
    if best is None or (kind, best.rows) not in K_NS or best.tiles(m, n) >= MANY[kind] * processors:
        return best
    us = BEGIN_US + -(-best.tiles(m, n) // processors) * k * K_NS[kind, best.rows] / 1000
    return best if us <= min(estimates(m, k, n, kind, aligned, processors, capability).values()) else None


def offered(m: int, k: int, n: int, kind: str, aligned: bool, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> tile, of all that take the product."""
    return {name_of(way): way for way in (*hopper_tiles(m, k, n, kind, aligned, capability), *tiles_elsewhere(kind, capability))}
