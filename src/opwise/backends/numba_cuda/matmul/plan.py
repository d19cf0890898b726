"""Which configuration a product gets, and which others could compute it: what `opwise tune` measures, and a tuned table names.

On sm_90 the configuration of the least estimate. Elsewhere the largest tile of which every SM has one.
"""

from __future__ import annotations

from functools import lru_cache

from opwise.backends.cuda_src.matmul import WGMMA_SIZE_LIMIT
from opwise.backends.cuda_src.matmul.configuration import MEASURED_ON, WGMMA_ON
from opwise.backends.cuda_src.matmul.cost import clusters_at_once
from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.matmul.configurations import (
    BEGIN_US,
    FMA_64X64,
    FMA_128X128,
    FMA_TMA,
    K_NS,
    MANY,
    MMA_64X64,
    MMA_128X128,
    MMA_128X256,
    MOST_SPLIT,
    REDUCE_US,
    SPLIT_K,
    SPLITS,
    TF32,
    WGMMA,
    AnyTile,
    HopperTile,
    Way,
    costs_of,
    name_of,
    storage_of,
    tiles_of,
    whole_rows,
)

TABLE = "numba_cuda/matmul"
ANYWHERE: dict[bool, tuple[AnyTile, ...]] = {True: (FMA_128X128, FMA_64X64), False: (MMA_128X256, MMA_128X128, MMA_64X64)}  # is it float32?


def planned(m: int, k: int, n: int, kind: str, aligned: bool, processors: int, capability: tuple[int, int]) -> Way:
    """What the plan takes by itself. kind: float32, tfloat32, float16 or bfloat16; aligned: do all three matrices start at multiples of 16
    bytes?"""
    product = m, k, n, kind, aligned, processors, capability
    return planned_sm90(*product) or planned_any_gpu(*product)


def offered(m: int, k: int, n: int, kind: str, aligned: bool, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> configuration, of all that take the product."""
    return {name_of(way): way for way in (*sm90_tiles(m, k, n, kind, aligned, capability), *any_gpu_tiles(kind, capability))}


# ---- sm_90's own kernels --------------------------------------------------------------------------------------------------------


def sm90_tiles(m: int, k: int, n: int, kind: str, aligned: bool, capability: tuple[int, int]) -> tuple[HopperTile, ...]:
    each = ptx.ELEMENTS[storage_of(kind)]
    whole = aligned and k % each == 0 and n % each == 0 and max(m, k, n) <= WGMMA_SIZE_LIMIT
    if capability != WGMMA_ON or not whole:
        return ()
    if kind == "float32":
        return (FMA_TMA,)
    return TF32 if kind == "tfloat32" else (*WGMMA, *SPLIT_K)


def planned_sm90(m: int, k: int, n: int, kind: str, aligned: bool, processors: int, capability: tuple[int, int]) -> HopperTile | None:
    """None where Hopper's own kernels cannot run, or a kernel for any GPU is estimated to be quicker."""
    tiles = sm90_tiles(m, k, n, kind, aligned, capability)
    best = min(tiles, key=lambda tile: tile.estimate(m, k, n, processors), default=None)
    if best is None or (kind, best.rows) not in K_NS or best.tiles(m, n) >= MANY[kind] * processors:
        return best
    us = BEGIN_US + -(-best.tiles(m, n) // processors) * k * K_NS[kind, best.rows] / 1000
    return best if us <= min(estimates(m, k, n, kind, aligned, processors, capability).values()) else None


# ---- kernels for any GPU --------------------------------------------------------------------------------------------------------


def any_gpu_tiles(kind: str, capability: tuple[int, int]) -> tuple[AnyTile, ...]:
    """All that a product may get: of one block each, and on Hopper of as many as may share K."""
    tiles = tuple(costs_of(kind, True))
    if capability != MEASURED_ON:
        return tiles
    return tuple(tile._replace(split=split) for tile in tiles for split in splits(tile))


def splits(tile: AnyTile) -> tuple[int, ...]:
    most = MOST_SPLIT.get(tile.rows * tile.columns, max(SPLITS))
    return tuple(split for split in SPLITS if split <= most)


def planned_any_gpu(m: int, k: int, n: int, kind: str, aligned: bool, processors: int, capability: tuple[int, int]) -> AnyTile:
    if costs := estimates(m, k, n, kind, aligned, processors, capability):
        return min(costs, key=lambda tile: costs[tile])
    tiles = ANYWHERE[kind == "float32"]
    return next((tile for tile in tiles if tiles_of(tile, m, n) >= processors), tiles[-1])


@lru_cache(maxsize=512)
def estimates(m: int, k: int, n: int, kind: str, aligned: bool, processors: int, capability: tuple[int, int]) -> dict[AnyTile, float]:
    """Of each tile, in us on an H200; empty for another GPU."""
    if capability != MEASURED_ON:
        return {}
    whole = whole_rows(kind, k, n, aligned)
    return {tile: estimate(tile, m, k, n, kind, whole, processors) for tile in any_gpu_tiles(kind, capability)}


def estimate(tile: AnyTile, m: int, k: int, n: int, kind: str, whole: bool, processors: int) -> float:
    """Waves of blocks, in us: those that run at once, and a last one with fewer on an SM. whole: as by `whole_rows`."""
    cost = costs_of(kind, whole)[tile._replace(split=1)]
    at_once = clusters_at_once(tile.split, processors)  # with one block an SM
    full, rest = divmod(tiles_of(tile, m, n), at_once * cost.resident)
    depth = 64 // ptx.BYTES[storage_of(kind)]  # of a step
    part = -(-k // (depth * tile.split)) * depth  # of K, the longest

    def wave(blocks: int) -> float:
        """With so many on an SM."""
        return cost.fixed_us + REDUCE_US[tile.split] + part * max(cost.alone_ns, blocks * cost.busy_ns) / 1000

    return full * wave(cost.resident) + (wave(-(-rest // at_once)) if rest else 0.0)
