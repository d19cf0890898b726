"""Which products get the CUDA C++ kernels whose clusters share K, and that Python describes these as the source has them: arithmetic."""

from __future__ import annotations

import math
import re

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.kernels.cluster import SIZE_LIMIT, TILES, UNIT, Tile, fitting
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.cost import BYTES, granule_of
from opwise.backends.cuda_src.plan import ELEMENT_BYTES
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

ALL = [tile for tiles in TILES.values() for tile in tiles]
each_tile = pytest.mark.parametrize("tile", ALL, ids=lambda tile: tile.kernel)
LAUNCH_US = 4.0  # between events, that no estimate tells of
# us on one H200, torch 2.11, L2 flushed, interleaved, medians: kind, (m, k, n) -> kernel -> time.
MEASURED = {
    ("float32", (37, 4501, 73)): {"simt_32x32_v4_s16": 10.1, "simt_32x32_v4_s4": 21.1, "simt_64x64_v4_s4": 50.7, "simt_64x64_v4_s2": 94.5},
    ("float32", (37, 701, 463)): {"simt_32x32_v4_s4": 8.9, "simt_32x32_v4_s16": 10.9, "simt_64x64_v4_s4": 13.6},
    ("float32", (128, 8192, 32)): {"simt_32x32_v16_s16": 8.4},
    ("float32", (24, 4096, 2560)): {"simt_32x32_v16_s8": 29.1, "simt_32x32_v16_s16": 30.9},
    ("float32", (128, 8192, 128)): {"simt_32x32_v16_s16": 16.1, "simt_32x32_v16_s8": 21.5},
    ("float32", (8192, 8192, 32)): {"simt_128x32_v16_s2": 119.0},
    ("float32", (32, 8192, 8192)): {"simt_32x128_v16_s2": 123.4},
    ("float32", (2, 16384, 4096)): {"simt_4x64_v16_s2": 63.5, "simt_4x64_v16_s1": 109.2},
    ("float32", (4, 2048, 2048)): {"simt_4x64_v16_s8": 8.7, "simt_4x64_v16_s2": 9.6, "simt_4x64_v16_s16": 9.7},
    ("float32", (4, 8192, 256)): {"simt_4x64_v16_s16": 6.5, "simt_4x64_v16_s8": 9.3},
    ("float32", (16, 4096, 4096)): {"simt_16x32_v16_s2": 22.2},
    ("float32", (16, 8192, 1024)): {"simt_16x32_v16_s8": 17.2, "simt_16x32_v16_s16": 17.7, "simt_16x32_v16_s2": 27.2},
    ("float32", (16, 16384, 128)): {"simt_16x32_v16_s16": 9.1, "simt_16x32_v16_s8": 14.6},
    ("float32", (1, 4096, 16384)): {"simt_4x64_v16_s1": 64.1, "simt_4x64_v16_s2": 77.5},
    ("float32", (65536, 512, 8)): {"simt_64x16_v16_s1": 43.8, "simt_64x32_v16_s1": 66.2},
    ("float32", (2048, 2048, 16)): {"simt_64x16_v16_s4": 11.4, "simt_64x16_v16_s1": 21.3, "simt_128x32_v16_s2": 32.2},
    ("float32", (8192, 8192, 10)): {"simt_64x16_v4a16_s1": 78.7, "simt_64x16_v4a16_s4": 85.1, "simt_64x16_v4_s1": 115.0},
    ("float32", (4096, 4096, 10)): {"simt_64x16_v4a16_s4": 28.2, "simt_64x16_v4_s4": 38.6, "simt_32x32_v4_s4": 54.8},
    ("float32", (8192, 4095, 9)): {"simt_64x16_v4_s1": 59.7, "simt_64x16_v4_s4": 62.7, "simt_64x64_v4_s2": 137.4},
    ("float32", (8192, 8192, 27)): {"simt_64x32_v4a16_s1": 131.3, "simt_64x32_v4_s1": 161.5, "simt_64x64_v4_s2": 268.8},
    ("float32", (1024, 4096, 27)): {"simt_32x32_v4_s16": 17.8, "simt_32x32_v4_s4": 23.8},
    ("float32", (16, 8192, 1001)): {"simt_16x64_v4_s16": 22.4, "simt_16x64_v4_s8": 26.6, "simt_32x32_v4_s16": 29.9},
    ("float32", (16, 4097, 4097)): {"simt_16x64_v4_s8": 37.8, "simt_16x64_v4_s4": 41.0, "simt_32x32_v4_s4": 55.4},
    ("tfloat32", (16, 8192, 1001)): {"simt_16x64_v4_s16": 22.4},
    ("tfloat32", (8192, 8192, 10)): {"simt_64x16_v4a16_s1": 78.6, "simt_64x16_v4a16_s4": 84.6, "simt_64x16_v4_s1": 114.9},
    ("tfloat32", (1024, 4096, 12)): {"mma_64x32_v16_s8": 10.8, "simt_64x16_v16_s4": 12.3, "mma_32x32_v16_s16": 12.7},
    ("tfloat32", (37, 4501, 73)): {"mma_32x32_v4_s16": 9.7, "mma_32x32_v4_s4": 17.2, "mma_128x64_v4_s2": 85.0},
    ("tfloat32", (1003, 4501, 463)): {"mma_128x64_v4_s2": 82.3},
    ("tfloat32", (128, 8192, 32)): {"mma_32x32_v16_s16": 6.2},
    ("tfloat32", (2048, 8192, 32)): {"mma_64x32_v16_s8": 24.9, "mma_64x32_v16_s2": 35.0},
    ("tfloat32", (8192, 8192, 32)): {"mma_64x32_v16_s2": 67.5},
    ("tfloat32", (512, 8192, 128)): {"wgmma_64x128_v16_s8": 13.1},
    ("tfloat32", (512, 8192, 512)): {"wgmma_128x128_v16_s4": 28.6, "wgmma_64x128_v16_s8": 39.6, "wgmma_64x128_v16_s4": 40.8},
    ("tfloat32", (32, 8192, 2048)): {"wgmma_64x128_v16_s4": 21.0, "wgmma_128x128_v16_s4": 28.2, "wgmma_64x128_v16_s8": 28.3},
    ("tfloat32", (32, 8192, 8192)): {"wgmma_32x128_v16_s2": 63.4, "wgmma_64x128_v16_s2": 64.7},
    ("tfloat32", (32, 2048, 8192)): {"wgmma_32x128_v16_s2": 19.2, "wgmma_32x128_v16_s1": 20.9},
    ("tfloat32", (32, 256, 8192)): {"wgmma_32x128_v16_s1": 5.3, "wgmma_32x128_v16_s2": 6.3},
    ("tfloat32", (1, 4096, 16384)): {"wgmma_32x128_v16_s1": 61.4},
    ("tfloat32", (16, 8192, 2048)): {"mma_16x32_v16_s2": 19.6, "mma_16x32_v16_s8": 24.4},
    ("tfloat32", (16, 8192, 1024)): {"mma_16x32_v16_s8": 13.7, "mma_16x32_v16_s16": 15.6, "mma_16x32_v16_s2": 16.0},
    ("tfloat32", (4, 16384, 128)): {"mma_16x32_v16_s16": 6.6, "mma_16x32_v16_s8": 9.4},
    ("tfloat32", (16, 4096, 11008)): {"wgmma_32x128_v16_s1": 44.3},
    ("tfloat32", (64, 4096, 4096)): {"wgmma_64x64_v16_s2": 20.7, "wgmma_64x128_v16_s2": 21.5, "wgmma_64x64_v16_s1": 26.1},
    ("tfloat32", (33, 8192, 8192)): {"wgmma_64x128_v16_s2": 65.1},
    ("tfloat32", (128, 8192, 128)): {"wgmma_64x64_v16_s16": 7.6, "mma_32x32_v16_s16": 10.7},
    ("tfloat32", (32, 8192, 512)): {"wgmma_32x64_v16_s8": 8.8, "mma_32x32_v16_s16": 10.8},
    ("tfloat32", (8192, 8192, 128)): {"wgmma_128x128_v16_s2": 75.1},
    ("tfloat32", (512, 8192, 2048)): {"wgmma_128x128_v16_s2": 61.1},
    ("tfloat32", (4096, 4096, 256)): {"wgmma_128x128_v16_s2": 33.2},
    ("bfloat16", (37, 4501, 73)): {"mma_32x32_v2_s16": 10.6, "mma_64x64_v2_s16": 12.9, "mma_64x64_v2_s4": 27.3},
    ("bfloat16", (37, 4501, 463)): {"mma_64x64_v2_s16": 14.3, "mma_32x32_v2_s16": 18.0, "mma_64x64_v2_s4": 28.0},
    ("bfloat16", (37, 4501, 3003)): {"mma_64x64_v2_s4": 30.9},
}

# Which of these the plan leaves to a kernel of another table.
QUICKER = {
    ("float32", (128, 8192, 128)): "matmul_rows_float32_even_20x128_w8_s16",
    ("float32", (24, 4096, 2560)): "matmul_rows_float32_even_24x128_w8_s4",
    ("float32", (1, 4096, 16384)): "matmul_float32_rows_1x64_b2_v16",
    ("tfloat32", (1, 4096, 16384)): "matmul_float32_rows_1x64_b2_v16",
    ("tfloat32", (8192, 8192, 10)): "matmul_cluster_tfloat32_columns_mma_16_h2_t256_v4_s2",  # 74.5 us
    ("tfloat32", (1024, 4096, 12)): "matmul_cluster_tfloat32_columns_mma_16_h2_t256_v4_s4",
}


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_the_kernel_that_was_fastest(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    kind, (m, k, n) = product
    taken, fastest = kernel_for(kind, m, k, n), min(times, key=times.__getitem__)
    granule, granule_a = granule_of(16, k * BYTES[kind], n * BYTES[kind]), granule_of(16, k * BYTES[kind])
    assert min(fitting(m, k, n, kind, granule, granule_a, 132), key=lambda tile: tile.estimate(m, k, n, 132)).name == fastest
    here = f"matmul_cluster_{'float32' if fastest.startswith('simt') else kind}_{fastest}"
    assert taken == QUICKER.get(product, here) or (granule < 16 and taken.startswith(f"matmul_odd_{kind}_"))
    for changes in ({"capability": (8, 0)}, {"capability": (10, 0)}, {"wgmma": False}):
        assert "cluster" not in kernel_for(kind, m, k, n, **changes)
    for name, us in times.items():
        tile = next(tile for tile in TILES[kind] if tile.name == name)
        told = LAUNCH_US + tile.estimate(m, k, n, 132) / UNIT[kind]
        assert abs(math.log(told / us)) < 0.31, f"{name}: {told:.1f} us estimated, {us} measured"


@pytest.mark.parametrize("kind", TILES)
def test_what_fills_the_gpu_or_is_short_is_not_shared(kind: str) -> None:
    for m, k, n in ((4096, 4096, 4096), (2048, 2048, 2048), (512, 256, 512), (16, 4096, 16384), (8192, 32, 8192)):
        assert not re.search(r"cluster.*_s(?!1$)\d+$", kernel_for(kind, m, k, n)), (m, k, n)


# us on H200s: by the kernel taken, and by clusters that would share so short a K.
SHORT = {
    ("tfloat32", (2744, 136, 13)): {"columns_mma_16_h2_t256_v4": 3.67, "cluster_simt_64x16_v4a16_s4": 4.55},
}


@pytest.mark.parametrize(("product", "times"), SHORT.items(), ids=str)
def test_a_k_too_short_is_not_shared(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    kind, shape = product
    taken = re.sub(r"(?<=_)t?float32_", "", kernel_for(kind, *shape)).removeprefix("matmul_")
    assert taken == min(times, key=times.__getitem__)


def test_a_low_or_narrow_tile_is_for_a_low_or_narrow_product() -> None:
    def offered(name: str, m: int, n: int) -> bool:
        return next(tile for tile in TILES["float32"] if tile.name == name).takes(m, 8192, n, 16, 16, 132)

    assert [offered("simt_32x128_v16_s2", m, 4096) for m in (32, 33)] == [True, False]
    assert [offered("simt_128x32_v16_s2", 4096, n) for n in (32, 36)] == [True, False]
    assert [offered("simt_4x64_v16_s2", m, 4096) for m in (4, 5)] == [True, False]
    assert [offered("simt_32x32_v16_s8", m, 512) for m in (17, 16)] == [True, False]
    by_name = {tile.name: tile for tile in TILES["tfloat32"]}
    whole, high, low = (by_name[f"wgmma_{name}"] for name in ("128x128_v16_s4", "128x128_v16_s2", "32x128_v16_s2"))
    assert [whole.takes(m, 8192, 128, 16, 16, 132) for m in (30 * 128, 30 * 128 + 1, SIZE_LIMIT + 1)] == [True, False, False]
    assert [high.takes(m, 8192, 8192, 16, 16, 132) for m in (64, 65)] == [False, True], "half of it would be empty"
    assert [high.takes(8192, k, n, 16, 16, 132) for k, n in ((2048, 128), (2047, 128), (2048, 129))] == [True, False, False]
    assert [low.takes(m, 4096, 8192, 16, 16, 132) for m in (16, 17, 32, 33)] == [False, True, True, False]
    assert [low.takes(32, 4096, 128 * tiles, 16, 16, 132) for tiles in (63, 64, 66, 67)] == [False, True, True, False]


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
    source = (FOLDER / "matmul_cluster.cu").read_text()
    size = BYTES[tile.kind]
    if tile.way in ("simt", "mma"):
        of = "SIMT(" if tile.way == "simt" else "MMA(dtype, dtype, " if size == 2 else f"MMA({tile.kind}, float, "
        granules = () if tile.granule_a else (tile.granule,)
        label = ", ".join(map(str, (tile.rows, tile.columns, *granules, tile.split, tile.resident)))
        made = re.search(rf"{re.escape('SIMT_A(' if tile.granule_a else of)}{label}, ([\d, ]+)\)", source)
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
    assert tile.low == (tile.rows < 64 or consumers < 2), "Tf32Tile::LOW"
