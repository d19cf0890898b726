"""Which product of 5 to 16 rows and a short K gets a kernel made for them, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
import short_times
from plans import kernel_for, lost

from opwise.backends.cuda_src import matmul_short
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul_short import EIGHT, LONGEST, SIXTEEN, TILES, Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")
FAMILY = r"matmul_(b?float16|float32)_rows_"  # a table has what follows, and the quickest of all that has another beginning


@pytest.mark.parametrize("product", short_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]]) -> None:
    """10 % slower than the quickest at most, but for those that are known."""
    assert lost(short_times.MEASURED, product, FAMILY) <= short_times.SLOWER.get(product, 1.10)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(short_times.MEASURED, product, FAMILY) for product in short_times.MEASURED]
    assert sum(every) / len(every) < 1.015


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    found = tile.launch(7, 100, 10_001, 132)
    assert found.kernel == tile.kernel
    assert (found.grid[0] - 1) * tile.wide < 10_001 <= found.grid[0] * tile.wide
    assert found.block == (1024 // tile.blocks, 1, 1)
    assert found.block[0] * tile.resident <= 1024
    sums = 4 * tile.count * tile.wide * (tile.at_once + 1)
    of_a = 4 * tile.count * found.block[0]
    assert max(sums, of_a) <= 48 * 1024
    assert (max(sums, of_a) + 1024) * tile.resident <= SHARED_LIMIT[9, 0] * 1024
    assert unit_of(tile.kernel) in units("sm_90")


def test_blocks_of_a_multiprocessor_are_as_the_source_has_them() -> None:
    source = (FOLDER / "matmul.cu").read_text()
    for tile in EVERY:
        size = matmul_short.BYTES[tile.kind]
        places = [str(tile.granule), "pair" if tile.granule > size else "size"]
        found = [f"{tile.count}, {tile.wide}, {tile.blocks}, {tile.resident}, {place})" for place in places]
        if tile.resident == tile.blocks:
            found += [f"{tile.count}, {tile.wide}, {tile.blocks}, {place})" for place in places]
        assert any(each in source for each in found), tile.name


def test_it_is_for_few_rows_a_short_k_and_what_has_no_kernel_of_sixteen_rows() -> None:
    for kind, tiles in TILES.items():
        assert {m for m in range(1, 40) if fitting(m, 64, 5001, kind, 16)} == set(range(5, SIXTEEN + 1))
        assert {tile.count for tile in fitting(EIGHT, 64, 5001, kind, 16)} == {EIGHT, SIXTEEN}
        assert {tile.count for tile in fitting(EIGHT + 1, 64, 5001, kind, 16)} == {SIXTEEN}
        assert fitting(EIGHT, LONGEST, 5002, kind, 16) == tiles
        assert not fitting(EIGHT, LONGEST + 1, 5002, kind, 16)
        size = matmul_short.BYTES[kind]
        for n, alignment in ((5001, 16), (5002, size)):
            assert {tile.granule for tile in fitting(EIGHT, 64, n, kind, alignment)} == {size}
    assert "rows_8x128" in kernel_for("bfloat16", 6, 33, 50_257)
    assert "rows" not in kernel_for("bfloat16", 6, 32, 50_256), "kernels of sixteen rows do"
    assert "rows" not in kernel_for("bfloat16", 6, 33, 50_257, capability=(10, 0))
    assert "rows_16x" in kernel_for("float32", 12, 23, 45_664)


@each_tile
def test_an_estimate_grows_with_k(tile: Tile) -> None:
    times = [tile.estimate(7, k, 20_001, 132) for k in (16, 128, LONGEST)]
    assert times == sorted(times)
