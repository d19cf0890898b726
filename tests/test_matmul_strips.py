"""Which small product of a short K gets a kernel by strips of A, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
import strips_times
from plans import kernel_for, lost

from opwise.backends.cuda_src import matmul_strips
from opwise.backends.cuda_src.matmul_strips import LONGEST, TILES, Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")
FAMILY = r"matmul_(b?float16|float32)_strips_"  # a table has what follows, and the quickest of all that has another beginning


@pytest.mark.parametrize("product", strips_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]]) -> None:
    """8 % slower than the quickest at most, but for those that are known."""
    assert lost(strips_times.MEASURED, product, FAMILY) <= strips_times.SLOWER.get(product, 1.08)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(strips_times.MEASURED, product, FAMILY) for product in strips_times.MEASURED]
    assert sum(every) / len(every) < 1.01


@each_tile
def test_a_launch_covers_the_product(tile: Tile) -> None:
    found = tile.launch(101, 30, 150, 132)
    assert (found.kernel, found.block, found.shared_bytes) == (tile.kernel, (256, 1, 1), 0)
    assert found.grid == (13 * -(-150 // tile.wide), 1, 1)
    assert tile.at_once * tile.wide == 256 * tile.granule // matmul_strips.BYTES[tile.kind]
    assert unit_of(tile.kernel) in units("sm_90")


@each_tile
def test_kernels_are_as_the_source_has_them(tile: Tile) -> None:
    source = (FOLDER / "matmul.cu").read_text()
    assert f"STRIPS(dtype, Storage, 8, {tile.wide}, 4, granule)" in source
    types = "float32, float" if matmul_strips.BYTES[tile.kind] == 4 else f"{tile.kind}, {tile.kind}"
    assert f"STRIPS_KERNELS({types}, {tile.granule})" in source


def test_it_is_for_small_products_of_a_short_k_off_16_bytes() -> None:
    for kind in TILES:
        size = matmul_strips.BYTES[kind]
        assert {tile.granule for tile in fitting(100, 33, 50, kind, 16, 132, False)} == ({2, 4} if size == 2 else {4})
        assert {tile.granule for tile in fitting(100, 33, 51, kind, 16, 132, False)} == {size}
        assert fitting(100, 32, 48, kind, size, 132, False)
        assert not fitting(100, 32, 48, kind, 16, 132, False), "on 16 bytes"
        assert not fitting(16, 33, 50, kind, 16, 132, False)
        assert not fitting(100, 33, 16, kind, 16, 132, False)
        assert not fitting(100, LONGEST + 1, 50, kind, 16, 132, False)
        assert not fitting(800, 33, 200, kind, 16, 132, False), "tiles enough"
        assert [bool(fitting(m, 33, 50, kind, 16, 132, True)) for m in (199, 200)] == [True, False]
    assert "strips" in kernel_for("float16", 135, 22, 633)
    assert "strips" not in kernel_for("float16", 135, 22, 633, capability=(10, 0))


@each_tile
def test_an_estimate_grows_with_k_and_blocks(tile: Tile) -> None:
    times = [tile.estimate(m, k, 100, 132) for m, k in ((20, 8), (20, 130), (1000, 130), (2000, 130))]
    assert times == sorted(times)
