"""Which small product gets a kernel by steps that are under way at once, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import once_times
import pytest
from plans import Product, kernel_for, lost, taken

from opwise.backends.cuda_src import matmul_many, matmul_once
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import BYTES
from opwise.backends.cuda_src.matmul.extra.small_gemm import Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

ONCE = [tile for tiles in matmul_once.TILES.values() for tile in tiles]
MANY = [tile for tiles in matmul_many.TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", [*ONCE, *MANY], ids=lambda tile: f"{tile.kind}-{tile.name}")
FAMILY = r"matmul_(cluster_)?(b?float16|t?float32)_(?=once_|many_)"  # a table has what follows, and the quickest of all that has none of it


@pytest.mark.parametrize("product", once_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: Product) -> None:
    """4 % slower than the quickest at most, and at 0.95 of cuBLAS at least, but for those that are known."""
    assert lost(once_times.MEASURED, product, FAMILY) <= once_times.SLOWER.get(product, 1.04)
    times = once_times.MEASURED[product]
    assert times["cuBLAS"] / times[taken(product, FAMILY)] >= once_times.BEHIND.get(product, 0.95)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(once_times.MEASURED, product, FAMILY) for product in once_times.MEASURED]
    assert sum(every) / len(every) < 1.02


@each_tile
def test_a_launch_covers_the_product(tile: Tile | matmul_many.Tile) -> None:
    found = tile.launch(101, 30, 150, 132)
    assert (found.kernel, found.block, found.shared_bytes) == (tile.kernel, (128, 1, 1), tile.shared_bytes)
    assert found.grid == (-(-101 // tile.rows) * -(-150 // tile.columns) * getattr(tile, "split", 1), 1, 1)
    assert unit_of(tile.kernel) in units("sm_90")
    assert tile.shared_bytes <= SHARED_LIMIT[9, 0] * 1024


@each_tile
def test_kernels_are_as_the_source_has_them(tile: Tile | matmul_many.Tile) -> None:
    split = getattr(tile, "split", 1)
    source = (FOLDER / ("matmul_cluster.cu" if split > 1 else "matmul.cu")).read_text()
    way, _, _ = tile.name.partition("_")
    sizes = f"{tile.rows}, {tile.columns}, {tile.step}"
    behind = ", " if way == "many" else f", {split})" if split > 1 else ")"  # blocks a multiprocessor
    if tile.kind == "float32":
        assert f"{way.upper()}_FMA({sizes}, {tile.granule}{behind}" in source
    else:
        warps = {16: 1, 32: 2, 64: 2}[tile.rows]
        types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, Storage"
        assert f"{way.upper()}({types}, {sizes}, {warps}, {tile.granule}{behind}" in source


@pytest.mark.parametrize("tile", ONCE, ids=lambda tile: f"{tile.kind}-{tile.name}")
def test_parts_of_a_cluster_are_all_of_k(tile: Tile) -> None:
    unit = matmul_once.ALONE // BYTES[tile.kind]
    for k in (1, unit, unit * tile.split, unit * tile.split + 1, 700):
        assert tile.part(k) % unit == 0
        assert tile.part(k) * tile.split >= k > (tile.part(k) - unit) * tile.split


def test_it_is_for_small_products_and_accesses_are_as_wide_as_rows_allow() -> None:
    for kind in matmul_once.TILES:
        size = BYTES[kind]
        widths = {2: {2: 2, 4: 4, 8: 8, 16: 8}, 4: {4: 4, 8: 4, 16: 16}}[size]
        for granule, width in widths.items():
            assert {tile.granule for tile in fitting(100, 40, 50, kind, granule, 132)} == {width}
        assert not fitting(4000, 40, 4000, kind, 16, 132), "tiles enough"
        assert not fitting(100, 9000, 50, kind, 16, 132), "steps enough"
        assert {tile.split for tile in fitting(100, 600, 50, kind, size, 132)} >= {8}
        assert {tile.split for tile in fitting(100, 24, 50, kind, size, 132)} == {1}
        many = [matmul_many.fitting(*shape, kind, 4, 132) for shape in ((900, 60, 900), (249, 60, 900), (900, 201, 900), (900, 60, 64))]
        assert [bool(found) for found in many] == [True, False, False, False]
    assert not matmul_many.fitting(900, 60, 900, "float16", 2, 132), "copies go by 4 bytes"
    for shape, way in (((135, 22, 633), "once"), ((70, 410, 73), "once"), ((871, 27, 1914), "many")):
        assert way in kernel_for("float32", *shape)
        assert way not in kernel_for("float32", *shape, capability=(10, 0))


@each_tile
def test_an_estimate_grows_with_k_and_tiles(tile: Tile | matmul_many.Tile) -> None:
    times = [tile.estimate(m, k, 100, 132) for m, k in ((20, 8), (20, 300), (2000, 300), (6000, 300))]
    assert times == sorted(times)
