"""16-bit products with a B of few columns, all of which a block holds: which get the kernel, over what grid, with what ring."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src import matmul_held, matmul_plan
from opwise.backends.cuda_src.matmul_held import FROM, MOST_STAGES, SHARED, Tile
from opwise.backends.cuda_src.sources import FOLDER, unit_of

# us on one H200, torch 2.11, by Clock.cold, interleaved, medians: type, (m, k, n) -> kernel -> time, of the quickest of the others.
# Some are of rings of a few slots more or less than today's: docs/lab/matmul-cuda.md.
MEASURED = {
    ("float16", (10000, 1000, 16)): {"held": 8.95, "columns_mma_16_h2_t256_v16": 9.81, "cuBLAS": 8.54},
    ("float16", (12000, 256, 16)): {"held": 4.68, "columns_mma_16_h2_t256_v16": 5.84, "cuBLAS": 4.77},
    ("float16", (16384, 1024, 16)): {"held": 11.54, "columns_mma_16_h2_t128_v16": 11.5, "cuBLAS": 11.82},
    ("float16", (17000, 328, 16)): {"held": 6.29, "columns_mma_16_h2_t128_v16": 8.04, "cuBLAS": 6.48},
    ("float16", (20000, 2048, 16)): {"held": 23.16, "columns_mma_16_h2_t128_v16": 29.31, "cuBLAS": 24.07},
    ("float16", (30000, 512, 16)): {"held": 10.86, "columns_mma_16_h2_t128_v16": 11.75, "cuBLAS": 10.94},
    ("float16", (65536, 512, 16)): {"held": 19.91, "columns_mma_16_h2_t32_v16": 20.92, "cuBLAS": 20.33},
    ("float16", (140000, 256, 16)): {"held": 22.08, "columns_mma_16_h2_t32_v16": 24.04, "cuBLAS": 24.62},
    ("float16", (2000, 64, 24)): {"held": 2.63, "columns_mma_24_h1_t256_v16": 2.58, "cuBLAS": 3.01},
    ("float16", (2000, 1024, 24)): {"held": 4.99, "64x32_s4": 5.06, "cuBLAS": 5.19},
    ("float16", (4096, 64, 24)): {"held": 2.74, "columns_mma_24_h1_t256_v16": 2.75, "cuBLAS": 3.04},
    ("float16", (4096, 256, 24)): {"held": 3.69, "columns_mma_24_h1_t256_v16": 3.71, "cuBLAS": 3.67},
    ("float16", (4096, 1024, 24)): {"held": 5.74, "columns_mma_24_h1_t256_v16": 5.92, "cuBLAS": 5.68},
    ("float16", (4096, 2048, 24)): {"held": 8.02, "64x32_s2": 9.48, "cuBLAS": 7.7},
    ("bfloat16", (4097, 520, 24)): {"held": 4.77, "columns_mma_24_h1_t256_v16": 4.65, "cuBLAS": 4.56},
    ("float16", (8192, 64, 24)): {"held": 2.98, "columns_mma_24_h2_t256_v16": 3.53, "cuBLAS": 3.57},
    ("float16", (8192, 256, 24)): {"held": 4.27, "columns_mma_24_h2_t256_v16": 5.02, "cuBLAS": 4.73},
    ("float16", (8192, 1024, 24)): {"held": 7.64, "columns_mma_24_h2_t256_v16": 8.2, "cuBLAS": 8.18},
    ("float16", (8192, 2048, 24)): {"held": 11.91, "128x32_s2": 12.77, "cuBLAS": 12.45},
    ("float16", (10000, 1000, 24)): {"held": 9.14, "128x32_s1": 11.4, "cuBLAS": 8.74},
    ("float16", (20000, 64, 24)): {"held": 3.68, "128x32_s1": 4.56, "cuBLAS": 4.05},
    ("float16", (20000, 256, 24)): {"held": 5.73, "128x32_s1": 7.55, "cuBLAS": 6.01},
    ("float16", (20000, 1024, 24)): {"held": 13.43, "128x32_s1": 16.42, "cuBLAS": 13.89},
    ("float16", (20000, 2048, 24)): {"held": 23.23, "128x32_s1": 28.52, "cuBLAS": 24.36},
    ("float16", (30000, 512, 24)): {"held": 11.02, "128x32_s1": 13.49, "cuBLAS": 11.36},
    ("bfloat16", (34567, 1544, 24)): {"held": 31.89, "128x32_s1": 42.34, "cuBLAS": 32.64},
    ("float16", (65536, 256, 24)): {"held": 12.11, "columns_mma_24_h2_t32_v16": 12.58, "cuBLAS": 12.63},
    ("float16", (65536, 512, 24)): {"held": 20.23, "columns_mma_24_h2_t32_v16": 22.3, "cuBLAS": 21.15},
    ("float16", (65536, 2048, 24)): {"held": 67.35, "128x64": 88.09, "cuBLAS": 69.46},
    ("float16", (200000, 64, 24)): {"held": 12.15, "columns_mma_24_h2_t32_v16": 14.79, "cuBLAS": 15.28},
    ("float16", (2000, 64, 40)): {"held": 2.71, "64x64_v16": 2.98, "cuBLAS": 3.01},
    ("float16", (2000, 256, 40)): {"held": 3.55, "64x64_s1": 4.03, "cuBLAS": 3.52},
    ("float16", (2000, 1024, 40)): {"held": 5.39, "64x64_s4": 5.81, "cuBLAS": 5.24},
    ("float16", (2001, 2048, 40)): {"held": 7.58, "64x64_s4": 7.82, "cuBLAS": 7.15},
    ("float16", (4096, 64, 40)): {"held": 2.84, "64x64_v16": 3.24, "cuBLAS": 3.27},
    ("float16", (4096, 256, 40)): {"held": 3.85, "64x64_s1": 4.83, "cuBLAS": 3.86},
    ("float16", (4096, 1024, 40)): {"held": 6.19, "64x64_s2": 7.83, "cuBLAS": 5.95},
    ("float16", (4096, 2048, 40)): {"held": 8.69, "64x64_s2": 10.88, "cuBLAS": 8.22},
    ("float16", (4100, 1000, 40)): {"held": 6.37, "64x64_s1": 8.55, "cuBLAS": 6.07},
    ("float16", (8192, 64, 40)): {"held": 3.09, "64x64_v16": 3.75, "cuBLAS": 3.52},
    ("float16", (8192, 256, 40)): {"held": 4.5, "64x64_s1": 6.48, "cuBLAS": 4.49},
    ("float16", (8192, 1024, 40)): {"held": 8.12, "128x64": 10.26, "cuBLAS": 7.81},
    ("float16", (8192, 2048, 40)): {"held": 12.36, "64x64_s1": 18.11, "cuBLAS": 12.1},
    ("float16", (10000, 1000, 40)): {"held": 9.77, "128x64": 12.32, "cuBLAS": 9.29},
    ("float16", (20000, 64, 40)): {"held": 3.86, "64x64_v16": 5.35, "cuBLAS": 4.33},
    ("float16", (20000, 256, 40)): {"held": 6.03, "128x64": 8.81, "cuBLAS": 6.49},
    ("float16", (20000, 1024, 40)): {"held": 13.95, "128x64": 20.02, "cuBLAS": 14.22},
    ("float16", (20000, 2048, 40)): {"held": 25.75, "128x64": 36.46, "cuBLAS": 23.9},
    ("float16", (30000, 512, 40)): {"held": 11.51, "128x64": 16.41, "cuBLAS": 12.07},
    ("float16", (65536, 256, 40)): {"held": 12.6, "128x64": 19.74, "cuBLAS": 13.56},
    ("float16", (65536, 512, 40)): {"held": 21.01, "128x64": 27.61, "cuBLAS": 23.01},
    ("float16", (65536, 2048, 40)): {"held": 75.31, "128x64": 79.57, "cuBLAS": 76.68},
    ("bfloat16", (70003, 136, 40)): {"held": 10.7, "128x64": 20.16, "cuBLAS": 11.51},
    ("float16", (200000, 64, 40)): {"held": 13.5, "128x64": 26.38, "cuBLAS": 16.0},
    ("float16", (8192, 1024, 56)): {"held": 8.86, "64x64_s1": 10.07, "cuBLAS": 7.87},
    ("bfloat16", (9001, 1000, 56)): {"held": 10.12, "128x64": 10.65, "cuBLAS": 8.39},
    ("float16", (10000, 1000, 56)): {"held": 10.53, "128x64": 11.2, "cuBLAS": 9.39},
    ("float16", (12000, 256, 56)): {"held": 5.41, "128x64": 5.92, "cuBLAS": 5.08},
    ("float16", (16384, 1024, 56)): {"held": 12.81, "128x64": 13.51, "cuBLAS": 12.9},
    ("float16", (30000, 512, 56)): {"held": 11.98, "128x64": 14.15, "cuBLAS": 12.38},
    ("float16", (33333, 328, 56)): {"held": 11.11, "128x64": 12.8, "cuBLAS": 11.22},
    ("float16", (65536, 64, 56)): {"held": 7.02, "128x64": 8.61, "cuBLAS": 8.08},
    ("float16", (65536, 512, 56)): {"held": 21.9, "128x64": 24.16, "cuBLAS": 23.6},
    ("float16", (140000, 256, 56)): {"held": 25.86, "128x64": 30.06, "cuBLAS": 27.73},
}
SIZES = [(m, k) for m in (1, 17, 500, 2113, 8192, 20_000, 33_793, 200_000) for k in (8, 72, 200, 320, 1000, 2048, 4096)]


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_it_where_it_was_quick(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    """3 % slower than the quickest at most."""
    kind, (m, k, n) = product
    taken = "_held_" in matmul_plan.plan(m, k, n, kind, False, 16, 132, (9, 0)).kernel
    others = min(us for name, us in times.items() if name not in ("held", "cuBLAS"))
    assert (times["held"] if taken else others) <= 1.03 * min(times["held"], others)


@pytest.mark.parametrize("columns", FROM)
def test_the_ring_fits_and_a_slot_is_always_the_same_warps(columns: int) -> None:
    """A warp that waits for every round of a slot alone cannot take one round for the next but one."""
    tile = Tile("float16", columns)
    for m, k in SIZES:
        if SHARED - tile.beside(k, 0) < matmul_held.LEAST_RING:
            assert not matmul_held.fitting(max(m, FROM[columns][0]), k, columns, "float16", 132)
            continue
        plan = tile.launch(m, k, columns, 132)
        stages, sharing, sixteens, tiles = plan.shares
        assert plan.shared_bytes <= SHARED
        assert 1 <= stages <= MOST_STAGES
        assert plan.block[0] == 32 * (sixteens * sharing + 1) <= 32 * 17
        assert plan.matrices[0].box_rows == 16 * sixteens <= 256
        assert 16 * sixteens * (tiles - 1) < m <= 16 * sixteens * tiles
        assert sharing == 1 or plan.grid[0] == tiles, "sums meet in the ring, which nobody fills any more"
        assert (sharing - 1) * columns // 8 * 4 * 128 <= stages * 16 * 128, "and fit there"
        assert stages % sharing == 0 or stages == -(-k // 64)


def test_the_plan_knows_the_widths_that_the_source_has() -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    for n in FROM:
        assert f"HELD_KERNEL(dtype, {n})" in source
    assert source.count("HELD_KERNEL(dtype, ") == len(FROM) + 1, "and the macro's own"
    assert {unit_of(Tile(kind, n).kernel) for kind in ("float16", "bfloat16") for n in FROM} == {"matmul_wgmma"}


def test_it_is_hopper_s_and_for_rows_on_16_bytes() -> None:
    def taken(capability: tuple[int, int] = (9, 0), alignment: int = 16, wgmma: bool = True) -> bool:
        return "held" in matmul_plan.plan(20_000, 1024, 24, "bfloat16", False, alignment, 132, capability, wgmma=wgmma).kernel

    assert taken()
    assert not any((taken((8, 0)), taken((10, 0)), taken(alignment=8), taken(wgmma=False)))
