"""Which float32 products the kernels of matmul_fma_rows.cuh take, how they are launched, and the maps of rows that begin anywhere."""

from __future__ import annotations

from functools import partial

import plans
import pytest

from opwise.backends.cuda_src import tensor_maps
from opwise.backends.cuda_src.matmul.kernels.cluster import UNIT
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT, Kernel
from opwise.backends.cuda_src.matmul.kernels import SIMT_FLOAT32
from opwise.backends.cuda_src.matmul import offered, quickest
from opwise.backends.cuda_src.matmul.kernels.ffma import SIZE_LIMIT, TILES, Tile
from opwise.backends.cuda_src.plan import FLOAT32, UINT16, Matrix
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

LAUNCH_US = 4.0  # between events, that no estimate tells of
# us on one H200, torch 2.11, cold, launches in turns, medians: (m, k, n) -> kernel -> time. `words` of 80 columns, of 4
# warps and of a short K were timed while lanes beyond C's last column copied nothing instead of zeros.
MEASURED = {
    (3001, 4501, 3003): {"words_64x64_w8_s1": 1761, "words_64x64_w4_s1": 1807, "any_64x64_w8_s1": 1838, "words_48x64_w4_s1": 1982},
    (3001, 4501, 463): {"words_64x64_w8_s1": 318.3, "any_64x64_w8_s1": 328.3, "words_48x64_w4_s1": 335.9, "words_64x64_w4_s1": 407.9},
    (1003, 4501, 3003): {"words_64x64_w4_s1": 610.2, "any_64x64_w4_s1": 624.9, "words_64x64_w8_s1": 627.2, "words_48x64_w4_s1": 668.9},
    (257, 4501, 3003): {"words_64x64_w4_s1": 207.2, "any_64x64_w4_s1": 211.5, "words_64x64_w8_s1": 217.0},
    (1003, 4501, 463): {"words_64x64_w8_s1": 110.2, "any_64x64_w8_s1": 111.8, "words_64x64_w4_s1": 119.9, "any_64x64_w4_s1": 124.4},
    (3001, 701, 3003): {"any_64x64_w2_s1": 321.5, "words_64x64_w4_s1": 328.0, "any_64x64_w4_s1": 329.0, "words_48x64_w4_s1": 353.5},
    (1003, 701, 3003): {"any_64x64_w4_s1": 112.3, "words_64x64_w4_s1": 113.6, "words_48x64_w4_s1": 123.2},
    (257, 701, 3003): {"any_64x64_w4_s1": 39.9, "words_64x64_w4_s1": 41.1, "words_64x64_w8_s1": 47.1},
    (3001, 701, 463): {"words_48x64_w4_s1": 62.6, "any_64x64_w8_s1": 64.9, "words_64x64_w8_s1": 66.5, "words_64x64_w4_s1": 74.2},
    (1003, 701, 463): {"any_64x64_w8_s1": 23.1, "words_64x64_w8_s1": 23.7, "words_64x64_w4_s1": 23.8, "any_64x64_w4_s1": 25.0},
    (583, 931, 781): {"any_64x64_w8_s1": 29.0, "words_64x64_w8_s1": 30.0, "any_64x64_w4_s1": 31.4},
    (3001, 4501, 73): {"words_64x80_w8_s2": 72.0, "words_48x64_w4_s1": 102.1},
    (3001, 701, 73): {"words_64x80_w8_s2": 19.3, "words_48x64_w4_s1": 19.6},
    (1003, 4501, 73): {"words_64x80_w8_s6": 29.1, "words_96x48_w8_s4": 35.9, "words_48x96_w8_s3": 46.0, "words_64x80_w8_s3": 48.7},
    (257, 4501, 73): {"words_64x80_w8_s16": 16.8},
    (37, 4501, 3003): {"words_48x96_w8_s3": 48.0, "words_64x80_w8_s3": 51.8, "words_64x80_w8_s2": 72.4},
    (37, 2047, 3003): {"words_48x96_w8_s3": 27.3, "words_64x80_w8_s3": 30.1, "words_64x80_w8_s2": 37.6},
    (257, 4501, 463): {"words_96x48_w8_s4": 36.8, "words_48x96_w8_s3": 46.4, "words_64x80_w8_s3": 50.0, "words_64x80_w8_s2": 70.5},
    (129, 4501, 463): {"words_96x48_w8_s4": 35.8, "words_48x96_w8_s3": 45.6, "words_64x80_w8_s3": 49.1},
    (385, 4501, 463): {"words_64x80_w8_s2": 71.1},
    (37, 4501, 463): {"words_64x80_w8_s16": 17.1, "words_96x48_w8_s4": 35.1},
    (128, 8192, 2048): {"even_64x64_w8_s2": 89.2},
    (512, 2048, 512): {"even_64x64_w8_s2": 27.2},
    (128, 8192, 512): {"even_64x64_w8_s6": 34.2},
    (32, 8192, 2048): {"even_32x128_w8_s6": 35.8},
    (2048, 8192, 32): {"even_128x32_w8_s6": 37.7},
    (1024, 1024, 1024): {"even_64x64_w8_s1": 48.7},
    (1536, 1536, 1536): {"even_64x64_w8_s1": 171.3},
    (512, 8192, 2048): {"even_64x64_w8_s1": 338.1},
    (1024, 2048, 1536): {"even_64x64_w8_s1": 134.8},
    (1280, 1280, 1280): {"even_64x64_w8_s1": 116.6},
    (3001, 2047, 463): {"words_64x64_w8_s1": 156.6, "any_64x64_w8_s1": 158.3},
    # Tiles that make C one wave of clusters.
    (128, 8192, 128): {"even_20x128_w8_s16": 12.33},
    (64, 8192, 256): {"even_64x40_w8_s16": 13.49},
    (256, 8192, 128): {"even_40x64_w8_s8": 19.04},
    (512, 8192, 128): {"even_36x128_w8_s8": 29.69, "even_40x128_w8_s8": 32.09, "even_64x64_w8_s6": 34.51},
    (32, 8192, 512): {"even_32x80_w8_s16": 13.25},
    (512, 8192, 32): {"even_80x32_w8_s16": 13.17},
    (256, 8192, 256): {"even_40x128_w8_s8": 32.23, "even_64x64_w8_s6": 34.35},
    (128, 4096, 128): {"even_20x128_w8_s16": 8.80},
    (512, 2048, 128): {"even_36x128_w8_s8": 12.18, "even_40x128_w8_s8": 12.94, "even_64x64_w8_s6": 13.79},
    (96, 8192, 96): {"even_64x32_w8_s16": 10.72},
    (256, 8192, 64): {"even_40x64_w8_s16": 12.36},
    (128, 8192, 256): {"even_20x128_w8_s8": 19.28},
    (192, 8192, 192): {"even_40x64_w8_s8": 19.14},
    (64, 4096, 256): {"even_64x40_w8_s16": 9.59},
    (128, 16384, 128): {"even_20x128_w8_s16": 19.38},
    (100, 9000, 260): {"even_40x64_w8_s8": 20.85},
    (250, 6148, 124): {"even_40x64_w8_s8": 17.08},
    # And that are as low as C, in several turns.
    (17, 3072, 3072): {"even_20x128_w8_s4": 16.28},
    (20, 4096, 2048): {"even_20x128_w8_s4": 19.25},
    (20, 2048, 5120): {"even_20x128_w8_s4": 24.01},
    (18, 8192, 4096): {"even_20x128_w8_s8": 55.68},
    (20, 11008, 4096): {"even_20x128_w8_s8": 71.78, "even_20x128_w8_s4": 86.08},
    (24, 4096, 2560): {"even_24x128_w8_s4": 21.76, "even_24x128_w8_s8": 26.50},
    (24, 5120, 5120): {"even_24x128_w8_s8": 46.49, "even_24x128_w8_s4": 50.71},
    (24, 11008, 4096): {"even_24x128_w8_s8": 80.05, "even_32x128_w8_s6": 88.92, "even_24x128_w8_s4": 97.72},
    (28, 8192, 4096): {"even_32x128_w8_s6": 70.34},
    (28, 3000, 6000): {"even_32x128_w8_s4": 43.39},
    (32, 11008, 4096): {"even_32x128_w8_s6": 89.65},
    (32, 4096, 14336): {"even_32x128_w8_s4": 106.5},
}
# The same of what shares K among blocks of the whole grid and of clusters of 8 and 16, torch 2.11, medians of 15 or more.
SHARED = {
    (512, 8192, 2048): {"even_64x64_w4_shares": 334.7},
    (64, 4096, 11008): {"even_64x64_w4_shares": 121.1, "even_64x64_w8_s1": 173.6},
    (128, 13824, 5120): {"even_64x64_w4_shares": 352.6, "even_64x80_w8_s2": 367.3},
    (64, 13824, 5120): {"even_64x80_w8_s2": 185.0, "even_64x64_w4_shares": 200.6},
    (64, 7168, 2048): {"even_64x80_w8_s4": 52.7, "even_64x64_w4_shares": 66.7, "even_64x64_w8_s2": 78.8},
    (64, 8960, 1536): {"even_64x64_w8_s4": 51.7, "even_64x80_w8_s4": 63.5, "even_64x64_w4_shares": 70.5},
    (3001, 4501, 73): {"words_64x80_w8_shares": 62.3},
    (3001, 4501, 3003): {"words_64x80_w4_shares": 1731, "words_64x80_w8_shares": 1777, "words_48x96_w4_shares": 1813},
    (3001, 4501, 463): {"words_64x80_w4_shares": 281.9, "words_64x80_w8_shares": 282.9, "words_48x96_w4_shares": 289.6},
    (1003, 4501, 3003): {"words_64x80_w4_shares": 595.6, "words_64x80_w8_shares": 601.3, "words_48x96_w4_shares": 603.9},
    (257, 4501, 3003): {"words_48x96_w4_shares": 182.0, "words_64x80_w4_shares": 196.0, "words_64x80_w8_shares": 196.5},
    (1003, 4501, 463): {"words_64x80_w8_shares": 106.1, "words_48x96_w4_shares": 110.3, "words_64x80_w4_shares": 110.8},
    (3001, 2047, 463): {"words_64x80_w4_shares": 137.8, "words_64x80_w8_shares": 140.0, "words_48x96_w4_shares": 141.6},
    (3001, 701, 3003): {"words_64x80_w4_shares": 310.0, "words_48x96_w4_shares": 316.8, "words_64x80_w8_shares": 339.1},
    (1003, 701, 3003): {"words_48x96_w4_shares": 114.9, "words_64x80_w4_shares": 115.8, "words_64x80_w8_shares": 123.4},
    (257, 701, 3003): {"words_48x96_w4_shares": 41.4, "words_64x80_w4_shares": 45.9, "words_64x80_w8_shares": 47.8},
    (3001, 701, 463): {"words_64x80_w4_shares": 59.4, "words_64x80_w8_shares": 61.7, "words_48x96_w4_shares": 61.7},
    (1003, 701, 463): {"words_64x80_w8_shares": 30.3, "words_48x96_w4_shares": 33.4, "words_64x80_w4_shares": 34.9},
    (583, 931, 781): {"words_64x80_w8_shares": 36.0, "words_48x96_w4_shares": 39.9, "words_64x80_w4_shares": 41.6},
    (385, 4501, 463): {"words_64x80_w8_shares": 57.4, "words_48x96_w4_shares": 71.1, "words_64x80_w4_shares": 72.2},
    (129, 4501, 463): {"words_48x96_w8_s8": 23.2},
    (37, 4501, 463): {"words_48x96_w8_s16": 15.3, "words_48x96_w8_s8": 21.1},
    (257, 4501, 73): {"words_48x96_w8_s16": 15.1, "words_48x96_w8_s8": 21.2},
    (128, 8192, 512): {"even_64x80_w8_s8": 32.5},
    (1024, 2048, 1536): {"even_64x64_w4_shares": 132.2},
    (1280, 1280, 1280): {"even_64x64_w4_shares": 92.5},
    (1536, 1536, 1536): {"even_64x64_w4_shares": 151.9},
}
# The same of a short K: the four quickest of those of matmul_fma_words.cuh and of what else takes the product. `f4`: four stages.
SHORT = {
    (3001, 95, 3003): {"words_64x128_v4": 53.3, "words_56x128_v4": 54.4, "simt_64x64_v4": 70.8, "rows_any_64x64_w2_s1": 72.8},
    (1003, 95, 3003): {"words_64x128_v4": 20.1, "words_48x128_f4_v4": 23.2, "words_56x128_v4": 25.1, "words_56x128_f4_v4": 25.4},
    (511, 95, 3003): {"words_48x128_f4_v4": 12.50, "words_56x128_f4_v4": 13.54, "words_56x128_v4": 13.76, "words_64x128_f4_v4": 14.04},
    (257, 95, 3003): {"words_56x128_f4_v4": 8.38, "words_56x128_v4": 8.86, "words_64x128_f4_v4": 8.91, "words_64x128_v4": 9.40},
    (3001, 95, 463): {"words_48x128_f4_v4": 12.31, "words_56x128_f4_v4": 13.41, "words_56x128_v4": 13.78, "words_64x128_f4_v4": 14.23},
    (2001, 64, 2001): {"words_64x128_f4_v4": 20.2, "words_56x128_v4": 21.3, "words_64x128_v4": 21.8, "simt_64x64_v4": 24.7},
    (5001, 31, 5003): {"words_64x128_v4": 62.0, "simt_64x64_v4": 93.5, "rows_any_64x64_w2_s1": 112.8},
    (2047, 127, 2049): {"words_56x128_v4": 36.4, "words_64x128_v4": 39.0, "rows_any_64x64_w2_s1": 40.6, "simt_64x64_v4": 41.6},
    (2047, 255, 1023): {"words_64x128_f4_v4": 31.8, "words_64x128_v4": 32.3, "rows_any_64x64_w2_s1": 33.9, "simt_64x64_v4": 39.6},
    (257, 255, 3003): {"words_56x128_f4_v4": 18.24, "words_56x128_v4": 18.69, "words_64x128_f4_v4": 19.48, "words_64x128_v4": 20.0},
    (3001, 255, 463): {"words_48x128_f4_v4": 25.9, "words_56x128_f4_v4": 29.1, "words_56x128_v4": 29.5, "words_64x128_f4_v4": 31.4},
}
kernel_for = partial(plans.kernel_for, "float32")


@pytest.mark.parametrize("product", MEASURED, ids=str)
def test_a_product_gets_the_kernel_that_was_fastest(product: tuple[int, int, int]) -> None:
    times = MEASURED[product] | SHARED.get(product, {})
    assert kernel_for(*product) == f"matmul_rows_float32_{min(times, key=times.__getitem__)}"
    for changes in ({"capability": (8, 0)}, {"capability": (10, 0)}, {"wgmma": False}):
        assert "rows" not in kernel_for(*product, **changes)
    for name, us in times.items():
        tile = next(tile for tile in TILES if tile.name == name)
        told = LAUNCH_US + tile.estimate(*product, 132) / UNIT["float32"]
        assert told == pytest.approx(us, rel=0.11), f"{name}: {told:.1f} us estimated, {us} measured"


@pytest.mark.parametrize("product", [(128, 2048, 128), (32, 2048, 512), (512, 2048, 32), (64, 8192, 64), (120, 5000, 136)], ids=str)
def test_clusters_that_would_not_fill_the_gpu_are_left_to_smaller_tiles(product: tuple[int, int, int]) -> None:
    assert kernel_for(*product) == "matmul_cluster_float32_simt_32x32_v16_s16"


@pytest.mark.parametrize(("product", "times"), SHORT.items(), ids=str)
def test_a_short_k_gets_the_kernel_that_was_fastest(product: tuple[int, int, int], times: dict[str, float]) -> None:
    found = offered(*product, "float32", 4, **plans.H200)
    assert times[quickest(found, *product, 132)] == min(times.values())
    for changes in ({"granule": 16}, {"capability": (8, 0)}, {"k": 257}, {"k": 30}, {"m": 255}):
        m, k, n, granule, capability = {**dict(zip("mkn", product, strict=True)), "granule": 4, "capability": (9, 0), **changes}.values()
        assert not any(name.startswith("words_") for name in offered(m, k, n, "float32", granule, 132, capability)), changes


def test_a_short_k_has_four_stages_where_tiles_are_few() -> None:
    def words(m: int, k: int, n: int) -> set[str]:
        return {name for name in offered(m, k, n, "float32", 4, **plans.H200) if name.startswith("words_")}

    three, four = {"words_64x128_v4", "words_56x128_v4"}, {f"words_{rows}x128_f4_v4" for rows in (64, 56, 48)}
    assert words(3001, 95, 3003) == three
    assert words(257, 95, 3003) == three | four
    assert words(1003, 95, 463) == {"words_32x128_f4_v4"}, "one tile of 32 rows a multiprocessor, half a one of 64"
    assert words(1003, 129, 463) == set()


@pytest.mark.parametrize("kernel", [kernel for kernel in SIMT_FLOAT32 if "words" in kernel.name], ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_tiles_of_a_short_k_as_the_source_has_them(kernel: Kernel) -> None:
    made = next(line for line in (FOLDER / "matmul.cu").read_text().splitlines() if f"matmul_float32_{kernel.name}," in line)
    assert made.endswith(f"WordsTile<2, 2, {kernel.rows // 8}, 8, {kernel.stages}>)"), "a thread has an eighth of the rows and columns"
    rows_copied = -(-kernel.rows // 16) * 16  # by four warps in four turns
    assert kernel.shared_bytes(4) == kernel.stages * (rows_copied * 33 + 32 * kernel.columns) * 4
    assert 228 * 1024 // (kernel.shared_bytes(4) + 1024) == (kernel.at_once if kernel.stages == 4 else 3), "blocks that fit"


def test_what_fills_the_gpu_with_large_tiles_or_is_low_keeps_its_kernels() -> None:
    assert kernel_for(2048, 2048, 2048) == kernel_for(8192, 8192, 512) == "matmul_tma_float32_128x128_8x16"
    for m, k, n in ((16, 4501, 3003), (3001, 4501, 16), (1003, 95, 463), (2048, 256, 512), (SIZE_LIMIT + 1, 600, 33)):
        assert "rows" not in kernel_for(m, k, n), (m, k, n)


@pytest.mark.parametrize("alignment", [4, 8])
def test_a_slice_at_any_address_takes_maps_of_classes(alignment: int) -> None:
    assert "rows_float32_any" in kernel_for(1024, 1024, 1024, alignment)


@pytest.mark.parametrize("tile", [tile for tile in TILES if not tile.shares], ids=lambda tile: str(tile.name))
def test_a_launch_fits_the_gpu_and_is_as_the_source_has_it(tile: Tile) -> None:
    found = tile.launch(1000, 513, 777, 132)
    assert tile.resident * (found.shared_bytes + 1024) <= (SHARED_LIMIT[9, 0] + 1) * 1024, "as many blocks fit as it says"
    assert found.grid == (-(-1000 // tile.rows) * -(-777 // tile.columns) * tile.split, 1, 1)
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    mapped = [(1000, 513, tile.classes), (513, 777, tile.classes)][: 1 if tile.words else 2]
    assert [(*matrix[:2], matrix.classes) for matrix in found.matrices] == mapped
    numbers = (tile.rows, tile.columns, tile.warps, tile.split, tile.resident, *tile.thread, tile.stages)
    made = f"{'WORDS' if tile.words else 'ANY' if tile.classes else 'EVEN'}({', '.join(map(str, numbers))})\n"
    assert made in (FOLDER / "matmul_rows32.cu").read_text()


@pytest.mark.parametrize(("element", "classes"), [(FLOAT32, 4), (UINT16, 8)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (9, 501), (8, 1), (17, 64)])
def test_maps_of_classes_tell_every_element_and_no_other(element: int, classes: int, rows: int, columns: int) -> None:
    size = 4 if element == FLOAT32 else 2
    for address in range(4096, 4112, size):
        told = []
        parts = tensor_maps._parts(Matrix(rows, columns, 8, 8, element, classes), address)
        for c, (of_class, wide, pitch, base, shift) in enumerate(parts):
            assert base % 16 == pitch % 16 == 0, "as the copy engine wants it"
            assert pitch >= wide * size, "rows do not overlap"
            assert base > address - 16, "and begin in the memory that the matrix begins in"
            told += [(c + r * classes, base + r * pitch + (shift + x) * size) for r in range(of_class) for x in range(wide - shift)]
        assert sorted(told) == [(r, address + (r * columns + x) * size) for r in range(rows) for x in range(columns)]
