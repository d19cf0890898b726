"""numba_cuda's 16-bit products on Hopper, in fibres: all blocks at once, copies that land late, shapes that no tile divides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba_fibres
import numpy as np
import pytest
import torch
from fibres import Memory
from numba_product_fibres import Clusters, Map, instructions, module, simulator_or_skip
from support import ON_GPU, worst_error

from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.cuda_src.matmul.kernels import wgmma
from opwise.ops import Workload

pytestmark = pytest.mark.skipif(ON_GPU, reason="a GPU is here: it runs these kernels itself")
MODULES = ("matmul_ring", "matmul_wgmma", "matmul_pingpong", "matmul_pingpong_tall", "matmul_split", "matmul_turned", "words", "tensor")
TILES = *(tile.name for tile in (*wgmma.SWAP_AB, *wgmma.WGMMA[2:], *wgmma.SPLIT)), "128x128_s6"


@contextmanager
def played() -> Iterator[None]:
    simulator_or_skip()
    with pytest.MonkeyPatch.context() as patch:
        found = instructions(lambda: numba_fibres.Now.machine, numba_fibres.from_float32, numba_fibres.to_float32)
        for name, meanings in found.items():
            for instruction, meaning in meanings.items():
                patch.setattr(module(name), instruction, meaning)
        yield


def run(tile: Kernel, dtype: str, m: int, k: int, n: int, seed: int, processors: int = 3) -> float:
    """The worst error of a launch in its bound."""
    drawn = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=drawn).to(getattr(torch, dtype)) for shape in ((m, k), (k, n)))
    out = torch.full((m, n), torch.nan, dtype=a.dtype)
    plan = launch(tile, dtype, m, k, n, processors)
    maps = [
        Map(x.view(torch.int16).numpy().view(np.uint16), matrix.box_rows) for x, matrix in zip((a, b, out), plan.matrices, strict=False)
    ]
    if tile.name.startswith("pingpong_128"):
        kernel = module("matmul_pingpong").pingpong_kernel.__wrapped__(dtype, tile)
    elif tile.name.startswith("pingpong_192"):
        kernel = module("matmul_pingpong_tall").tall_kernel.__wrapped__(dtype, tile)
    elif tile.swap_ab:
        kernel = module("matmul_turned").turned_kernel.__wrapped__(dtype, tile)
    elif tile.split:
        module("matmul_split").storing.cache_clear()
        kernel = module("matmul_split").split_kernel.__wrapped__(dtype, tile)
    else:
        kernel = module("matmul_wgmma").wgmma_kernel.__wrapped__(dtype, tile.columns, tile.stages, plan.shared_bytes, tile.cluster)
    arguments = maps if len(maps) == 3 else [*maps, np.int64(out.data_ptr())]
    machine = Clusters(plan.grid[0], kernel.threads, kernel.dynamic_shared, Memory([a, b, out]), seed, kernel.cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_fibres.Now, "machine", machine, raising=False)
        for name in MODULES:
            if hasattr(module(name), "cuda"):
                patch.setattr(module(name), "cuda", machine)
        machine.run(kernel.function, (*arguments, *(np.int64(size) for size in (m, n, k))))
    return worst_error(out, Workload("matmul", (m, k, n), dtype), a, b)


def shapes(tile: Kernel) -> tuple[tuple[int, int, int], ...]:
    """m, k, n: one step of K, which some blocks do not have; parts of tiles, of one where blocks are many; a ring that goes round."""
    more = 8 if tile.split < 4 else -8
    deep = max(tile.split, 1) * tile.step_bytes // 2 * (tile.stages + 2)
    return (1, 8, 8), (tile.rows + more, 200, tile.columns + more), (24, deep - 40, 16)


@pytest.mark.parametrize("name", TILES)
def test_a_product_is_right_whatever_comes_first(name: str) -> None:
    with played():
        tile = next(tile for tile in module("matmul_offered").HALF_TILES if tile.name == name)
        for seed, shape in enumerate(shapes(tile)):
            assert run(tile, ("bfloat16", "float16")[seed % 2], *shape, seed) <= 1, shape


@pytest.mark.parametrize("name", ["pingpong_128x128", "pingpong_192x128"])
def test_warpgroups_that_take_turns_are_right_whatever_comes_first(name: str) -> None:
    with played():
        tile = next(tile for tile in module("matmul_offered").HALF_TILES if tile.name == name)
        # One tile in one step; fewer steps a tile than stages, an odd number of tiles; more, and parts of tiles; a block each.
        for seed, (shape, processors) in enumerate(
            (((1, 8, 8), 1), ((500, 72, 264), 1), ((tile.rows + 8, 456, 272), 1), ((130, 200, 264), 3))
        ):
            assert run(tile, ("bfloat16", "float16")[seed % 2], *shape, seed, processors) <= 1, shape


PAIRED = "pingpong_128x128_2x1", "pingpong_192x128_1x2", "128x192_2x1", "128x256_2x1", "64x128_p2x1"


@pytest.mark.parametrize("name", PAIRED)
def test_blocks_that_fetch_for_each_other_are_right_whatever_comes_first(name: str) -> None:
    with played():
        pingpong = module("matmul_pingpong")
        tile = next(tile for tile in (*pingpong.PAIRS, *pingpong.SHARED_PAIRS, module("matmul_offered").PAIR) if tile.name == name)
        # A tile whose neighbour lies outside of C; half of a step of K; several tiles a block, parts of them, two clusters.
        shapes = ((1, 8, 8), 2), ((tile.rows + 8, 232, 3 * tile.columns - 56), 2), ((400, 200, 520), 4)
        module("matmul_split").storing.cache_clear()
        for seed, (shape, processors) in enumerate(shapes):
            assert run(tile, ("bfloat16", "float16")[seed % 2], *shape, seed, processors) <= 1, shape
