"""Which product gets a kernel for thin factors, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import re

import gemv_columns_times
import gemv_rows_times
import pytest
from plans import kernel_for, slower

from opwise.backends.cuda_src.matmul.cost import BYTES, BYTES_A_US, UNIT
from opwise.backends.cuda_src.matmul.kernels.gemv import EIGHT, MOST_ROWS, fitting
from opwise.backends.cuda_src.sources import unit_of

# us on one H200, torch 2.11, L2 flushed, interleaved, medians: kind, (m, k, n) -> kernel -> time; "other": the quickest of the rest.
MEASURED = {
    ("float32", (8192, 8192, 1)): {"columns_1_t32_v16": 62.9, "columns_1_t256_v16": 61.1, "other": 268.7},
    ("float16", (8192, 8192, 4)): {"columns_4_t32_v16": 34.8, "columns_4_t256_v16": 38.8, "other": 66.1},
    ("float32", (8192, 8192, 7)): {"columns_7_t32_v16": 68.9, "columns_7_t256_v16": 110.3, "other": 115.1},
    ("float16", (2048, 2048, 1)): {"columns_1_t256_v16": 4.3, "columns_1_t32_v16": 5.0, "other": 12.2},
    ("float32", (200_000, 64, 2)): {"columns_2_t8_v16": 14.3, "columns_2_t32_v16": 20.7, "other": 59.9},
    ("float16", (65_536, 256, 4)): {"columns_4_t8_v16": 11.6, "columns_4_t32_v16": 15.4, "other": 23.6},
    ("float32", (65_536, 256, 1)): {"columns_1_t32_v16": 17.3, "columns_1_t8_v16": 17.7, "other": 71.3},
    ("float16", (8192, 1023, 1)): {"columns_1_t32_v2": 7.9, "columns_1_t256_v2": 16.0, "other": 36.0},
    ("float32", (1, 4095, 4097)): {"rows_1x32_b1_v4": 19.7, "rows_1x8_b1_v4": 30.2, "other": 53.6},
    ("float32", (1, 1023, 16_001)): {"rows_1x128_b1_v4": 18.5, "rows_1x32_b2_v4": 20.0, "rows_1x32_b1_v4": 21.2, "other": 26.3},
    ("float32", (4, 511, 50_001)): {"rows_4x128_b4_v4": 29.9, "rows_4x128_b2_v4": 34.4, "rows_4x128_b1_v4": 35.2, "other": 40.5},
    ("float32", (4, 1023, 30_001)): {"rows_4x128_b2_v4": 34.4, "rows_4x128_b1_v4": 39.2, "rows_4x128_b4_v4": 45.2, "other": 51.0},
    ("float16", (3, 255, 20_001)): {"rows_3x128_b2_v2": 9.6, "rows_3x128_b1_v2": 10.8, "other": 14.1},
    ("float16", (4, 1023, 16_001)): {"rows_4x128_b1_v2": 18.8, "rows_4x32_b1_v2": 25.6, "other": 26.2},
    ("float16", (4, 4097, 4097)): {"rows_4x32_b1_v2": 21.1, "rows_4x8_b1_v2": 30.2, "other": 27.7},
    ("tfloat32", (2, 8192, 1001)): {"rows_2x8_b1_v4": 16.9, "rows_2x32_b1_v4": 23.1, "other": 28.9},
    ("float32", (3, 2001, 9001)): {"rows_3x128_b1_v4": 35.0, "rows_3x32_b1_v4": 40.0, "other": 56.0},
    ("float16", (3, 2001, 9001)): {"rows_3x128_b1_v2": 31.7, "rows_3x32_b1_v2": 37.3, "other": 43.2},
    ("float16", (2, 1023, 12_001)): {"rows_2x128_b1_v2": 19.4, "rows_2x32_b1_v2": 21.6},
    ("float32", (8, 4097, 4097)): {"rows_8x32_b1_v4": 38.0, "rows_8x64_b1_v4": 45.1, "rows_8x128_b1_v4": 70.6, "other": 45.0},
    ("float32", (8, 8192, 3001)): {"rows_8x32_b1_v4": 54.8, "rows_8x64_b1_v4": 76.2, "other": 60.6},
    ("float32", (8, 511, 5001)): {"rows_8x64_b1_v4": 11.4, "rows_8x128_b1_v4": 14.5, "rows_8x32_b1_v4": 17.4, "other": 12.0},
    ("float32", (5, 1023, 16_001)): {"rows_8x128_b1_v4": 30.3, "rows_8x64_b1_v4": 33.2, "rows_8x32_b1_v4": 43.7, "other": 34.8},
    ("float32", (6, 1000, 7001)): {"rows_8x64_b1_v4": 17.8, "rows_8x128_b1_v4": 23.2, "rows_8x32_b1_v4": 24.2, "other": 22.5},
    ("float32", (7, 250, 6001)): {"rows_8x64_b1_v4": 9.3, "rows_8x128_b1_v4": 10.7, "rows_8x32_b1_v4": 14.1, "other": 10.9},
    ("float32", (6, 333, 12_345)): {"rows_8x128_b1_v4": 13.9, "rows_8x128_b2_v4": 14.4, "rows_8x64_b1_v4": 17.1, "other": 17.0},
    ("float32", (8, 4095, 16_385)): {"rows_8x128_b1_v4": 84.7, "rows_8x64_b1_v4": 93.1, "rows_8x128_b2_v4": 106.5, "other": 102.4},
    ("float32", (5, 700, 20_001)): {"rows_8x128_b2_v4": 31.5, "rows_8x64_b1_v4": 35.3, "rows_8x128_b1_v4": 36.3, "other": 36.5},
    ("float32", (7, 511, 50_001)): {"rows_8x128_b4_v4": 40.6, "rows_8x128_b2_v4": 45.0, "rows_8x128_b1_v4": 45.8, "other": 49.0},
    ("float32", (1, 2048, 2048)): {"rows_1x32_b1_v16": 6.6, "rows_1x16_b1_v16": 6.6, "rows_1x8_b1_v16": 9.6, "other": 8.5},
    ("float32", (1, 2048, 1024)): {"rows_1x16_b1_v16": 4.6, "rows_1x32_b1_v16": 5.1, "rows_1x8_b1_v16": 5.4, "other": 6.1},
    ("float32", (1, 512, 512)): {"rows_1x8_b1_v16": 2.7, "rows_1x16_b1_v16": 2.8, "rows_1x32_b1_v16": 3.3, "other": 3.1},
}


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_a_kernel_that_was_quick(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    """3 % slower than the quickest at most."""
    kind, shape = product
    dtype = "float32" if kind == "tfloat32" else kind
    taken = kernel_for(kind, *shape)
    assert times[taken.removeprefix(f"matmul_{dtype}_gemv_")] <= 1.03 * min(times.values())
    for capability in ((8, 0), (7, 5), (10, 0)):
        assert kernel_for(kind, *shape, capability=capability) == taken, "on any GPU"


@pytest.mark.parametrize(("product", "times"), gemv_rows_times.MEASURED.items(), ids=str)
def test_few_rows_get_blocks_and_accesses_that_were_quick(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    kind, shape = product
    taken = re.fullmatch(r"matmul_b?float\d\d_gemv_rows_\dx(.*)|.*", kernel_for(kind, *shape))
    assert taken is not None
    assert slower(times, taken[1] or "other") <= gemv_rows_times.SLOWER.get(product, 1.03)


@pytest.mark.parametrize(("product", "times"), gemv_columns_times.MEASURED.items(), ids=str)
def test_few_columns_get_threads_that_were_quick(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    """3 % slower than the quickest at most, but for those that are known."""
    kind, shape = product
    found = re.fullmatch(rf"matmul_{kind}_gemv_columns_\d_(t.*)", kernel_for(kind, *shape))
    assert found is not None
    assert slower(times, found[1]) <= gemv_columns_times.SLOWER.get(product, 1.03)


@pytest.mark.parametrize("kind", BYTES)
def test_where_neither_factor_is_thin_nothing_is_offered(kind: str) -> None:
    every = [(m, 512, n) for m in (MOST_ROWS + 1, EIGHT + 1, 999) for n in (25, 1001)]
    assert not fitting(EIGHT + 1, 512, 9001, kind, 16, 132)
    assert not fitting(EIGHT, 512, 9000, kind, 16, 132), "rows on 16 bytes"
    assert not fitting(EIGHT, 200, 9001, kind, 16, 132)
    assert len(fitting(MOST_ROWS + 1, 512, 9001, kind, 16, 132)) == (kind == "float32")
    assert bool(fitting(70_000, 32, 5, kind, 16, 132)) == (kind == "float32"), "a short K leaves lanes of a warp without work"
    assert not any(fitting(*shape, kind, alignment, 132) for shape in every for alignment in (2, 16))
    assert not fitting(999, 511, 5, kind, 16, 132), "of more than 4 columns there are kernels for rows on 16 bytes alone"
    assert not fitting(999, 512, 5, kind, 8, 132)
    assert bool(fitting(9999, 512, 5, kind, 16, 132)) == (BYTES[kind] == 4), "in 16 bits those of a warp were never as quick as by mma"
    assert fitting(9999, 512, 5, kind, 16, 132, mma=False)
    assert not fitting(MOST_ROWS, 512, 333, kind, 4, 132), "too few blocks"
    assert not fitting(2, 512, 4096, kind, 16, 132), "what the copy engine takes is as quick by tiles"
    assert bool(fitting(1, 512, 16_384, kind, 16, 132)) == (BYTES[kind] == 4)


@pytest.mark.parametrize("kind", BYTES)
def test_a_launch_covers_the_product(kind: str) -> None:
    for m, k, n, alignment in (
        (70_001, 64, 3, 16),
        (70_001, 512, 7, 16) if kind.endswith("float32") else (701, 512, 7, 16),
        (301, 511, 4, 16),
        (1, 300, 8191, 4),
        (4, 4000, 701, 4),
        (1, 99, 40_000, 8),
        *(((7, 300, 9001, 4),) if kind == "float32" else ()),
    ):
        (tile,) = fitting(m, k, n, kind, alignment, 132)
        found = tile.launch(m, k, n, 132)
        each = tile.wide or 4 * 256 // tile.sharing
        assert (found.grid[0] - 1) * each < (n if tile.wide else m) <= found.grid[0] * each
        assert found.block[0] == (1024 // tile.sharing if tile.wide else 256)
        assert unit_of(found.kernel) == f"matmul_{'float32' if kind == 'tfloat32' else kind}"


def test_the_estimate_is_what_the_memory_takes() -> None:
    (tile,) = fitting(8192, 8192, 1, "float16", 16, 132)
    us = 2 * (8192 * 8192 + 2 * 8192) / BYTES_A_US
    assert tile.estimate(8192, 8192, 1, 132) * tile.speed == pytest.approx(us * UNIT["float16"])
