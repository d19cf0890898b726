"""Which products get the CUDA C++ kernels for rows that begin anywhere, and that Python knows these as the source has them: arithmetic."""

from __future__ import annotations

import math
import re

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.kernels.cluster import UNIT
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.extra.unaligned_tma import SIZE_LIMIT, TILES, Tile, fitting
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

ALL = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", ALL, ids=lambda tile: tile.kernel)
LAUNCH_US = 4.0  # between events, that no estimate tells of
# us on one H200, torch 2.11, L2 flushed, interleaved, medians: kind, (m, k, n) -> kernel -> time; "before" is what was in use.
MEASURED: dict[tuple[str, tuple[int, int, int]], dict[str, float]] = {
    ("float16", (1003, 4501, 3003)): {"128_s1": 87.3, "128_s4": 110.2, "before": 348.7},
    ("float16", (3001, 4501, 73)): {"128_s4": 18.1, "64_s2": 21.9, "128_s8": 22.6, "before": 54.4},
    ("float16", (257, 4501, 463)): {"40_s4_straight": 13.1, "64_s8_straight": 18.0, "64_s2": 18.8, "64_s8": 21.8, "before": 29.1},
    ("float16", (37, 4501, 3003)): {"40_s4_straight": 14.5, "64_s8_straight": 19.2, "before": 31.0, "64_s1": 63.4},
    ("float16", (257, 4501, 3003)): {"64_s1_straight": 44.8, "64_s1": 61.6, "64_s2": 64.5, "before": 106.9},
    ("float16", (1003, 4501, 463)): {"64_s2": 22.9, "128_s8": 31.5, "before": 56.0},
    ("float16", (3001, 95, 3003)): {"128_s1": 24.0, "64_s1_straight": 24.0, "64_s1": 26.5, "40_s1_straight": 27.1, "before": 80.6},
    ("float16", (257, 4501, 73)): {"64_s8": 11.2, "64_s8_straight": 13.0, "128_s8": 13.1, "16_s4": 13.5, "before": 14.9},
    ("float16", (1003, 95, 73)): {"64_s1": 8.0, "40_s1_straight": 8.1, "16_s1": 8.1, "64_s1_straight": 8.4, "before": 9.0},
    ("float16", (37, 4501, 463)): {"64_s8_straight": 12.8, "before": 14.6, "40_s4_straight": 14.7, "64_s2": 22.2},
    ("bfloat16", (1003, 95, 3003)): {"128_s1": 10.0, "64_s1": 11.4, "64_s1_straight": 11.5, "40_s1_straight": 12.7, "before": 29.1},
    ("bfloat16", (37, 4501, 3003)): {"40_s4_straight": 14.4, "64_s8_straight": 19.2, "before": 31.0},
    ("tfloat32", (3001, 4501, 3003)): {"256_s1": 371.0, "128_s1": 425.4, "before": 1143.2},
    ("tfloat32", (3001, 4501, 73)): {"128_s4": 28.2, "128_s8": 31.4, "64_s2": 35.8, "before": 82.4},
    ("tfloat32", (257, 4501, 463)): {"128_s4": 18.3, "40_s4_straight": 20.0, "128_s8": 23.6, "64_s8_straight": 26.5, "before": 45.9},
    ("tfloat32", (1003, 4501, 463)): {"64_s2": 36.6, "128_s8": 43.3, "before": 82.3},
    ("tfloat32", (37, 4501, 3003)): {"40_s4_straight": 23.0, "64_s8_straight": 28.7, "before": 45.9, "64_s1": 62.1},
    ("tfloat32", (37, 4501, 463)): {"16_s4": 12.0, "64_s8_straight": 13.1, "before": 13.9, "64_s8": 18.2},
    ("tfloat32", (3001, 95, 3003)): {"128_s1": 27.6, "64_s1_straight": 28.0, "64_s1": 29.1, "256_s1": 31.4, "before": 113.2},
    ("tfloat32", (1003, 4501, 73)): {"128_s8": 12.8, "64_s8": 19.6, "40_s4_straight": 21.4, "64_s8_straight": 25.4, "before": 38.4},
    ("tfloat32", (37, 4501, 73)): {"before": 10.0},
    ("tfloat32", (16, 4095, 4097)): {"40_s4_straight": 34.4, "64_s8_straight": 37.9, "40_s1_straight": 47.6},
    ("tfloat32", (37, 701, 3003)): {"40_s4_straight": 7.8, "64_s8_straight": 12.3, "before": 12.7, "64_s1": 13.7},
}


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_a_kernel_that_is_nearly_the_fastest(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    kind, (m, k, n) = product
    taken = kernel_for(kind, m, k, n)
    name = taken.removeprefix(f"matmul_odd_{kind}_") if "_odd_" in taken else "before"
    assert times[name] <= 1.15 * min(times.values()), taken
    for changes in ({"capability": (8, 0)}, {"capability": (10, 0)}, {"wgmma": False}):
        assert "odd" not in kernel_for(kind, m, k, n, **changes)
    for tile in TILES[kind]:
        if tile.name in times:
            told = LAUNCH_US + tile.estimate(m, k, n, 132) / UNIT[kind]
            assert abs(math.log(told / times[tile.name])) < 0.35, f"{tile.name}: {told:.1f} us estimated, {times[tile.name]} measured"


@pytest.mark.parametrize("kind", TILES)
def test_rows_that_begin_on_16_bytes_have_other_kernels(kind: str) -> None:
    assert "odd" not in kernel_for(kind, 1000, 4096, 3000)
    assert "odd" in kernel_for(kind, 1000, 4097, 3000)
    assert "odd" in kernel_for(kind, 1000, 4096, 3001)
    assert "odd" in kernel_for(kind, 1000, 4096, 3000, alignment=8)
    assert not fitting(SIZE_LIMIT + 1, 5, 5, kind, 2)


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    found = tile.launch(1003, 701, 777, 132)
    assert found.shared_bytes <= SHARED_LIMIT[9, 0] * 1024
    assert unit_of(found.kernel) == f"matmul_odd_{tile.kind}"
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
    source = (FOLDER / "matmul_odd.cu").read_text()
    made = re.search(rf"{'STRAIGHT' if tile.straight else 'BY_CLASS'}\(dtype, Storage, {tile.rows}, {tile.split}, (\d+)\)", source)
    assert made, f"{tile.kernel} is in the source"
    assert int(made[1]) == tile.stages
