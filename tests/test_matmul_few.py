"""Which product of 16 rows at most gets a kernel made for them, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import re

import low_times
import pytest
from plans import kernel_for, slower

from opwise.backends.cuda_src import matmul_few
from opwise.backends.cuda_src.matmul.extra.skinny_m import ROWS, TILES, Tile, fitting
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")


def lost(product: tuple[str, tuple[int, int, int]]) -> float:
    """So many times the quickest that was timed, the plan's choice."""
    kind, shape = product
    taken = re.sub(r"^matmul_(wgmma_|cluster_)?(b?float16|t?float32)_", "", kernel_for(kind, *shape))
    return slower(low_times.MEASURED[product], taken)


@pytest.mark.parametrize("product", low_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]]) -> None:
    """8 % slower than the quickest at most, but for those that are known."""
    assert lost(product) <= low_times.SLOWER.get(product, 1.08)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(product) for product in low_times.MEASURED]
    assert sum(every) / len(every) < 1.013


@each_tile
def test_a_launch_covers_the_product(tile: Tile) -> None:
    found = tile.launch(11, 1000, 1000, 132)
    assert found.kernel == tile.kernel
    assert found.grid == (-(-1000 // tile.columns) * tile.split, 1, 1)
    assert found.block[0] % 32 == 0
    assert found.shared_bytes * tile.resident <= SHARED_LIMIT[9, 0] * 1024 - 1024 * tile.resident
    assert unit_of(found.kernel) in units("sm_90")
    if tile.turned:
        boxes = [(11, 64), (64, 64), (ROWS, 64)][: 3 if tile.split == 1 else 2]  # a cluster stores C as it meets
        assert [(matrix.box_rows, matrix.box_columns) for matrix in found.matrices] == boxes, "A as low as it is"


@each_tile
def test_the_plan_knows_the_tiles_as_the_source_has_them(tile: Tile) -> None:
    if tile.turned:
        split = f"{tile.split}, " if tile.split > 1 else ""
        made = f"##_{tile.name}, dtype, {tile.resident}, {split}{ROWS}, {tile.columns}, {tile.stages})"
        assert made in (FOLDER / "matmul_wgmma.cu").read_text()
        return
    types = "tfloat32, float" if tile.kind == "tfloat32" else "dtype, Storage" if tile.split == 1 else "dtype, dtype"
    split = f"{tile.split}, " if tile.split > 1 else ""
    made = f"FEW({types}, {tile.columns}, {tile.granule}, {split}{tile.resident}, {tile.warps}, "
    assert made in (FOLDER / ("matmul_cluster.cu" if tile.split > 1 else "matmul.cu")).read_text()


def test_pieces_are_as_wide_as_rows_allow_and_clusters_are_for_what_runs_at_once() -> None:
    def there(n: int, granule: int, kind: str = "float16", k: int = 512) -> list[str]:
        return [tile.name for tile in fitting(16, k, n, kind, granule, 132)]

    assert [len(there(512, granule)) for granule in (2, 4, 8, 16)] == [0, 4, 4, 6]
    assert not there(512, 8, "tfloat32")
    assert not there(512, 16, "float32")
    assert fitting(17, 512, 512, "float16", 16, 132) == ()
    for n, some in ((960, True), (961, False)):
        assert ("few_16x32_w8_v8_s8" in there(n, 16)) == some, "30 clusters of eight, two blocks a multiprocessor"
    assert "few_16x32_w8_v8_s8" not in there(512, 16, k=4096)
    assert "few_16x32_w8_v8_s8" in there(512, 8, k=4096), "nothing else is as quick where rows do not begin on 16 bytes"
    assert "16x192_b1" not in there(16_896, 16)
    assert "16x192_b1" in there(16_904, 16)
    assert [n for n in range(8, 5000, 8) if "16x128_b2_s4" in there(n, 16)] == list(range(2440, 3848, 8)), "20 to 30 clusters of four"


def test_on_other_gpus_and_where_a_kernel_for_thin_factors_is_quicker_none_is_offered() -> None:
    assert "few" in kernel_for("float16", 8, 300, 500)
    assert "few" not in kernel_for("float16", 8, 300, 500, capability=(8, 0))
    assert "few" not in kernel_for("float16", 8, 300, 500, capability=(10, 0))
    assert "_rows_" in kernel_for("bfloat16", 4, 34, 31_750)
    assert "few" in kernel_for("bfloat16", 3, 1142, 16_428)
    assert "_rows_" in kernel_for("float16", 1, 2000, 4098)
    assert "_rows_" in kernel_for("float16", 1, 5000, 1002, alignment=4)
    assert "few" in kernel_for("float16", 1, 5000, 1000, alignment=4)
    assert "columns_4" in kernel_for("float16", 16, 5000, 4)


@each_tile
def test_an_estimate_grows_with_k_and_a_short_product_costs_little_more_than_a_launch(tile: Tile) -> None:
    times = [tile.estimate(16, k, 640, 132) / matmul_few.UNIT[tile.kind] for k in (64, 1024, 8192)]
    assert times == sorted(times)
    assert times[0] < 2 < times[2]
