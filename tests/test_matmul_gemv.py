"""Which product gets a kernel for thin factors, and over what grid; tests/test_products_on_cpu.py runs them."""

from __future__ import annotations

import pytest
from plans import kernel_for

from opwise.backends.cuda_src.matmul.cost import BYTES, BYTES_A_US, UNIT
from opwise.backends.cuda_src.matmul.kernels.gemv import EIGHT, MOST_ROWS, fitting
from opwise.backends.cuda_src.sources import unit_of


@pytest.mark.parametrize(
    ("kind", "shape", "form"),
    [
        ("float32", (8192, 8192, 1), "columns_1_"),
        ("float16", (8192, 8192, 4), "columns_4_"),
        ("float32", (1, 4095, 4097), "rows_1x"),
        ("bfloat16", (3, 2001, 9001), "rows_3x"),
        ("tfloat32", (2, 8192, 1001), "rows_2x"),
        ("float32", (5, 1023, 16_001), "rows_8x"),
    ],
)
def test_a_thin_product_gets_a_kernel_for_thin_factors_on_any_gpu(kind: str, shape: tuple[int, int, int], form: str) -> None:
    dtype = "float32" if kind == "tfloat32" else kind
    for capability in ((9, 0), (8, 0), (7, 5), (10, 0)):
        assert kernel_for(kind, *shape, capability=capability).startswith(f"matmul_{dtype}_gemv_{form}")


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
