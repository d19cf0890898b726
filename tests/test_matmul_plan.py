"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import plans
import pytest

from opwise.backends.cuda_src.matmul import extra, ladder, launch, offered
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT, Kernel
from opwise.backends.cuda_src.matmul.cost import BYTES, CLUSTERS_AT_ONCE
from opwise.backends.cuda_src.matmul.kernels import KERNELS, kernel_names, wgmma
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
        assert found.kernel in kernel_names(kind)
        tiles = kernel.tiles(1000, 776)
        assert tiles >= -(-1000 // kernel.rows) * -(-776 // kernel.columns)
        assert found.grid[0] == (tiles * kernel.split if kernel.split else min(tiles, 132) if kernel.wgmma else tiles)
        if kernel.wgmma:
            by_maps = [(1000, 512), (512, 776), (1000, 776)]  # where K is shared, C is stored by address
            assert [matrix[:2] for matrix in found.matrices] == by_maps[: 3 if kernel.swap_ab or not kernel.split else 2]
            widths = [64 if matrix[1] == 776 and kernel.columns % 64 else 128 for matrix in found.matrices]
            assert [matrix.box_columns * BYTES[kind] for matrix in found.matrices] == widths, "rows as wide as the swizzle"


SHARED = wgmma.SPLIT + wgmma.NARROW + wgmma.HALVES


@pytest.mark.parametrize("kernel", SHARED, ids=lambda kernel: str(kernel.name))
def test_a_box_has_no_row_more_than_a_where_the_kernel_counts_its_bytes(kernel: Kernel) -> None:
    for m in (1, 40, 64, 100, 128, 500):
        assert launch(kernel, "bfloat16", m, 512, 776, 132).matrices[0].box_rows == min(m, kernel.rows)
    (swapped,) = wgmma.SWAP_AB
    assert launch(swapped, "bfloat16", 40, 512, 776, 132).matrices[0].box_rows == swapped.rows


def test_few_rows_get_tiles_of_64_where_there_is_much_to_read() -> None:
    def there(kernel: str, m: int, n: int) -> bool:
        return kernel in offered(m, 1024, n, "float16", 16, 132, (9, 0))

    assert [there("64x64_s1", m, n) for m, n in ((1, 4096), (16, 4088), (17, 4088))] == [True, False, True]
    wide = [offered(16, 64, n, "float16", 16, 132, (9, 0)) for n in (8192, 8200)]
    assert ["64x64_s1" in found for found in wide] == [False, True], "or where B is wide"
    assert [kernel_for(16, k, 256).removeprefix("matmul_wgmma_bfloat16_") for k in (3072, 8192, 16384)] == [
        "64x64_s8",
        "64x64_s8",
        "64x64_s16",
    ]
    assert [there("128x64", m, 8192) for m in (64, 65)] == [False, True]


def test_what_fills_the_gpu_is_not_split() -> None:
    for n in (2048, 3072, 4096, 8192, 16384):
        assert "_s" not in kernel_for(n, n, n), n


def test_a_cluster_that_does_not_fit_beside_the_others_is_a_second_wave() -> None:
    kernel = next(k for k in wgmma.SPLIT if k.name == "128x128_s4")
    at_once = CLUSTERS_AT_ONCE[4]
    fits, one_more = (kernel.share(128, 8192, 128 * tiles, 132).each for tiles in (at_once, at_once + 1))
    assert one_more == 2 * fits
    assert kernel.share(128, 8192, 128 * at_once, 66).each == 2 * fits, "15 clusters on half of the multiprocessors"


def test_a_step_of_k_that_is_the_only_one_has_nothing_to_take_turns_at() -> None:
    def in_turns(k: int) -> bool:
        return any(name.startswith("pingpong") for name in offered(4096, k, 4096, "bfloat16", 16, 132, (9, 0)))

    assert [in_turns(k) for k in (64, 128)] == [False, True]


def test_rows_that_are_not_whole_lines_cost_more() -> None:
    large = next(kernel for kernel in wgmma.WGMMA if kernel.name == "128x256")
    even, a, b, both = (large.estimate(4096, k, n, 132) / (k * n) for k, n in ((4096, 4096), (4104, 4096), (4096, 4088), (4104, 4088)))
    assert even < min(a, b)
    assert max(a, b) < both


def test_only_hopper_compiles_for_itself_alone() -> None:
    assert [target(arch) for arch in ("sm_80", "sm_90", "sm_100")] == ["sm_80", "sm_90a", "sm_100"]
    assert "matmul_wgmma" not in units("sm_100")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_rung_covers_the_product_and_16_bytes_are_taken_where_all_rows_begin_on_them(dtype: str) -> None:
    for rung, (_, side, block) in ladder.RUNGS.items():
        found = ladder.plan(rung, 1000, 512, 776, dtype, aligned=True)
        assert found.kernel == f"matmul_ladder_{rung}_{dtype}"
        assert unit_of(found.kernel) in units("sm_80")
        assert (found.grid[0], found.block) == (-(-1000 // side) * -(-776 // side), block)
        off = [(k, n, aligned) for k, n, aligned in ((511, 776, True), (512, 777, True), (512, 776, False))]
        there = {ladder.plan(rung, 1000, k, n, dtype, aligned).kernel for k, n, aligned in off}
        assert there == {f"matmul_ladder_{'registers' if rung == 'vectors' else rung}_{dtype}"}


def test_the_plan_knows_the_rungs_as_the_source_has_them() -> None:
    source = (FOLDER / "matmul/ladder/ladder.cu").read_text()
    (shared, block), (side, (threads, *_)) = ladder.SHARED, ladder.MICRO
    assert f"SHARED_TILE = {shared};" in source
    assert block == (shared, shared, 1)
    assert f"SIDE = {side}, DEPTH = 16, THREADS = {threads}, EACH = {int((side * side / threads) ** 0.5)};" in source


def test_extra_kernels_can_be_switched_off_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what makes each of them the plan's choice."""
    products = {
        "skinny_m": ("float16", 8, 300, 500),
        "skinny_n": ("bfloat16", 20_000, 200, 12),
        "small_gemm": ("float32", 135, 22, 633),
        "unaligned_tma": ("tfloat32", 1000, 4097, 3000),
    }
    with_all = {name: plans.kernel_for(*product) for name, product in products.items()}
    assert all(name in kernel for name, kernel in with_all.items())
    monkeypatch.setenv(extra.SWITCH, "off")
    for name, product in products.items():
        kernel = plans.kernel_for(*product)
        assert not any(other in kernel for other in products), name
        assert unit_of(kernel) in units("sm_90")
    assert not any("extra" in text for text in units("sm_90").values())
    monkeypatch.setenv(extra.SWITCH, "no")
    with pytest.raises(ValueError, match="OPWISE_EXTRA is 'no'"):
        plans.kernel_for("float16", 8, 300, 500)
