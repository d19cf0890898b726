"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import few_rows_times
import plans
import pytest
from support import SMALL_PRODUCTS

from opwise.backends.cuda_src import matmul_kernel, matmul_kernels, matmul_ladder, matmul_model, matmul_plan, matmul_wgmma
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.kernels import KERNELS
from opwise.backends.cuda_src.matmul.cost import BYTES
from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.sources import FOLDER, target, unit_of, units

MATMUL_KINDS = sorted(KERNELS)


def kernel_for(m: int, k: int, n: int, dtype: str = "bfloat16", **changes: object) -> str:
    return plans.kernel_for(dtype, m, k, n, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hopper_gets_its_own_kernels(dtype: str) -> None:
    for n in (1024, 3072, 4096):
        assert kernel_for(n, n, n, dtype).startswith(f"matmul_wgmma_{dtype}_")


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
        tiles = kernel.tiles(1000, 776)
        assert tiles >= -(-1000 // kernel.rows) * -(-776 // kernel.columns)
        assert found.grid[0] == (tiles * kernel.split if kernel.split else min(tiles, 132) if kernel.wgmma else tiles)
        if kernel.wgmma:
            by_maps = [(1000, 512), (512, 776), (1000, 776)]  # where K is shared, C is stored by address
            assert [matrix[:2] for matrix in found.matrices] == by_maps[: 3 if kernel.turned or not kernel.split else 2]
            widths = [64 if matrix[1] == 776 and kernel.columns % 64 else 128 for matrix in found.matrices]
            assert [matrix.box_columns * BYTES[kind] for matrix in found.matrices] == widths, "rows as wide as the swizzle"


@pytest.mark.parametrize("shape", few_rows_times.MEASURED, ids=str)
def test_few_rows_of_a_wide_b_get_the_kernel_that_was_fastest(shape: tuple[int, int, int]) -> None:
    """At 0.95 of cuBLAS or more."""
    times = dict(few_rows_times.MEASURED[shape])
    cublas = times.pop("cuBLAS")
    taken = times[kernel_for(*shape).split("bfloat16_")[1]]
    assert taken <= 1.03 * min(times.values())
    assert taken <= cublas / 0.95


def test_a_k_of_two_steps_has_as_many_slots_where_all_blocks_run_at_once() -> None:
    """200000x64x32 12.4 us, 128x32_s1 15.8; 100000x256x32 17.5, 17.4."""
    short = "matmul_wgmma_bfloat16_128x32_short"
    assert kernel_for(200_000, 64, 32) == kernel_for(1_000_000, 128, 32) == short
    assert short not in {kernel_for(100_000, 256, 32), kernel_for(40_000, 64, 32), kernel_for(200_000, 64, 40)}


SHARED = matmul_wgmma.SPLIT + matmul_wgmma.CROWDED + matmul_wgmma.NARROW + matmul_wgmma.SHORT + matmul_wgmma.LONG


@pytest.mark.parametrize("kernel", SHARED, ids=lambda kernel: str(kernel.name))
def test_a_box_has_no_row_more_than_a_where_the_kernel_counts_its_bytes(kernel: matmul_kernel.Kernel) -> None:
    for m in (1, 40, 64, 100, 128, 500):
        assert launch(kernel, "bfloat16", m, 512, 776, 132).matrices[0].box_rows == min(m, kernel.rows)
    (turned,) = matmul_wgmma.TURNED
    assert launch(turned, "bfloat16", 40, 512, 776, 132).matrices[0].box_rows == turned.rows


def test_few_rows_get_tiles_of_64_where_there_is_much_to_read() -> None:
    def there(kernel: str, m: int, n: int) -> bool:
        return kernel in matmul_plan.offered(m, 1024, n, "float16", 16, 132, (9, 0))

    assert [there("64x64_s1", m, n) for m, n in ((1, 4096), (16, 4088), (17, 4088))] == [True, False, True]
    wide = [matmul_plan.offered(16, 64, n, "float16", 16, 132, (9, 0)) for n in (8192, 8200)]
    assert ["64x64_s1" in found for found in wide] == [False, True], "or where B is wide"
    assert [kernel_for(16, k, 256).removeprefix("matmul_wgmma_bfloat16_") for k in (3072, 8192, 16384)] == [
        "64x64_s8",
        "64x64_s8",
        "64x64_s16",
    ]
    assert [there("128x64", m, 8192) for m in (64, 65)] == [False, True]


def test_a_b_that_a_block_holds_whole_is_taken_so_where_that_was_measured() -> None:
    def way(*shape: int) -> str:
        return kernel_for(*shape).removeprefix("matmul_bfloat16_").removesuffix("x80_v2").removesuffix("x96_v2")

    # 6633x90x69 takes 4.66 us so, by the others 5.8, in cuBLAS 6.2.
    assert {way(*shape) for shape in ((4001, 95, 73), (8003, 95, 73), (6346, 83, 58), (4001, 95, 91))} == {"whole_32"}
    assert {kernel_for(*shape) for shape in SMALL_PRODUCTS} == {f"matmul_bfloat16_{k.name}" for k in matmul_kernels.WHOLE}
    beyond = [(1003, 95, 73), (4003, 97, 73), (9001, 95, 73), (4003, 63, 73), (4001, 95, 97)]
    assert not any(way(*shape).startswith("whole") for shape in beyond)
    assert "whole" not in kernel_for(4001, 95, 73, alignment=8)
    assert not any(kernel.whole and kernel.takes(4003, 97, 80, 2, 132, (9, 0)) for kernel in matmul_kernels.WHOLE)
    assert not any(kernel.takes(4003, 96, kernel.columns + 1, 2, 132, (9, 0)) for kernel in matmul_kernels.WHOLE)


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
    kernel = next(k for k in matmul_wgmma.SPLIT if k.name == "128x128_s4")
    at_once = matmul_model.CLUSTERS_AT_ONCE[4]
    fits, one_more = (kernel.share(128, 8192, 128 * tiles, 132).each for tiles in (at_once, at_once + 1))
    assert one_more == 2 * fits
    assert kernel.share(128, 8192, 128 * at_once, 66).each == 2 * fits, "15 clusters on half of the multiprocessors"


def test_turned_pairs_are_offered_where_they_were_timed() -> None:
    def there(*shape: int) -> list[str]:
        found = matmul_plan.offered(*shape, "bfloat16", 16, 132, (9, 0))
        return [kernel.name[:3] for kernel in matmul_wgmma.TURNED_PAIRS if kernel.name in found]

    assert [there(n, n, n) for n in (1800, 2056, 2560, 5000)] == [["176", "144"], ["176", "160", "144"], ["208", "160", "144"], ["160"]]
    beyond = (4096, 4616, 4096), (5120, 5120, 5120), (5000, 5000, 5120), (5008, 5008, 5008), (2504, 256, 2504), (1024, 2504, 6400)
    assert not any(there(*shape) for shape in beyond)


def test_a_step_of_k_that_is_the_only_one_has_nothing_to_take_turns_at() -> None:
    def in_turns(k: int) -> bool:
        return any(name.startswith("pingpong") for name in matmul_plan.offered(4096, k, 4096, "bfloat16", 16, 132, (9, 0)))

    assert [in_turns(k) for k in (64, 128)] == [False, True]


def test_where_rows_are_slanted_the_least_to_fetch_wins() -> None:
    """A pair of 160x256 fetches 576 rows and columns for 81920 products, of 192x192 as many for 73728, of 128x256 512 for 65536."""
    for kernel, sizes in (("160x256_2x1", (2200, 3144, 5000, 6008, 8200)), ("192x192_1x2", (3592,)), ("128x256_2x1", (1960, 2600))):
        assert {kernel_for(n, n, n) for n in sizes} == {f"matmul_wgmma_bfloat16_{kernel}"}
    large = next(kernel for kernel in matmul_wgmma.WGMMA if kernel.name == "128x256")
    even, a, b, both = (large.estimate(4096, k, n, 132) / (k * n) for k, n in ((4096, 4096), (4104, 4096), (4096, 4088), (4104, 4088)))
    assert even < min(a, b)
    assert max(a, b) < both


def test_pairs_are_offered_where_a_row_of_a_box_has_two_lines() -> None:
    def there(*shape: int) -> bool:
        return "64x128_p2x1" in matmul_plan.offered(*shape, "float16", 16, 132, (9, 0))

    assert all(there(*shape) for shape in ((1000, 1000, 1000), (1024, 1024, 1000), (1000, 4096, 1000)))
    assert not any(there(*shape) for shape in ((1024, 1024, 1024), (1200, 1200, 1200), (2056, 2056, 2056), (512, 1000, 512)))


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
