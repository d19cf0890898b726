"""Which product of 16 rows at most gets a kernel made for them, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import re

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import UNIT
from opwise.backends.cuda_src.matmul.extra.skinny_m import TILES, Tile, fitting
from opwise.backends.cuda_src.matmul.kernels import swap_ab
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")


@each_tile
def test_a_launch_covers_the_product(tile: Tile) -> None:
    found = tile.launch(11, 1000, 1000, 132)
    assert found.kernel == tile.kernel
    assert found.grid == (-(-1000 // tile.columns) * tile.split, 1, 1)
    assert found.block[0] % 32 == 0
    assert found.shared_bytes * tile.resident <= SHARED_LIMIT[9, 0] * 1024 - 1024 * tile.resident
    assert unit_of(found.kernel) in units("sm_90")


@each_tile
def test_the_plan_knows_the_tiles_as_the_source_has_them(tile: Tile) -> None:
    types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, Storage"
    made = rf"SKINNY_M\({types}, {tile.columns}, {tile.granule}, " + (
        rf"{tile.warps}, \d, {tile.split}\)" if tile.split > 1 else rf"{tile.resident}, {tile.warps}, \d\)"
    )
    assert re.search(made, (FOLDER / "matmul/extra" / ("extra_cluster.cu" if tile.split > 1 else "extra.cu")).read_text())


@pytest.mark.parametrize("tile", swap_ab.TILES["float16"], ids=lambda tile: str(tile.name))
def test_tiles_of_sixteen_rows_by_swapped_operands_are_as_the_source_has_them(tile: swap_ab.Tile) -> None:
    made = f"##_{tile.name}, dtype, {tile.resident}, {swap_ab.ROWS}, {tile.columns}, {tile.stages})"
    assert made in (FOLDER / "matmul/kernels/wgmma.cu").read_text()
    found = tile.launch(11, 1000, 1000, 132)
    assert found.grid == (-(-1000 // tile.columns), 1, 1)
    assert (found.shared_bytes + 1024) * tile.resident <= (SHARED_LIMIT[9, 0] + 1) * 1024
    boxes = [(matrix.box_rows, matrix.box_columns) for matrix in found.matrices]
    assert boxes == [(11, 64), (64, 64), (swap_ab.ROWS, 64)], "A as low as it is"


def test_pieces_are_as_wide_as_rows_allow_and_clusters_are_for_what_runs_at_once() -> None:
    def there(n: int, granule: int, kind: str = "float16", k: int = 512) -> list[str]:
        return [tile.name for tile in fitting(16, k, n, kind, granule, 132)]

    assert [len(there(512, granule)) for granule in (2, 4, 8, 16)] == [0, 2, 3, 3]
    assert not there(512, 8, "tfloat32")
    assert not there(512, 16, "float32")
    assert fitting(17, 512, 512, "float16", 16, 132) == ()
    for n, some in ((960, True), (961, False)):
        assert ("skinny_m_16x32_w8_v8_s8" in there(n, 16)) == some, "30 clusters of eight, two blocks a multiprocessor"
    assert "skinny_m_16x32_w8_v8_s8" not in there(512, 16, k=4096)
    assert "skinny_m_16x32_w8_v8_s8" in there(512, 8, k=4096), "nothing else is as quick where rows do not begin on 16 bytes"


def test_on_other_gpus_and_where_a_kernel_for_thin_factors_is_quicker_none_is_offered() -> None:
    assert "skinny_m" in kernel_for("float16", 8, 300, 500)
    assert "skinny_m" not in kernel_for("float16", 8, 300, 500, capability=(8, 0))
    assert "skinny_m" not in kernel_for("float16", 8, 300, 500, capability=(10, 0))
    assert "gemv_rows_" in kernel_for("bfloat16", 4, 34, 31_750)
    assert "skinny_m" in kernel_for("bfloat16", 3, 1142, 16_428)
    assert "gemv_rows_" in kernel_for("float16", 1, 2000, 4098)
    assert "gemv_rows_" in kernel_for("float16", 1, 5000, 1002, alignment=4)
    assert "skinny_m" in kernel_for("float16", 1, 5000, 1000, alignment=4)
    assert "columns_4" in kernel_for("float16", 16, 5000, 4)


@each_tile
def test_an_estimate_grows_with_k_and_a_short_product_costs_little_more_than_a_launch(tile: Tile) -> None:
    times = [tile.estimate(16, k, 640, 132) / UNIT[tile.kind] for k in (64, 1024, 8192)]
    assert times == sorted(times)
    assert times[0] < 2 < times[2]
