"""numba_cuda's 16-bit products on Hopper, in fibres: all blocks at once, copies that land late, shapes that no tile divides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numba_product_fibres import Clusters, Map, instructions, module, translation
from support import in_stand_in, worst_error

from opwise.backends import numba_on_cpu
from opwise.backends.numba_on_cpu.fibres import Memory
from opwise.ops import Workload

pytestmark = in_stand_in
# Of the tiles that differ in numbers alone: one block a tile, and few, many, and no power of two of them.
TILES = ("128x128", "128x64", "64x64_s1", "64x64_s4", "64x64_s16", "64x128_s2", "128x128_s6",
         "128x64_nt", "192x192_nt", "64x64_s1_nt", "64x64_s8_nt", "128x192_s2_nt")  # fmt: skip


@cache
def meant() -> Any:
    return translation(instructions())


def tile_of(name: str) -> Any:
    configurations = module("matmul.configurations")
    return next(tile for tile in (*configurations.WGMMA, *configurations.SPLIT_K, *configurations.HOPPER_NT) if tile.name == name)


def run(tile: Any, dtype: str, m: int, k: int, n: int, seed: int, processors: int = 3) -> float:
    """The worst error of a launch in its bound."""
    drawn = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=drawn).to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
    out = torch.full((m, n), torch.nan, dtype=a.dtype)
    of_tile = module("matmul").MODULES[tile.kernel]
    maps = [
        Map(x.view(torch.int16).numpy().view(np.uint16), matrix.box_rows)
        for x, matrix in zip((a, b.t().contiguous() if tile.layout == "NT" else b, out), of_tile.matrices(tile, m, k, n), strict=False)
    ]
    kernel = of_tile.kernel(dtype, tile)
    arguments = maps if len(maps) == 3 else [*maps, np.int64(out.data_ptr())]
    grid = min(tile.tiles(m, n), processors) if tile.persistent else tile.tiles(m, n) * tile.split
    machine = Clusters(grid, kernel.threads, kernel.dynamic_shared, Memory([a, b, out]), seed, kernel.cluster)
    numba_on_cpu.run(kernel.function, machine, (*arguments, *(np.int64(size) for size in (m, n, k))), meant())
    return worst_error(out, Workload("matmul", (m, k, n), dtype), a, b)


def shapes(tile: Any) -> tuple[tuple[int, int, int], ...]:
    """m, k, n: one step of K, which some blocks do not have; parts of tiles, of one where blocks are many, of which some then have no step
    here; a ring that goes round."""
    more = 8 if tile.split < 4 else -8
    deep = max(tile.split, 1) * tile.step_bytes // 2 * (tile.stages + 2)
    one_step = ((1, 8, 8),) if tile.split <= 4 else ()
    return *one_step, (tile.rows + more, 200, tile.columns + more), (24, deep - 40, 16)


@pytest.mark.parametrize("name", TILES)
def test_a_product_is_right_whatever_comes_first(name: str) -> None:
    meant()
    tile = tile_of(name)
    for seed, shape in enumerate(shapes(tile)):
        assert run(tile, ("bfloat16", "float16")[seed % 2], *shape, seed) <= 1, shape


@pytest.mark.parametrize("name", ["128x128", "128x64", "128x128_nt"])
def test_a_block_that_has_several_tiles_is_right_whatever_comes_first(name: str) -> None:
    meant()
    tile = tile_of(name)
    # One tile in one step; fewer steps a tile than stages, an odd number of tiles; more, and parts of tiles; a block each.
    for seed, (shape, processors) in enumerate((((1, 8, 8), 1), ((500, 72, 264), 1), ((136, 456, 272), 1), ((130, 200, 264), 3))):
        assert run(tile, ("bfloat16", "float16")[seed % 2], *shape, seed, processors) <= 1, shape
