"""Which products get the CUDA C++ kernels for rows that begin anywhere, and that Python knows these as the source has them: arithmetic."""

from __future__ import annotations

import re

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.extra.unaligned_tma import SIZE_LIMIT, TILES, Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

ALL = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", ALL, ids=lambda tile: tile.kernel)


@pytest.mark.parametrize("kind", TILES)
def test_rows_that_begin_on_16_bytes_have_other_kernels(kind: str) -> None:
    assert "unaligned_tma" not in kernel_for(kind, 1000, 4096, 3000)
    assert "unaligned_tma" in kernel_for(kind, 1000, 4097, 3000)
    assert "unaligned_tma" in kernel_for(kind, 1000, 4096, 3001)
    assert "unaligned_tma" in kernel_for(kind, 1000, 4096, 3000, alignment=8)
    assert not fitting(SIZE_LIMIT + 1, 5, 5, kind, 2)


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    found = tile.launch(1003, 701, 777, 132)
    assert found.shared_bytes <= SHARED_LIMIT[9, 0] * 1024
    assert unit_of(found.kernel) == f"matmul_unaligned_tma_{tile.kind}"
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    rows, columns = -(-1003 // tile.rows) * tile.rows, -(-777 // tile.columns) * tile.columns
    assert tile.tiles(1003, 777) * tile.rows * tile.columns >= rows * columns
    assert found.grid == (tile.tiles(1003, 777) * tile.split if tile.split > 1 else min(tile.tiles(1003, 777), 132), 1, 1)
    a, b = found.matrices
    assert [a[:2], b[:2]] == [(1003, 701), (701, 777)]
    assert {a.classes, b.classes} == {16 // tile.size}, "as many rows begin on 16 bytes again, whatever their length"
    assert b.box_rows * b.classes * tile.size == b.box_columns * tile.size == 128, "rows as wide as the swizzle, and a step of K"


@each_tile
def test_the_plan_knows_the_tiles_as_the_source_has_them(tile: Tile) -> None:
    source = (FOLDER / "matmul/extra/unaligned_tma.cu").read_text()
    made = re.search(rf"{'STRAIGHT' if tile.straight else 'BY_RESIDUE'}\(dtype, Storage, {tile.rows}, {tile.split}, (\d+)\)", source)
    assert made, f"{tile.kernel} is in the source"
    assert int(made[1]) == tile.stages
