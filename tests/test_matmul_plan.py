"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src import matmul_ladder, matmul_plan
from opwise.backends.cuda_src.matmul_plan import KERNELS, SHARED_LIMIT, SIZE, launch, plan
from opwise.backends.cuda_src.sources import FOLDER, target, unit_of, units

H200 = {"alignment": 16, "sm_count": 132, "capability": (9, 0)}
MATMUL_KINDS = sorted(KERNELS)
# us on one H200, torch 2.11, bfloat16, L2 flushed, interleaved, medians: (m, k, n) -> kernel -> time.
MEASURED = {
    (64, 4096, 4096): {"64x64_s2": 14.72, "64x64_s1": 15.12, "64x128_s2": 16.38, "64x128_s1": 20.10},
    (64, 4096, 16384): {"64x128_s1": 36.26, "64x64_s1": 38.53},
    (128, 4096, 4096): {"64x64_s1": 15.04, "128x64": 16.67, "64x128_s2": 18.24},
    (4096, 4096, 128): {"64x128_s2": 15.97, "64x64_s1": 18.53, "128x64": 18.85},  # as many tiles, but A is the larger
    (256, 4096, 256): {"64x64_s8": 9.50, "64x64_s1": 12.64},
    (128, 8192, 256): {"64x64_s8": 9.86, "64x64_s16": 11.20},
    (72, 4160, 520): {"64x64_s8": 10.78, "64x64_s16": 14.21},
    (1024, 4096, 256): {"64x64_s2": 12.10, "128x128_s4": 13.44},
    (512, 512, 512): {"64x64_s1": 7.07, "128x64": 7.78},
    (512, 2048, 512): {"64x64_s1": 9.70, "64x64_s2": 9.97, "128x128_s4": 11.04},
    (512, 8192, 512): {"128x128_s4": 18.24, "64x64_s1": 19.71, "64x64_s2": 19.78, "64x128_s2": 21.63},
    (512, 16384, 512): {"128x128_s4": 27.36, "64x64_s2": 33.60},
    (1024, 8192, 1024): {"64x128_s1": 30.59, "128x64": 31.81},
    (1024, 1024, 1024): {"128x64": 9.44, "64x128_s1": 9.92, "128x128": 11.81},
    (1280, 1280, 1280): {"128x128": 13.09, "128x64": 14.30},
    (1440, 1440, 1408): {"128x128": 14.78, "144x128": 15.55},
    (1600, 1600, 1600): {"128x192": 19.09, "128x128": 23.52, "144x128": 26.29},
    (1536, 512, 1536): {"144x128": 10.88, "128x192": 11.65, "128x128": 12.48},
    (1536, 1536, 1536): {"144x128": 16.29, "128x192": 18.51},
    (1536, 16384, 1536): {"144x128": 100.06, "128x128_s4": 161.25, "128x128": 164.86},
    (4608, 1536, 512): {"144x128": 16.38, "128x192": 18.64, "128x128": 22.72},
    (2048, 2048, 2048): {"128x256": 27.90, "128x128": 28.06, "144x128": 34.99},
    (512, 4096, 4096): {"128x128": 27.81, "128x256": 46.59},
    (3072, 3072, 3072): {"128x192": 81.38, "128x256": 105.44},
    (4096, 4096, 4096): {"128x256": 195.81, "128x128": 198.82, "128x192": 219.39},
    (8192, 128, 8192): {"128x192": 45.28, "128x256": 46.11},
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
        assert found.kernel in matmul_plan.kernel_names(kind)
        tiles = -(-1000 // kernel.rows) * -(-776 // kernel.columns)
        assert found.grid[0] == (tiles * kernel.split if kernel.split else min(tiles, 132) if kernel.wgmma else tiles)
        if kernel.wgmma:
            by_maps = [(1000, 512), (512, 776), (1000, 776)]  # where K is shared, C is stored by address
            assert [matrix[:2] for matrix in found.matrices] == by_maps[: 3 if kernel.turned or not kernel.split else 2]
            assert all(matrix.box_columns * SIZE[kind] == 128 for matrix in found.matrices), "rows as wide as the swizzle"


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((128, 16384, 128), "64x64_s16"),  # 4 tiles
        ((8192, 2048, 32), "128x64"),  # half of a tile of 64 columns would be empty
        *((shape, min(times, key=times.__getitem__)) for shape, times in MEASURED.items()),
    ],
    ids=str,
)
def test_a_product_gets_the_kernel_that_was_fastest(shape: tuple[int, int, int], kernel: str) -> None:
    assert kernel_for(*shape) == f"matmul_wgmma_bfloat16_{kernel}"
    assert "wgmma" not in kernel_for(*shape, capability=(8, 0))


def test_what_fills_the_gpu_is_not_split() -> None:
    for n in (2048, 3072, 4096, 8192, 16384):
        assert "_s" not in kernel_for(n, n, n), n


def test_a_cluster_that_does_not_fit_beside_the_others_is_a_second_wave() -> None:
    kernel = next(k for k in matmul_plan.SPLIT if k.name == "128x128_s4")
    at_once = matmul_plan.CLUSTERS_AT_ONCE[4]
    fits, one_more = (kernel.estimate(128, 8192, 128 * tiles, 132) for tiles in (at_once, at_once + 1))
    assert one_more == 2 * fits
    assert kernel.estimate(128, 8192, 128 * at_once, 66) == 2 * fits, "15 clusters on half of the multiprocessors"


@pytest.mark.parametrize("kernel", matmul_plan.SPLIT, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_shared_tiles_as_the_source_has_them(kernel: matmul_plan.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    tile = (kernel.rows, kernel.columns, kernel.step_bytes // 2, kernel.stages, kernel.split, kernel.resident)
    assert f"SPLIT_KERNEL(dtype, {', '.join(map(str, tile))})" in source
    assert kernel.threads == 32 * (kernel.rows // 16 + 1), "four warps for 64 rows, and the producer"
    assert kernel.resident * (kernel.shared_bytes(2) + 1024) <= 228 * 1024, "as many blocks fit a multiprocessor as it says"
    owned, more = divmod(kernel.rows // 16 * (kernel.columns // 16), kernel.split)  # units of 1 KiB
    assert (more, kernel.inbox) == (0, owned * (kernel.split - 1) * 1024), "each block owns as many and takes the others' parts of them"


def test_turned_tiles_are_for_what_one_wave_of_them_holds() -> None:
    (kernel,), source = matmul_plan.TURNED, (FOLDER / "matmul_wgmma.cu").read_text()
    assert f"TURNED_KERNEL(dtype, {kernel.rows}, {kernel.columns}, {kernel.stages})" in source
    assert kernel.threads == 32 * (kernel.columns // 16 + 1), "four warps for 64 columns, and the producer"
    for m, offered in ((128, False), (144 * 11, True), (144 * 11 + 1, False)):
        found = matmul_plan.offered(m, 512, 1536, "float16", 16, 132, (9, 0))
        assert (kernel.name in found) == offered, m


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
