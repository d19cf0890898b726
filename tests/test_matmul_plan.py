"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src import matmul_kernels, matmul_ladder, matmul_model, matmul_plan
from opwise.backends.cuda_src.matmul_kernels import KERNELS
from opwise.backends.cuda_src.matmul_plan import SHARED_LIMIT, SIZE, launch, plan
from opwise.backends.cuda_src.sources import FOLDER, target, unit_of, units

H200 = {"alignment": 16, "sm_count": 132, "capability": (9, 0)}
MATMUL_KINDS = sorted(KERNELS)
# us on one H200, torch 2.11, bfloat16, cold, launches in turns, medians: (m, k, n) -> kernel -> time, the fastest of all and what may be
# taken for it.
MEASURED = {
    (64, 4096, 4096): {"64x64_s2": 11.18, "64x64_s1": 11.83, "64x128_s2": 12.63},
    (64, 4096, 16384): {"64x128_s1": 33.87, "64x64_s1": 35.95, "64x128_s2": 37.24},
    (1, 4096, 16384): {"64x128_s1": 32.66, "64x64_v16": 33.70, "64x64_s1": 33.79, "16x32_v16": 38.10},
    (16, 4096, 16384): {"64x128_s1": 33.09, "64x64_v16": 34.29, "64x64_s1": 34.84, "16x32_v16": 39.41},
    (1, 16384, 4096): {"64x64_s2": 32.74, "16x32_v16": 33.96, "64x64_s4": 42.75},
    (16, 16384, 4096): {"64x64_s2": 33.22, "16x32_v16": 34.53, "64x64_s4": 43.27},
    (1, 1024, 1024): {"16x32_v16": 7.42, "64x64_s8": 7.97},
    (8, 8192, 512): {"64x64_s8": 6.01, "16x32_v16": 12.74},
    (16, 1024, 8192): {"64x64_s1": 6.70, "16x32_v16": 6.90},
    (1, 4096, 4096): {"16x32_v16": 10.52, "64x64_s2": 10.57, "64x64_s4": 14.57},
    (16, 4096, 4096): {"64x64_s2": 10.88, "16x32_v16": 10.90, "64x64_s4": 14.88},
    (32, 2048, 8192): {"64x64_s1": 10.71, "64x128_s2": 11.64, "64x64_v16": 13.78, "64x64_s2": 13.86},
    (32, 8192, 2048): {"64x64_s4": 11.85, "16x32_v16": 14.59, "128x128_s4": 15.57},
    (32, 8192, 8192): {"64x64_s1": 33.21, "64x128_s2": 33.90, "64x64_s2": 36.81, "64x64_v16": 44.24},
    (128, 4096, 4096): {"64x64_s1": 12.15, "128x64": 13.96, "64x128_s2": 14.45},
    (4096, 4096, 128): {"64x128_s2": 12.61, "64x64_s1": 15.71, "128x64": 16.04},
    (2048, 4096, 256): {"64x128_s2": 10.73, "64x64_s1": 13.61, "64x128_s1": 14.52},
    (256, 4096, 256): {"64x64_s4": 9.18, "64x64_s8": 9.28, "64x64_s2": 9.79},
    (256, 8192, 512): {"128x128_s8": 10.17, "64x64_s4": 11.19, "64x64_s2": 11.84},
    (384, 16384, 384): {"128x128_s8": 16.60, "64x64_s4": 21.30, "64x64_s2": 22.01},
    (128, 8192, 256): {"64x64_s8": 6.03, "64x64_s16": 7.45, "64x64_s4": 8.07},
    (128, 16384, 128): {"64x64_s16": 6.84, "64x64_s8": 8.63, "64x64_s4": 13.08},
    (1024, 4096, 256): {"64x64_s2": 8.38, "128x128_s4": 9.59, "64x64_s1": 9.62},
    (256, 256, 256): {"64x64_s1": 6.40, "16x32_v16": 6.46, "64x64_s2": 6.56},
    (512, 512, 512): {"64x64_s1": 7.01, "64x64_s2": 7.35, "128x64": 7.63},
    (512, 2048, 512): {"64x64_s1": 9.38, "64x64_s2": 9.70, "64x128_s2": 10.40},
    (512, 8192, 512): {"128x128_s4": 14.08, "64x64_s2": 16.02, "64x64_s1": 16.03},
    (512, 16384, 512): {"128x128_s4": 23.40, "64x64_s2": 29.86, "64x64_s1": 30.03},
    (1024, 8192, 1024): {"64x128_s1": 28.93, "128x128_s2": 32.89, "128x64": 33.92},
    (1024, 4096, 1024): {"128x64": 15.62, "64x128_s1": 15.82, "128x128_s2": 17.73},
    (512, 8192, 2048): {"128x64": 29.15, "64x128_s1": 30.57, "128x128_s2": 33.07},
    (4096, 8192, 256): {"128x128_s2": 30.81, "64x128_s1": 32.37},
    (2048, 8192, 512): {"128x128_s2": 29.50, "64x128_s1": 29.66},
    (2048, 4096, 512): {"128x128_s2": 15.94, "64x128_s1": 16.19},
    (2048, 2048, 512): {"64x128_s1": 9.77, "128x64": 11.38, "128x128": 12.86},
    (512, 4096, 4096): {"128x128": 25.29, "128x64": 27.45, "144x128": 27.93},
    (4096, 4096, 512): {"128x128": 25.96, "144x128": 27.96, "64x128_s1": 32.36},
    (1024, 1024, 1024): {"128x64": 6.06, "64x128_s1": 6.48, "128x128": 8.24},
    (1280, 1280, 1280): {"128x128": 9.60, "144x128": 10.41, "128x64": 10.87},
    (1536, 1536, 1536): {"144x128": 12.37, "128x192": 14.62, "128x256": 18.05},
    (1600, 1600, 1600): {"128x192": 15.31, "128x256": 18.80, "128x128": 19.52},
    (3168, 1536, 1536): {"144x128": 24.27, "128x192": 27.00, "128x128": 27.71},
    (2560, 2560, 2560): {"144x128": 53.64, "128x256": 56.96, "128x128": 57.79},
    (2048, 2048, 2048): {"128x128": 25.38, "128x256": 25.47, "144x128": 31.81},
    (3072, 3072, 3072): {"128x192": 78.74, "128x128": 89.99, "128x256": 105.66},
    (6144, 6144, 6144): {"128x192": 665.11, "128x256": 670.09, "128x128": 688.53},
    (2048, 32, 2048): {"128x128": 5.32, "128x64": 5.40, "128x256": 5.64},
    (4096, 128, 4096): {"128x128": 12.72, "128x256": 13.01, "128x192": 13.75},
    (8192, 256, 512): {"128x128": 7.45, "128x64": 8.06, "128x256": 8.14},
}


def kernel_for(m: int, k: int, n: int, dtype: str = "bfloat16", **changes: object) -> str:
    return plan(m, k, n, dtype, False, **{**H200, **changes}).kernel  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hopper_gets_its_own_kernels(dtype: str) -> None:
    assert kernel_for(4096, 4096, 4096, dtype) == f"matmul_wgmma_{dtype}_128x256"
    assert kernel_for(3072, 3072, 3072, dtype) == f"matmul_wgmma_{dtype}_128x192"  # 2.9 waves of tiles, not 2.2
    assert kernel_for(1024, 1024, 1024, dtype) == f"matmul_wgmma_{dtype}_128x64"  # 128 tiles for 132 multiprocessors


@pytest.mark.parametrize(
    "changes",
    [
        {"capability": (8, 0)},
        {"capability": (10, 0)},  # wgmma exists on Hopper alone
        {"alignment": 8},
        {"wgmma": False},
        {"dtype": "float32"},
        {"k": 4100},
        {"n": 4092},
        {"m": 2**30 + 1, "k": 8, "n": 8},
        {"m": 16},
    ],
    ids=str,
)
def test_what_the_copy_engine_does_not_take_stays_on_mma(changes: dict[str, object]) -> None:
    shape = {"m": 4096, "k": 4096, "n": 4096}
    assert "wgmma" not in kernel_for(**{**shape, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MATMUL_KINDS)
def test_a_launch_fits_the_gpu_and_covers_the_product(kind: str) -> None:
    for kernel in KERNELS[kind]:
        found = launch(kernel, kind, 1000, 512, 776, 132)
        assert found.shared_bytes <= SHARED_LIMIT[9, 0] * 1024
        assert unit_of(found.kernel) in units("sm_90")
        assert found.kernel in matmul_kernels.kernel_names(kind)
        tiles = -(-1000 // kernel.rows) * -(-776 // kernel.columns)
        assert found.grid[0] == (tiles * kernel.split if kernel.split else min(tiles, 132) if kernel.wgmma else tiles)
        if kernel.wgmma:
            by_maps = [(1000, 512), (512, 776), (1000, 776)]  # where K is shared, C is stored by address
            assert [matrix[:2] for matrix in found.matrices] == by_maps[: 3 if kernel.turned or not kernel.split else 2]
            assert all(matrix.box_columns * SIZE[kind] == 128 for matrix in found.matrices), "rows as wide as the swizzle"


@pytest.mark.parametrize("shape", MEASURED, ids=str)
def test_a_product_gets_the_kernel_that_was_fastest(shape: tuple[int, int, int]) -> None:
    """Or one that is 4 % slower at most: the model has four numbers a kernel."""
    times = {f"bfloat16_{name}": us for name, us in MEASURED[shape].items()}
    assert times[kernel_for(*shape).removeprefix("matmul_").removeprefix("wgmma_")] <= 1.04 * min(times.values())
    assert "wgmma" not in kernel_for(*shape, capability=(8, 0))


def test_the_choice_loses_little_over_all_that_was_measured() -> None:
    lost = [times[kernel_for(*shape).split("bfloat16_")[1]] / min(times.values()) for shape, times in MEASURED.items()]
    assert sum(lost) / len(lost) < 1.005


@pytest.mark.parametrize("kernel", matmul_kernels.SPLIT + matmul_kernels.LONG, ids=lambda kernel: str(kernel.name))
def test_a_box_has_no_row_more_than_a_where_the_kernel_counts_its_bytes(kernel: matmul_kernels.Kernel) -> None:
    for m in (1, 40, 64, 100, 128, 500):
        assert launch(kernel, "bfloat16", m, 512, 776, 132).matrices[0].box_rows == min(m, kernel.rows)
    whole = [launch(other, "bfloat16", 40, 512, 776, 132).matrices[0].box_rows for other in (*matmul_kernels.WGMMA, *matmul_kernels.TURNED)]
    assert whole == [128, 128, 128, 128, 144]


def test_few_rows_get_tiles_of_64_where_there_is_much_to_read() -> None:
    def there(kernel: str, m: int, n: int) -> bool:
        return kernel in matmul_plan.offered(m, 2048, n, "float16", 16, 132, (9, 0))

    assert [there("64x64_s1", m, n) for m, n in ((1, 2048), (16, 2040), (17, 2040))] == [True, False, True]
    assert [there("128x64", m, 8192) for m in (64, 65)] == [False, True]


def test_small_products_get_the_tiles_that_were_measured_for_them() -> None:
    def there(kernel: str, m: int, k: int, n: int, granule: int, capability: tuple[int, int] = (9, 0)) -> bool:
        return kernel in matmul_plan.offered(m, k, n, "float16", granule, 132, capability)

    flat = [(32, 32, 8192), (16, 32, 8192), (8192, 32, 32), (32, 32, 2048)]
    assert all(kernel_for(*shape) == "matmul_bfloat16_32x32_v16" for shape in flat)
    assert not any(there("32x32_v16", *shape, 16) for shape in ((32, 40, 8192), (32, 32, 2016), (64, 32, 8192), (8, 32, 8192)))
    odd = [(1003, 95, 73), (257, 95, 73), (37, 95, 73), (37, 95, 463)]
    assert all(kernel_for(*shape) == "matmul_bfloat16_16x32_v2" for shape in odd)
    assert not any(there("16x32_v2", *shape, 2) for shape in ((1003, 95, 463), (37, 63, 73), (37, 129, 73)))
    assert not there("16x32_v2", 37, 100, 74, 4)
    assert not there("16x32_v2", 37, 95, 73, 2, (8, 0))


def test_halves_of_k_are_taken_where_a_is_the_larger() -> None:
    def halved(*shape: int) -> bool:
        return kernel_for(*shape).endswith("128x128_s2")

    assert halved(2048, 8192, 512)
    assert halved(4096, 4096, 256)
    wider = (512, 8192, 2048), (1024, 8192, 1024)
    assert not any(halved(*shape) for shape in (*wider, (2048, 2048, 512), (8192, 8192, 128), (3072, 8192, 384)))


def test_what_fills_the_gpu_is_not_split() -> None:
    for n in (2048, 3072, 4096, 8192, 16384):
        assert "_s" not in kernel_for(n, n, n), n


def test_a_cluster_that_does_not_fit_beside_the_others_is_a_second_wave() -> None:
    kernel = next(k for k in matmul_kernels.SPLIT if k.name == "128x128_s4")
    at_once = matmul_model.CLUSTERS_AT_ONCE[4]
    fits, one_more = (kernel.share(128, 8192, 128 * tiles, 132).each for tiles in (at_once, at_once + 1))
    assert one_more == 2 * fits
    assert kernel.share(128, 8192, 128 * at_once, 66).each == 2 * fits, "15 clusters on half of the multiprocessors"


@pytest.mark.parametrize("kernel", matmul_kernels.SPLIT + matmul_kernels.LONG, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_shared_tiles_as_the_source_has_them(kernel: matmul_kernels.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    tile = (kernel.rows, kernel.columns, kernel.step_bytes // 2, kernel.stages, kernel.split, kernel.resident)
    assert f"SPLIT_KERNEL(dtype, {', '.join(map(str, tile))}, {4 if kernel.name == '64x128_s1' else 16})" in source
    assert kernel.threads == 32 * (kernel.rows // 16 + 1), "four warps for 64 rows, and the producer"
    assert kernel.resident * (kernel.shared_bytes(2) + 1024) <= 228 * 1024, "as many blocks fit a multiprocessor as it says"
    owned, more = divmod(kernel.rows // 16 * (kernel.columns // 16), kernel.split)  # units of 1 KiB
    assert (more, kernel.inbox) == (0, owned * (kernel.split - 1) * 1024), "each block owns as many and takes the others' parts of them"


def test_the_plan_knows_the_turned_tiles_as_the_source_has_them() -> None:
    (kernel,), source = matmul_kernels.TURNED, (FOLDER / "matmul_wgmma.cu").read_text()
    assert f"TURNED_KERNEL(dtype, {kernel.rows}, {kernel.columns}, {kernel.stages})" in source
    assert kernel.threads == 32 * (kernel.columns // 16 + 1), "four warps for 64 columns, and the producer"
    for m in (128, 129):
        found = matmul_plan.offered(m, 512, 1536, "float16", 16, 132, (9, 0))
        assert (kernel.name in found) == (m > 128)


def test_only_hopper_compiles_for_itself_alone() -> None:
    assert [target(arch) for arch in ("sm_80", "sm_90", "sm_100")] == ["sm_80", "sm_90a", "sm_100"]
    assert "matmul_wgmma" not in units("sm_100")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rung_covers_the_product_and_16_bytes_are_taken_where_all_rows_begin_on_them(dtype: str) -> None:
    for rung, (_, side, block) in matmul_ladder.RUNGS.items():
        found = matmul_ladder.plan(rung, 1000, 512, 776, dtype, aligned=True)
        assert found.kernel == f"matmul_ladder_{rung}_{dtype}"
        assert unit_of(found.kernel) in units("sm_80")
        assert (found.grid[0], found.block) == (-(-1000 // side) * -(-776 // side), block)
        off = [(k, n, aligned) for k, n, aligned in ((511, 776, True), (512, 777, True), (512, 776, False))]
        there = {matmul_ladder.plan(rung, 1000, k, n, dtype, aligned).kernel for k, n, aligned in off}
        assert there == {f"matmul_ladder_{'registers' if rung == 'vectors' else rung}_{dtype}"}


def test_the_plan_knows_the_rungs_as_the_source_has_them() -> None:
    source = (FOLDER / "matmul_ladder.cu").read_text()
    (shared, block), (side, (threads, *_)) = matmul_ladder.SHARED, matmul_ladder.MICRO
    assert f"SHARED_TILE = {shared};" in source
    assert block == (shared, shared, 1)
    assert f"SIDE = {side}, DEPTH = 16, THREADS = {threads}, EACH = {int((side * side / threads) ** 0.5)};" in source
