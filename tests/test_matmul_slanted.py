"""Which product of few rows whose B has rows on 2 bytes gets which kernel, over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
import slanted_times
from plans import kernel_for, lost

from opwise.backends.cuda_src import matmul_slanted
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul_slanted import FEW, MANY, SIXTEENS, TILES, Sixteen, Tile, V, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

EVERY = [tile for group in (TILES, SIXTEENS) for tiles in group.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", EVERY, ids=lambda tile: f"{tile.kind}-{tile.name}")
FAMILY = r"matmul_(cluster_)?b?float16_(?=slanted_|rows_)"  # a table has what follows, and the quickest of all that has another beginning


@pytest.mark.parametrize("product", slanted_times.MEASURED, ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]]) -> None:
    """10 % slower than the quickest at most, but for those that are known."""
    assert lost(slanted_times.MEASURED, product, FAMILY) <= slanted_times.SLOWER.get(product, 1.10)


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    every = [lost(slanted_times.MEASURED, product, FAMILY) for product in slanted_times.MEASURED]
    assert sum(every) / len(every) < 1.03


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile | Sixteen) -> None:
    """As the kernels share C out: whole pieces a block, none without a column, V fewer than its lanes have elements."""
    for n in (401, 5001, 128_257):
        found = tile.launch(1, 1000, n, 132)
        split = tile.split if isinstance(tile, Sixteen) else 1
        blocks, wide = found.grid[0] // split, (matmul_slanted.MMA_COLUMNS if isinstance(tile, Sixteen) else tile.lanes * V)
        each = -(-n // (V * blocks)) * V
        assert found.kernel == tile.kernel
        assert (blocks - 1) * each < n <= blocks * each
        assert each <= wide - V
        assert found.shared_bytes * 2 <= (SHARED_LIMIT[9, 0] - 2) * 1024, "of two blocks"
    assert unit_of(tile.kernel) in units("sm_90")


@each_tile
def test_kernels_are_as_the_source_has_them(tile: Tile | Sixteen) -> None:
    source = (FOLDER / "matmul.cu").read_text()
    if isinstance(tile, Sixteen):
        clusters = (FOLDER / "matmul_cluster.cu").read_text()
        made = f"SLANTED_KERNEL(dtype, Storage, {tile.split})"
        assert (
            made in clusters if tile.split > 1 else "slanted_16x64, Storage, slanted_few_matmul, 2, SlantedFewTile<Storage, 8, 4>" in source
        )
    else:
        macro = "SLANTED_1_TO_4(dtype, Storage, " if tile.count <= FEW else f"SLANTED(dtype, Storage, {tile.count}, "
        assert f"{macro}{tile.lanes}, {tile.blocks})" in source
    assert f"SLANTED_KERNELS({tile.kind}, {tile.kind})" in source


def test_it_is_for_few_rows_in_16_bits_and_rows_of_b_that_begin_on_2_bytes() -> None:
    for kind in ("float16", "bfloat16"):
        assert {m for m in range(1, 40) if fitting(m, 1000, 5001, kind, 16, 132)} == set(range(1, 17))
        assert not fitting(4, 1000, 5002, kind, 16, 132)
        assert not fitting(4, 1000, 5001, kind, 8, 132), "B on 16 bytes"
        assert not fitting(4, 1000, 399, kind, 16, 132)
        assert {tile.count for tile in fitting(3, 1000, 20_001, kind, 16, 132) if isinstance(tile, Tile)} == {3}
        assert {tile.count for tile in fitting(5, 1000, 20_001, kind, 16, 132) if isinstance(tile, Tile)} == {MANY}
        assert not [tile for tile in fitting(9, 1000, 20_001, kind, 16, 132) if isinstance(tile, Tile)]
        clusters = {tile.split for tile in fitting(9, 4000, 701, kind, 16, 132) if isinstance(tile, Sixteen)}
        assert clusters == {1, 2, 4, 8, 16}
        assert {tile.split for tile in fitting(9, 4000, 20_001, kind, 16, 132) if isinstance(tile, Sixteen)} == {1}, "as measured"
    assert not fitting(4, 1000, 5001, "float32", 16, 132)
    assert "slanted" in kernel_for("bfloat16", 4, 1220, 22_371)
    assert "slanted" not in kernel_for("bfloat16", 4, 1220, 22_371, capability=(10, 0))
    assert "slanted" not in kernel_for("bfloat16", 4, 1220, 22_371, alignment=2)


@each_tile
def test_an_estimate_grows_with_k(tile: Tile | Sixteen) -> None:
    times = [tile.estimate(1, k, 2001, 132) for k in (2048, 8192, 65_536)]
    assert times == sorted(times)
