"""Which small product gets a kernel by steps that are under way at once, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import BYTES
from opwise.backends.cuda_src.matmul.extra import small_gemm
from opwise.backends.cuda_src.matmul.extra.small_gemm import Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in small_gemm.TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")


@each_tile
def test_a_launch_covers_the_product(tile: Tile) -> None:
    found = tile.launch(101, 30, 150, 132)
    assert (found.kernel, found.block, found.shared_bytes) == (tile.kernel, (128, 1, 1), tile.shared_bytes)
    assert found.grid == (-(-101 // tile.rows) * -(-150 // tile.columns) * tile.split, 1, 1)
    assert unit_of(tile.kernel) in units("sm_90")
    assert tile.shared_bytes <= SHARED_LIMIT[9, 0] * 1024


@each_tile
def test_kernels_are_as_the_source_has_them(tile: Tile) -> None:
    source = (FOLDER / "matmul/extra" / ("extra_cluster.cu" if tile.split > 1 else "extra.cu")).read_text()
    sizes, behind = f"{tile.rows}, {tile.columns}, {tile.step}", f", {tile.split})" if tile.split > 1 else ")"
    if tile.kind == "float32":
        assert f"SMALL_FMA({sizes}, {tile.granule}{behind}" in source
    else:
        types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, Storage"
        assert f"SMALL({types}, {sizes}, { {16: 1, 32: 2}[tile.rows] }, {tile.granule}{behind}" in source


@each_tile
def test_parts_of_a_cluster_are_all_of_k(tile: Tile) -> None:
    unit = small_gemm.ALONE // BYTES[tile.kind]
    for k in (1, unit, unit * tile.split, unit * tile.split + 1, 700):
        assert tile.part(k) % unit == 0
        assert tile.part(k) * tile.split >= k > (tile.part(k) - unit) * tile.split


def test_it_is_for_small_products_and_accesses_are_as_wide_as_rows_allow() -> None:
    for kind in small_gemm.TILES:
        size = BYTES[kind]
        widths = {2: {2: 2, 4: 2, 8: 8, 16: 8}, 4: {4: 4, 8: 4, 16: 16}}[size]
        for granule, width in widths.items():
            assert {tile.granule for tile in fitting(100, 40, 50, kind, granule, 132)} == {width}
        assert not fitting(4000, 40, 4000, kind, 16, 132), "tiles enough"
        assert not fitting(100, 9000, 50, kind, 16, 132), "steps enough"
        assert {tile.split for tile in fitting(100, 600, 50, kind, size, 132)} >= {8}
        assert {tile.split for tile in fitting(100, 24, 50, kind, size, 132)} == {1}
    for shape in ((135, 22, 633), (70, 410, 73)):
        assert "small_gemm" in kernel_for("float32", *shape)
        assert "small_gemm" not in kernel_for("float32", *shape, capability=(10, 0))


@each_tile
def test_an_estimate_grows_with_k_and_tiles(tile: Tile) -> None:
    times = [tile.estimate(m, k, 100, 132) for m, k in ((20, 8), (20, 300), (2000, 300), (6000, 300))]
    assert times == sorted(times)
