"""Which products get the CUDA C++ kernels whose clusters share K, and that Python describes these as the source has them: arithmetic."""

from __future__ import annotations

import math
import re

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import BYTES
from opwise.backends.cuda_src.matmul.kernels.cluster import SIZE_LIMIT, TILES, Tile
from opwise.backends.cuda_src.plan import ELEMENT_BYTES
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

ALL = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", ALL, ids=lambda tile: tile.kernel)


@pytest.mark.parametrize("kind", TILES)
def test_what_fills_the_gpu_or_is_short_is_not_shared(kind: str) -> None:
    for m, k, n in ((4096, 4096, 4096), (2048, 2048, 2048), (512, 256, 512), (16, 4096, 16384), (8192, 32, 8192)):
        assert not re.search(r"cluster.*_s(?!1$)\d+$", kernel_for(kind, m, k, n)), (m, k, n)


def test_a_low_or_narrow_tile_is_for_a_low_or_narrow_product() -> None:
    def offered(name: str, m: int, n: int, granule: int = 16) -> bool:
        return next(tile for tile in TILES["float32"] if tile.name == f"cluster_simt_{name}").takes(m, 8192, n, granule, 132)

    assert [offered("16x32_v16_s2", m, 4096) for m in (32, 33)] == [True, False]
    assert [offered("64x16_v16_s4", 1024, n) for n in (16, 17)] == [True, False]
    assert [offered("4x64_v16_s8", m, 256) for m in (4, 5)] == [True, False]
    assert [offered("32x32_v16_s8", m, 512) for m in (17, 16)] == [True, False]
    by_name = {tile.name: tile for tile in TILES["tfloat32"]}
    whole, two = (by_name[f"cluster_wgmma_{name}"] for name in ("128x128_v16_s4", "64x128_v16_s2"))
    assert [whole.takes(m, 8192, 128, 16, 132) for m in (30 * 128, 30 * 128 + 1, SIZE_LIMIT + 1)] == [True, False, False]
    assert [two.takes(m, 4096, 8192, 16, 132) for m in (16, 17, 64, 65)] == [False, True, True, False]
    assert [two.takes(64, k, 8192, 16, 132) for k in (767, 768)] == [False, True]


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    found = tile.launch(1000, 512, 776, 132)
    assert found.grid == (-(-1000 // tile.rows) * -(-776 // tile.columns) * tile.split, 1, 1)
    assert tile.resident * (found.shared_bytes + 1024) <= (SHARED_LIMIT[9, 0] + 1) * 1024, "as many blocks fit as it says"
    assert unit_of(found.kernel) == f"matmul_cluster_{'float32' if tile.way == 'simt' else tile.kind}", "TF32 is a permission"
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    assert [matrix[:2] for matrix in found.matrices] == ([(1000, 512), (512, 776)] if tile.mapped else [])
    if found.matrices:
        a = found.matrices[0]
        assert (a.box_rows, a.box_columns * ELEMENT_BYTES[a.element]) == (tile.rows, 128), "rows as wide as the swizzle"
        low = tile.launch(5, 512, 776, 132).matrices[0]
        assert low.box_rows == (5 if tile.low else tile.rows), "as the kernel counts the bytes of its boxes"


@each_tile
def test_the_plan_knows_the_tiles_as_the_source_has_them(tile: Tile) -> None:
    source = (FOLDER / "matmul/kernels/cluster.cu").read_text()
    size = BYTES[tile.kind]
    if tile.way in ("simt", "mma"):
        of = "SIMT(" if tile.way == "simt" else f"MMA({tile.kind}, {tile.kind if size == 2 else 'float'}, "
        label = ", ".join(map(str, (tile.rows, tile.columns, tile.granule, tile.split, tile.resident)))
        made = re.search(rf"{re.escape(of)}{label}, ([\d, ]+)\)", source)
        assert made, f"{tile.kernel} is in the source"
        numbers = [int(x) for x in made[1].split(", ")]
        if tile.way == "simt":
            x, y, rows, columns, step, slices, stages = numbers
            assert (x * columns, y * rows, x * y * slices) == (tile.columns, tile.rows, tile.threads)
            assert (step * size, stages) == (tile.step_bytes, tile.stages)
        else:
            step, *warps, stages = numbers
            assert (step, 32 * math.prod(warps), stages) == (tile.step_bytes, tile.threads, tile.stages)
        return
    made = re.search(rf"KERNEL\({tile.kernel}, MAPPED, float, \w+, {tile.split}, {tile.resident}, \w+<([^>]*)>\)", source)
    assert made, f"{tile.kernel} is in the source"
    numbers = [int(x) for x in made[1].split(",")]
    consumers = numbers[2] if len(numbers) > 2 else 2
    assert (numbers[:2], tile.columns, tile.threads) == ([tile.rows, tile.stages], 64 * consumers, 128 * (consumers + 1))
    assert tile.low == (consumers == 1), "Tf32Tile::ONE"
