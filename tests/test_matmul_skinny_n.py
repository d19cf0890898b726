"""Which product of few columns gets a kernel by mma.sync made for them, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import UNIT
from opwise.backends.cuda_src.matmul.extra.skinny_n import MOST, RESIDENT, TILES, Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")


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
        assert (found.shared_bytes + of_warps + 1024) * RESIDENT <= SHARED_LIMIT[9, 0] * 1024
    assert unit_of(tile.kernel) in units("sm_90")


@each_tile
def test_clusters_are_as_the_source_has_them(tile: Tile) -> None:
    """The others run on the CPU."""
    if tile.split == 1:
        return
    source = (FOLDER / "matmul/extra/extra_cluster.cu").read_text()
    types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, Storage"
    granules = f"{tile.granule}a{tile.granule_a}" if tile.granule_a < 16 else str(tile.granule)
    macro = "SKINNY_N_OF_TWO" if tile.granule_a == 1 else "SKINNY_N_OF_ALL"
    assert f"{macro}({types}, {tile.count}, {tile.granule}, {tile.granule_a}, {granules})" in source
    assert f"SKINNY_N(dtype, Storage, most, {tile.high}, __VA_ARGS__, {tile.split})" in source


def test_accesses_are_as_wide_as_rows_allow() -> None:
    def granules(kind: str, k: int, n: int, alignment: int = 16) -> set[tuple[int, int]]:
        return {(tile.granule, tile.granule_a) for tile in fitting(1000, k, n, kind, alignment, True)}

    for kind in ("float16", "bfloat16"):
        assert granules(kind, 512, 8) == granules(kind, 512, 16) == {(16, 16)}
        assert granules(kind, 512, 11) == {(2, 16)}
        assert granules(kind, 510, 8) == granules(kind, 511, 8) == {(2, 1)}
        assert granules(kind, 511, 8, alignment=8) == granules(kind, 512, 8, alignment=2) == set(), "A on 16 bytes"
    assert granules("tfloat32", 512, 8) == {(4, 16)}
    assert granules("tfloat32", 511, 8) == granules("tfloat32", 512, 8, alignment=4) == {(4, 4)}


def test_it_is_for_few_columns_more_rows_and_tensor_cores() -> None:
    assert {n for n in range(1, 40) if fitting(8000, 64, n, "float16", 16, True)} == set(range(5, 17))
    assert {n for n in range(1, 40) if fitting(8000, 64, n, "tfloat32", 16, True)} == set(range(5, 17))
    assert not fitting(8000, 64, 8, "float32", 16, True)
    assert not fitting(16, 64, 8, "float16", 16, True)
    assert {tile.count for tile in EVERY} == {8, MOST}
    for kind in ("float16", "tfloat32"):
        assert "cluster" in kernel_for(kind, 500, 9000, 12)
        assert "cluster" not in kernel_for(kind, 500, 9000, 12, capability=(8, 0))
        assert "skinny_n" in kernel_for(kind, 20_000, 200, 12, capability=(8, 0))
        assert "mma" not in kernel_for(kind, 20_000, 200, 12, capability=(7, 5))


@each_tile
def test_an_estimate_grows_with_k(tile: Tile) -> None:
    times = [tile.estimate(200, k, tile.count, 132) / UNIT[tile.kind] for k in (64, 1024, 65_536)]
    assert times == sorted(times)
    assert times[0] < 3 < times[2], "us"
