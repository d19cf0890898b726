"""numba_cuda's products for any GPU whose K the blocks of a cluster share, in fibres; and which of them a product gets on Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba_parts_fibres import played, product
from numba_product_fibres import module
from support import ON_GPU, worst_error

from opwise.ops import Workload

in_fibres = pytest.mark.skipif(ON_GPU, reason="a GPU is here: it runs these kernels itself")
pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
KINDS = "float32", "tfloat32", "float16", "bfloat16"
HOPPER = (9, 0)


def factors(m: int, k: int, n: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if kind == "tfloat32" else getattr(torch, kind)
    return torch.randn((m, k), generator=drawn).to(dtype), torch.randn((k, n), generator=drawn).to(dtype)


def error(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, kind: str) -> float:
    return worst_error(out, Workload("matmul", (*a.shape, b.shape[1]), kind), a, b)


def small(kind: str) -> list[Any]:
    """Tiles that fibres compute in less than a second."""
    tiles = (tile for tile in module("matmul.plan").any_gpu_tiles(kind, (8, 0)) if tile.rows * tile.columns <= 64 * 64)
    return list(tiles)


def depth(kind: str) -> int:
    """Of a step of K."""
    return 32 if kind in ("float16", "bfloat16") else 16


@in_fibres
@pytest.mark.parametrize("split", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_product_is_right_whatever_comes_first(kind: str, split: int) -> None:
    with played():
        for seed, tile in enumerate(small(kind)):
            shared = tile._replace(split=split)
            assert shared in module("matmul.plan").any_gpu_tiles(kind, HOPPER)
            # Rows that start on 16 bytes: a step that is not whole, and parts of tiles. Then rows that do not, and fewer steps than blocks.
            for aligned, (m, k, n) in (
                (True, (5, depth(kind) * (split + 1) - 8, 24)),
                (False, (tile.rows + 1, depth(kind) + 3, 7 if split > 2 else tile.columns + 5)),
            ):
                a, b = factors(m, k, n, kind, seed)
                out = product(shared, kind, aligned, a, b, seed)
                assert error(out, a, b, kind) <= 1, (shared, aligned)


@in_fibres
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_sixteen_blocks_of_which_some_have_no_step_and_a_ring_that_goes_round(kind: str) -> None:
    with played():
        tile = module("matmul.extra").MMA_32X32 if kind == "float16" else module("matmul.extra").FMA_32X32
        for seed, (split, k) in enumerate(((16, 5 * depth(kind)), (16, 1), (2, depth(kind) * 2 * (tile.stages + 2) + 1))):
            a, b = factors(3, k, 40, kind, seed)
            assert error(product(tile._replace(split=split), kind, False, a, b, seed), a, b, kind) <= 1, (split, k)


@in_fibres
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_large_tile_is_shared_too(kind: str) -> None:
    with played():
        tile = module("matmul.plan").FMA_128X128 if kind == "float32" else module("matmul.plan").MMA_128X128
        a, b = factors(70, 2 * depth(kind) + 8, 136, kind, 3)
        assert error(product(tile._replace(split=2), kind, True, a, b, 3), a, b, kind) <= 1


@in_fibres
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_sum_is_the_same_in_every_run(kind: str) -> None:
    with played():
        a, b = factors(9, 150, 50, kind, 4)
        tile = small(kind)[-1]._replace(split=4)
        first, *others = (product(tile, kind, False, a, b, seed) for seed in range(3))
        assert all(torch.equal(first, other) for other in others)


@in_fibres
@pytest.mark.parametrize("split", [1, 4])
def test_parts_are_added_in_the_order_of_their_ranks(split: int) -> None:
    """Bit by bit: within a part by k, then part by part."""
    with played():
        m, k, n = 5, 16 * 7 - 3, 33
        a, b = factors(m, k, n, "float32", 5)
        out = product(module("matmul.extra").FMA_32X32._replace(split=split), "float32", False, a, b, 5)
    steps, total = -(-k // 16), np.zeros((m, n), np.float32)
    for rank in range(split):
        part = np.zeros((m, n), np.float32)
        for p in range(steps * rank // split * 16, min(steps * (rank + 1) // split * 16, k)):
            part += a.numpy()[:, p, None] * b.numpy()[p]
        total = part if rank == 0 else total + part
    assert np.array_equal(out.numpy(), total)


def test_what_cannot_be_shared_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks of 64 threads with 4 units each: powers of two are taken"):
        module("matmul.kernels.cluster_reduce").cluster_reduce(3, 64, 4)


def test_a_name_is_of_one_tile_and_of_what_a_kernel_can_be_made_for() -> None:
    plan = module("matmul.plan")
    for kind in KINDS:
        tiles = plan.any_gpu_tiles(kind, HOPPER)
        assert len({plan.name_of(tile) for tile in tiles}) == len(tiles)
        assert {tile.split for tile in plan.any_gpu_tiles(kind, (8, 0))} == {1}
        assert plan.costs_of(kind, True).keys() == plan.costs_of(kind, False).keys()
        for tile in tiles:
            assert tile.rows * 64 % (16 * tile.threads) == 0 or kind == "float32"  # each thread copies whole chunks
            assert tile.rows * tile.columns % (4 * tile.threads) == 0


@pytest.mark.parametrize(("m", "k", "n"), [(32, 8192, 32), (16, 4096, 4096), (37, 4501, 73), (128, 16384, 128), (512, 8192, 512)])
def test_few_tiles_of_a_long_k_are_shared_on_hopper_and_nowhere_else(m: int, k: int, n: int) -> None:
    plan = module("matmul.plan")
    for kind in KINDS[:3]:
        if (kind == "float16" and (k % 8, n % 8) == (0, 0)) or (kind, m) == ("tfloat32", 512):  # Hopper's own tiles
            continue
        assert plan.planned_sm90(m, k, n, kind, True, 132, HOPPER) is None
        tile = plan.planned_any_gpu(m, k, n, kind, True, 132, HOPPER)
        assert tile.split > 1, plan.name_of(tile)
        assert f"_s{tile.split}" in plan.name_of(tile)
        assert plan.offered(m, k, n, kind, True, HOPPER)[plan.name_of(tile)] == tile


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_other_gpus_have_the_largest_tile_of_which_each_multiprocessor_has_one(capability: tuple[int, int]) -> None:
    plan = module("matmul.plan")
    for kind, (m, n), name in (
        ("float32", (4096, 4096), "fma_128x128"), ("float32", (1024, 1024), "fma_64x64"), ("float32", (16, 16), "fma_64x64"),
        ("float16", (4096, 4096), "mma_128x256"), ("tfloat32", (1536, 1536), "mma_128x128"), ("bfloat16", (32, 32), "mma_64x64"),
    ):  # fmt: skip
        assert plan.name_of(plan.planned_any_gpu(m, 8192, n, kind, True, 108, capability)) == name


def test_hoppers_own_tiles_stay_where_they_are_the_quicker() -> None:
    plan = module("matmul.plan")
    assert plan.planned_sm90(2048, 2048, 2048, "float32", True, 132, HOPPER) == plan.FMA_TMA
    assert plan.planned_sm90(1024, 1024, 1024, "float32", True, 132, HOPPER) is None  # 96.4 us, 128x128 by two blocks 58.8
    assert plan.name_of(plan.planned_sm90(512, 8192, 512, "tfloat32", True, 132, HOPPER)) == "64x128"  # 72.8 us, 64x64_s2 86.8
    assert plan.planned_sm90(4096, 4096, 4096, "tfloat32", True, 132, HOPPER) in plan.TF32
    assert plan.planned_sm90(128, 4096, 128, "tfloat32", True, 132, HOPPER) is None
