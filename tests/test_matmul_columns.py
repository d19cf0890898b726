"""Which product of few columns gets a kernel by mma.sync made for them, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import re

import column_times
import pytest
from plans import kernel_for, slower

from opwise.backends.cuda_src import matmul_columns
from opwise.backends.cuda_src.matmul.extra.skinny_n import MOST, TILES, WIDEST, Tile, fitting
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")
# From sm_80 on, without clusters: us on one H200, torch 2.11, L2 flushed, interleaved, medians; "other": the quickest of the rest.
ON_ANY = {
    ("float16", (65_536, 512, 6)): {"columns_mma_8_h2_t32_v2": 19.93, "columns_mma_8_h2_t64_v2": 19.97, "columns_6_t32_v16": 28.0},
    ("float16", (8192, 1024, 7)): {"columns_mma_8_h2_t256_v2": 7.3, "columns_7_t32_v16": 8.2, "other": 17.0},
    ("float16", (2048, 2048, 8)): {"columns_mma_8_h1_t256_v16": 5.3, "columns_mma_8_h2_t256_v16": 6.8, "other": 9.4},
    ("float16", (32_768, 256, 8)): {"columns_mma_8_h2_t64_v16": 6.6, "columns_mma_8_h2_t32_v16": 7.3, "other": 9.3},
    ("float16", (200_000, 64, 8)): {"columns_mma_8_h2_t32_v16": 9.2, "columns_mma_8_h2_t64_v16": 13.4, "other": 25.2},
    ("float16", (65_536, 512, 12)): {"columns_mma_16_h2_t64_v2": 24.66, "columns_mma_16_h2_t128_v2": 24.72, "other": 32.9},
    ("float16", (1024, 1024, 16)): {"columns_mma_16_h1_t256_v16": 3.4, "columns_mma_16_h2_t256_v16": 4.6, "other": 4.4},
    ("float16", (8192, 1024, 16)): {"columns_mma_16_h2_t256_v16": 7.1, "columns_mma_16_h1_t256_v16": 8.0, "other": 9.2},
    ("float16", (65_536, 512, 24)): {"wgmma_held_24": 20.23, "columns_mma_24_h2_t32_v16": 22.3},
    ("float16", (1920, 8192, 24)): {"wgmma_64x32_s4": 13.1, "wgmma_64x64_s4": 16.4, "columns_mma_24_h2_t256_v16": 25.8},
    ("float16", (4096, 1024, 24)): {"wgmma_held_24": 5.74, "columns_mma_24_h1_t256_v16": 5.92},
    ("float16", (5000, 512, 24)): {"wgmma_held_24": 4.84, "wgmma_128x32_s2": 5.17, "columns_mma_24_h1_t256_v16": 5.6},
    ("float16", (4096, 4096, 24)): {"wgmma_64x32_s2": 14.1, "wgmma_128x32_s2": 14.2, "columns_mma_24_h1_t256_v16": 15.5},
    ("float16", (8192, 1024, 17)): {"columns_mma_24_h2_t256_v2": 9.8, "columns_mma_24_h2_t128_v2": 11.9, "other": 17.3},
    ("float16", (4096, 4096, 23)): {"columns_mma_24_h2_t256_v2": 21.3, "other": 21.7},
    ("float16", (65_536, 512, 17)): {"columns_mma_24_h2_t64_v2": 28.2, "columns_mma_24_h2_t32_v2": 29.5, "other": 30.4},
    ("float16", (200_000, 64, 23)): {"columns_mma_24_h2_t32_v2": 20.7, "columns_mma_24_h2_t64_v2": 21.2, "other": 32.5},
}


def taken(product: tuple[str, tuple[int, int, int]]) -> str:
    """By its name in the sources, without the dtype."""
    kind, shape = product
    return re.sub(r"(b?float16|t?float32)_", "", kernel_for(kind, *shape).removeprefix("matmul_"), count=1)


def lost(product: tuple[str, tuple[int, int, int]]) -> float:
    """So many times the quickest that was timed, the plan's choice."""
    short = re.sub(r"^wgmma_|^(cluster_)?columns_mma_\d+_", "", taken(product))
    return slower(column_times.MEASURED[product], short)


@pytest.mark.parametrize("product", column_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]]) -> None:
    """8 % slower than the quickest at most, but for those that are known."""
    assert lost(product) <= column_times.SLOWER.get(product, 1.08)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(product) for product in column_times.MEASURED]
    assert sum(every) / len(every) < 1.025


@pytest.mark.parametrize(("product", "times"), ON_ANY.items(), ids=str)
def test_without_clusters_it_is_taken_where_it_was_the_quickest(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    assert slower(times, taken(product)) <= 1.03


@pytest.mark.parametrize("product", [*ON_ANY, *(p for p in column_times.MEASURED if "columns_mma" in taken(p))], ids=str)
def test_what_needs_no_hopper_is_taken_on_other_gpus_too(product: tuple[str, tuple[int, int, int]]) -> None:
    kind, shape = product
    here = kernel_for(kind, *shape)
    hoppers = any(f"_{way}_" in here for way in ("wgmma", "cluster", "odd"))
    for capability in ((8, 0), (10, 0)):
        assert hoppers == (kernel_for(kind, *shape, capability=capability) != here)
    assert "mma" not in kernel_for(kind, *shape, capability=(7, 5))


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    for m in (17, 1000, 70_001):
        found = tile.launch(m, 1000, tile.count, 132)
        assert found.kernel == tile.kernel
        assert (found.grid[0] // tile.split - 1) * tile.block_rows < m <= found.grid[0] // tile.split * tile.block_rows
        assert found.grid[0] % tile.split == 0
        of_warps = 4 * 16 * tile.high * tile.count * 8 if tile.sharing > 32 else 0  # beside what a launch asks for
        assert found.block == (256, 1, 1)
        assert found.shared_bytes + of_warps <= 48 * 1024, "as much as a block has without asking"
        assert (found.shared_bytes + of_warps + 1024) * matmul_columns.RESIDENT <= SHARED_LIMIT[9, 0] * 1024
    assert unit_of(tile.kernel) in units("sm_90")


@each_tile
def test_clusters_are_as_the_source_has_them(tile: Tile) -> None:
    """The others run on the CPU."""
    if tile.split == 1:
        return
    source = (FOLDER / "matmul_cluster.cu").read_text()
    types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, dtype"
    granules = f"{tile.granule}a{tile.granule_a}" if tile.granule_a < 16 else str(tile.granule)
    macro = "COLUMNS_OF_TWO" if tile.granule_a == 1 else "COLUMNS"
    assert f"{macro}({types}, {tile.count}, {tile.granule}, {tile.granule_a}, {granules})" in source
    assert f"COLUMNS_KERNEL(dtype, Storage, most, {tile.high}, __VA_ARGS__, {tile.split})" in source


def test_accesses_are_as_wide_as_rows_allow() -> None:
    def granules(kind: str, k: int, n: int, alignment: int = 16) -> set[tuple[int, int]]:
        return {(tile.granule, tile.granule_a) for tile in fitting(1000, k, n, kind, alignment, 132, True)}

    for kind in ("float16", "bfloat16"):
        assert granules(kind, 512, 8) == granules(kind, 512, 16) == {(16, 16)}
        assert granules(kind, 512, 11) == {(2, 16)}
        assert granules(kind, 510, 8) == granules(kind, 512, 8, alignment=8) == {(2, 4)}
        assert granules(kind, 511, 8) == {(2, 1)}
        assert granules(kind, 511, 8, alignment=8) == granules(kind, 512, 8, alignment=2) == set(), "A on 16 bytes"
    assert granules("tfloat32", 512, 8) == {(4, 16)}
    assert granules("tfloat32", 511, 8) == granules("tfloat32", 512, 8, alignment=4) == {(4, 4)}


def test_it_is_for_few_columns_more_rows_and_tensor_cores() -> None:
    assert {n for n in range(1, 40) if fitting(8000, 64, n, "float16", 16, 132, True)} == set(range(5, 25))
    assert {n for n in range(1, 40) if fitting(8000, 64, n, "tfloat32", 16, 132, True)} == set(range(5, 17))
    for n in range(17, 25):
        many = [fitting(m, 512, n, "float16", alignment, 132, True) for m, alignment in ((3999, 16), (460, 16), (3999, 2))]
        assert [len(found) for found in many] == [1, 0, 0]
    assert not fitting(8000, 64, 8, "float32", 16, 132, True)
    assert not fitting(16, 64, 8, "float16", 16, 132, True)
    assert {tile.count for tile in EVERY} == {8, MOST, WIDEST}
    for kind in ("float16", "tfloat32"):
        assert "cluster" in kernel_for(kind, 500, 9000, 12)
        assert "cluster" not in kernel_for(kind, 500, 9000, 12, capability=(8, 0))
        assert "columns_mma" in kernel_for(kind, 20_000, 200, 12, capability=(8, 0))
        assert "mma" not in kernel_for(kind, 20_000, 200, 12, capability=(7, 5))


@each_tile
def test_an_estimate_grows_with_k(tile: Tile) -> None:
    times = [tile.estimate(200, k, tile.count, 132) / matmul_columns.UNIT[tile.kind] for k in (64, 1024, 65_536)]
    assert times == sorted(times)
    assert times[0] < 3 < times[2] * (4 if tile.count == WIDEST else 1), "us"
