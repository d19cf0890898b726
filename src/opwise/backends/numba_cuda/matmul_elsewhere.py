"""Which tile of the kernels for any GPU, matmul_fma.py and matmul_tensor.py, a product gets, and by how many blocks it is computed.

Hopper's blocks may share a tile's K, and a small model of what that takes there chooses. Other GPUs get the largest tile of which every
multiprocessor has one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from opwise.backends.cuda_src.matmul.configuration import MEASURED_ON
from opwise.backends.cuda_src.matmul.cost import clusters_at_once
from opwise.backends.numba_cuda import ptx
from opwise.backends.numba_cuda.matmul_fma import FmaTile
from opwise.backends.numba_cuda.matmul_parts import SPLITS
from opwise.backends.numba_cuda.matmul_tensor import LARGE, MEDIUM, SMALL, storage_of
from opwise.backends.numba_cuda.matmul_tensor import Tile as TensorTile

AnyTile = TensorTile | FmaTile
FMA_LARGE, FMA_SMALL = FmaTile(128, 128), FmaTile(64, 64)  # any GPU's
FMA_128, FMA_64 = FMA_LARGE._replace(lean=True), FMA_SMALL._replace(lean=True)
FMA_LOW, FMA_NARROW = FmaTile(32, 64, 4, 8, stages=6, lean=True), FmaTile(64, 32, 8, 4, stages=6, lean=True)
FMA_LEAST = FmaTile(32, 32, 4, 4, stages=6, lean=True)
# For few rows: a large B that is read once.
FMA_FLAT, FMA_THIN = FmaTile(16, 128, 8, 4, stages=6, lean=True), FmaTile(16, 64, 4, 4, stages=6, lean=True)
LOW, LEAST = TensorTile(32, 64, 2, 2, 4, 5), TensorTile(32, 32, 1, 2, 6, 8)
FLAT, THIN = TensorTile(16, 128, 1, 2, 6, 4), TensorTile(16, 64, 1, 2, 6, 6)
ANYWHERE: dict[bool, tuple[AnyTile, ...]] = {
    True: (FMA_LARGE, FMA_SMALL),
    False: (LARGE, MEDIUM, SMALL),
}  # is it float32? the largest first
# What is compiled without a GPU: kind, tile, split, whole rows; units that each thread owns some of, and that some threads do.
SPECIMENS: tuple[tuple[str, AnyTile, int, bool], ...] = (
    ("float32", FMA_128, 2, True), ("float32", FMA_LEAST, 16, False), ("float32", FMA_FLAT, 8, True), ("float32", FMA_LEAST, 1, True),
    ("tfloat32", FLAT, 8, True), ("tfloat32", SMALL, 4, False), ("bfloat16", LOW, 16, False), ("bfloat16", LEAST, 1, True),
)  # fmt: skip
MOST_SHARED = 8  # blocks that share a tile of 128x128: beyond, a tile of 64x64 has as many blocks, and its sums travel less


class Cost(NamedTuple):
    """What a tile takes on an H200: its `resident` blocks run on a multiprocessor at once. A block takes `fixed_us`, and for each 1 of its
    part of K `alone_ns` where it is the multiprocessor's only one; of several each takes `busy_ns` for each that is there, if that is more.
    """

    resident: int
    fixed_us: float
    alone_ns: float
    busy_ns: float


# (kind, do all rows start at multiples of 16 bytes?) -> tile, of one block, -> what it takes. Fitted to 1274 times of 22 products
# (docs/lab/numba.md), but for 16 bits whose rows start on 16 bytes, which get Hopper's own tiles: those are estimates.
COSTS: dict[tuple[str, bool], dict[AnyTile, Cost]] = {
    ("float32", True): {
        FMA_LARGE: Cost(1, 4.6, 131, 130),
        FMA_SMALL: Cost(7, 2.7, 109, 56.4),
        FMA_128: Cost(1, 3.8, 98.5, 96.0),
        FMA_64: Cost(6, 2.9, 53.9, 28.8),
        FMA_LOW: Cost(5, 2.1, 29.2, 16.6),
        FMA_NARROW: Cost(5, 2.3, 30.4, 17.6),
        FMA_LEAST: Cost(8, 1.9, 19.1, 9.8),
        FMA_FLAT: Cost(4, 1.9, 29.0, 15.6),
        FMA_THIN: Cost(7, 1.9, 17.6, 9.4),
    },
    ("float32", False): {
        FMA_LARGE: Cost(1, 6.0, 141, 139),
        FMA_SMALL: Cost(7, 2.6, 152, 72.7),
        FMA_128: Cost(1, 5.0, 87.2, 101),
        FMA_64: Cost(6, 4.2, 55.2, 29.4),
        FMA_LOW: Cost(5, 1.7, 39.2, 17.2),
        FMA_NARROW: Cost(5, 1.8, 32.2, 18.8),
        FMA_LEAST: Cost(8, 2.2, 18.0, 11.1),
        FMA_FLAT: Cost(4, 2.1, 34.6, 20.1),
        FMA_THIN: Cost(7, 2.3, 18.8, 10.8),
    },
    ("tfloat32", True): {
        LARGE: Cost(1, 6.4, 75.0, 75.0),
        MEDIUM: Cost(1, 4.1, 46.1, 46.2),
        SMALL: Cost(3, 2.8, 16.9, 15.2),
        LOW: Cost(5, 2.3, 16.5, 11.7),
        LEAST: Cost(8, 2.3, 13.5, 5.8),
        FLAT: Cost(4, 2.0, 29.1, 15.6),
        THIN: Cost(6, 2.3, 14.5, 7.0),
    },
    ("tfloat32", False): {
        LARGE: Cost(1, 8.5, 130, 130),
        MEDIUM: Cost(1, 2.2, 80.0, 80.0),
        SMALL: Cost(3, 1.7, 35.3, 23.7),
        LOW: Cost(4, 1.4, 23.6, 16.7),
        LEAST: Cost(8, 2.1, 17.7, 12.4),
        FLAT: Cost(4, 0.5, 77.9, 30.6),
        THIN: Cost(6, 2.1, 18.7, 12.5),
    },
    ("16-bit", True): {
        LARGE: Cost(1, 5.5, 38, 38),
        MEDIUM: Cost(1, 4.5, 21, 21),
        SMALL: Cost(4, 3.5, 8.5, 6),
        LOW: Cost(5, 3.2, 6, 3.8),
        LEAST: Cost(8, 3.0, 5.5, 2.5),
        FLAT: Cost(4, 3.2, 9, 5.5),
        THIN: Cost(7, 3.0, 6.5, 3.3),
    },
    ("16-bit", False): {
        LARGE: Cost(1, 0.1, 85.6, 85.0),
        MEDIUM: Cost(1, 4.0, 50.9, 49.4),
        SMALL: Cost(3, 2.4, 36.6, 15.5),
        LOW: Cost(4, 2.2, 25.9, 10.5),
        LEAST: Cost(8, 2.3, 27.8, 8.5),
        FLAT: Cost(4, 3.9, 84.6, 24.6),
        THIN: Cost(6, 2.2, 28.8, 8.1),
    },
}
SHARED_US = {1: 0.0, 2: 1.4, 4: 1.2, 8: 1.5, 16: 2.4}  # what it takes to meet and to add up the parts of so many blocks


def costs_of(kind: str, whole: bool) -> dict[AnyTile, Cost]:
    """kind: float32, tfloat32, float16 or bfloat16."""
    return COSTS[kind if kind in ("float32", "tfloat32") else "16-bit", whole]


def whole_rows(kind: str, k: int, n: int, at_16_bytes: bool) -> bool:
    """Do all rows that 16-byte copies fetch, or whole vectors store, start at multiples of 16 bytes? at_16_bytes: do the matrices?"""
    each = ptx.ELEMENTS[storage_of(kind)]
    return at_16_bytes and n % each == 0 and (kind == "float32" or k % each == 0)  # float32's A is fetched element by element


def tiles_elsewhere(kind: str, capability: tuple[int, int]) -> tuple[AnyTile, ...]:
    """All that a product may get: of one block each, and on Hopper of as many as may share it."""
    tiles = tuple(costs_of(kind, True))
    if capability != MEASURED_ON:
        return tiles
    return tuple(tile._replace(split=split) for tile in tiles for split in splits(tile))


def splits(tile: AnyTile) -> tuple[int, ...]:
    """By how many blocks it may be computed."""
    if isinstance(tile, FmaTile) and not tile.lean:
        return (1,)
    most = {128 * 256: 1, 128 * 128: MOST_SHARED}.get(tile.rows * tile.columns, max(SPLITS))
    return tuple(split for split in SPLITS if split <= most)


def own_elsewhere(m: int, k: int, n: int, kind: str, at_16_bytes: bool, processors: int, capability: tuple[int, int]) -> AnyTile:
    """On Hopper the tile of the least estimate. Elsewhere the largest of which every multiprocessor has one."""
    if costs := estimates(m, k, n, kind, at_16_bytes, processors, capability):
        return min(costs, key=lambda tile: costs[tile])
    tiles: tuple[AnyTile, ...] = ANYWHERE[kind == "float32"]
    return next((tile for tile in tiles if tiles_of(tile, m, n) >= processors), tiles[-1])


@lru_cache(maxsize=512)
def estimates(m: int, k: int, n: int, kind: str, at_16_bytes: bool, processors: int, capability: tuple[int, int]) -> dict[AnyTile, float]:
    """Of each tile, in us on an H200; empty for another GPU. at_16_bytes: do all three matrices start at multiples of 16 bytes?"""
    if capability != MEASURED_ON:
        return {}
    whole = whole_rows(kind, k, n, at_16_bytes)
    return {tile: estimate(tile, m, k, n, kind, whole, processors) for tile in tiles_elsewhere(kind, capability)}


def estimate(tile: AnyTile, m: int, k: int, n: int, kind: str, whole: bool, processors: int) -> float:
    """Waves of blocks, in us: those that run at once, and a last one with fewer on a multiprocessor. whole: as by `whole_rows`."""
    cost = costs_of(kind, whole)[tile._replace(split=1)]
    at_once = clusters_at_once(tile.split, processors)  # with one block a multiprocessor
    full, rest = divmod(tiles_of(tile, m, n), at_once * cost.resident)
    depth = 64 // ptx.BYTES[storage_of(kind)]  # of a step
    part = -(-k // (depth * tile.split)) * depth  # of K, the longest

    def wave(blocks: int) -> float:
        """With so many on a multiprocessor."""
        return cost.fixed_us + SHARED_US[tile.split] + part * max(cost.alone_ns, blocks * cost.busy_ns) / 1000

    return full * wave(cost.resident) + (wave(-(-rest // at_once)) if rest else 0.0)


def tiles_of(tile: AnyTile, m: int, n: int) -> int:
    return -(-m // tile.rows) * -(-n // tile.columns)
