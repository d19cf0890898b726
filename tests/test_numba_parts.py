"""numba_cuda's products for any GPU whose K the blocks of a cluster share, in fibres; and which of them a product gets on Hopper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba_parts_fibres import product
from numba_product_fibres import module
from support import in_stand_in, needs, worst_error

from opwise.backends.gemm.choice import choose
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import H100, HOPPER, Machine
from opwise.ops import Workload

needs("numba.cuda")
KINDS = "float32", "tfloat32", "float16", "bfloat16"
AMPERE = Machine(108, (8, 0), 163 * 1024)


def factors(m: int, k: int, n: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if kind == "tfloat32" else getattr(torch, kind)
    return torch.randn((m, k), generator=drawn).to(dtype), torch.randn((k, n), generator=drawn).to(dtype)


def error(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, kind: str) -> float:
    return worst_error(out, Workload("matmul", (*a.shape, b.shape[1]), kind), a, b)


def small(kind: str) -> list[Any]:
    """Tiles that fibres compute in less than a second."""
    return [tile for tile in any_gpu_tiles(kind, AMPERE) if tile.rows * tile.columns <= 64 * 64]


def any_gpu_tiles(kind: str, machine: Machine) -> list[Any]:
    """By mma.sync and FMA, of all splits that the GPU has."""
    found = module("matmul").offered(Product(1, 1, 1, kind), machine)
    return [tile for name, tile in found.items() if name.startswith(("mma", "fma"))]


def depth(kind: str) -> int:
    """Of a step of K."""
    return 32 if kind in ("float16", "bfloat16") else 16


@in_stand_in
@pytest.mark.parametrize("split", [1, 2, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_product_is_right_whatever_comes_first(kind: str, split: int) -> None:
    for seed, tile in enumerate(small(kind)):
        shared = replace(tile, split=split)
        assert shared in any_gpu_tiles(kind, HOPPER)
        # In turns from tile to tile and from split to split: rows that start on 16 bytes, a step that is not whole, parts of tiles;
        # rows that do not, and fewer steps than blocks.
        aligned = (seed + split.bit_length()) % 2 == 0
        m, k, n = tile.rows + 1, depth(kind) + 3, 7 if split > 2 else tile.columns + 5
        if aligned:
            m, k, n = 5, depth(kind) * (split + 1) - 8, 24
        a, b = factors(m, k, n, kind, seed)
        assert error(product(shared, kind, aligned, a, b, seed), a, b, kind) <= 1, (shared, aligned)


@in_stand_in
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_sixteen_blocks_of_which_some_have_no_step_and_a_ring_that_goes_round(kind: str) -> None:
    tile = module("matmul.extra").MMA_32X32 if kind == "float16" else module("matmul.extra").FMA_32X32
    for seed, (split, k) in enumerate(((16, 5 * depth(kind)), (16, 1), (2, depth(kind) * 2 * (tile.stages + 2) + 1))):
        a, b = factors(3, k, 40, kind, seed)
        assert error(product(replace(tile, split=split), kind, False, a, b, seed), a, b, kind) <= 1, (split, k)


@in_stand_in
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_large_tile_is_shared_too(kind: str) -> None:
    tile = module("matmul").FMA_128X128 if kind == "float32" else module("matmul").MMA_128X128
    a, b = factors(70, 2 * depth(kind) + 8, 136, kind, 3)
    assert error(product(replace(tile, split=2), kind, True, a, b, 3), a, b, kind) <= 1


@in_stand_in
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_sum_is_the_same_in_every_run(kind: str) -> None:
    a, b = factors(9, 150, 50, kind, 4)
    tile = replace(small(kind)[-1], split=4)
    first, *others = (product(tile, kind, False, a, b, seed) for seed in range(3))
    assert all(torch.equal(first, other) for other in others)


@in_stand_in
@pytest.mark.parametrize("split", [1, 4])
def test_parts_are_added_in_the_order_of_their_ranks(split: int) -> None:
    """Bit by bit: within a part by k, then part by part."""
    m, k, n = 5, 16 * 7 - 3, 33
    a, b = factors(m, k, n, "float32", 5)
    out = product(replace(module("matmul.extra").FMA_32X32, split=split), "float32", False, a, b, 5)
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_is_what_a_kernel_can_be_made_for(kind: str) -> None:
    for tile in any_gpu_tiles(kind, HOPPER):
        assert tile.rows * 64 % (16 * tile.threads) == 0 or kind == "float32"  # each thread copies whole chunks
        assert tile.rows * tile.columns % (4 * tile.threads) == 0


@pytest.mark.parametrize(("m", "k", "n"), [(32, 8192, 32), (37, 4501, 73), (128, 16384, 129)])
def test_few_tiles_of_a_long_k_are_shared_on_hopper_and_nowhere_else(m: int, k: int, n: int) -> None:
    for kind in KINDS:
        product = Product(m, k, n, kind)
        for machine in (HOPPER, AMPERE):
            found = module("matmul").offered(product, machine)
            assert (found[choose(product, found, H100).name].split > 1) == (machine == HOPPER)
