"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import plans
import pytest

from opwise.backends.cuda_src.matmul import TEXTBOOK, extra, kind_of, ladder, offered, plan, plan_any_gpu, plan_textbook
from opwise.backends.cuda_src.sources import FOLDER, target, unit_of, units
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import H100, HOPPER, Machine
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import Choices, NoSuchConfiguration

LARGE = Product(4096, 4096, 4096, "bfloat16")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "tfloat32"])
def test_large_products_get_wgmma(kind: str) -> None:
    for n in (1024, 3072, 4096):
        assert plans.kernel_for(kind, n, n, n).startswith(f"matmul_wgmma_{kind}_")


def test_few_tiles_of_a_long_k_are_split() -> None:
    assert "_s" in plans.kernel_for("bfloat16", 128, 16384, 128)
    for n in (2048, 4096, 8192):
        assert "_s" not in plans.kernel_for("bfloat16", n, n, n), "what fills the GPU is not"


def test_what_is_forced_is_taken_and_what_cannot_be_is_refused() -> None:
    for name, config in offered(LARGE, HOPPER).items():
        assert plan(LARGE, HOPPER, H100, Choices(forced=name)).kernel == config.kernel("bfloat16")
    with pytest.raises(NoSuchConfiguration, match="unaligned_tma_128_s1 is not among"):
        plan(LARGE, HOPPER, H100, Choices(forced="unaligned_tma_128_s1"))


def test_the_variant_mma_has_the_tiles_for_any_gpu() -> None:
    assert plan_any_gpu(LARGE, HOPPER).kernel == "matmul_bfloat16_128x256_v16"
    assert "simt" in plan_any_gpu(LARGE._replace(kind="float32"), HOPPER).kernel


def test_the_textbook_is_of_float32() -> None:
    found = plan_textbook(Product(33, 5, 40, "tfloat32"))
    assert (found.kernel, found.grid[0]) == (TEXTBOOK, 3 * 3)
    with pytest.raises(UnsupportedWorkload, match="float16 given, float32 alone is taken"):
        plan_textbook(Product(33, 5, 40, "float16"))


def test_tf32_is_a_permission() -> None:
    assert kind_of("float32", True, HOPPER) == "tfloat32"
    assert kind_of("float32", False, HOPPER) == kind_of("float32", True, Machine(40, (7, 5), 64 * 1024)) == "float32"
    assert kind_of("float16", True, HOPPER) == "float16"


def test_what_cannot_be_launched_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedWorkload, match="dtype float64 given, float32, float16 and bfloat16 are taken"):
        plan(LARGE._replace(kind="float64"), HOPPER)
    with pytest.raises(UnsupportedWorkload, match="a grid has 2147483647 at most: split it by rows"):
        plan_textbook(Product(2**36, 8, 2**5, "float32"))


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
    products = [("float16", 8, 300, 500), ("bfloat16", 20_000, 200, 12), ("float32", 135, 22, 633), ("tfloat32", 1000, 4097, 3000)]
    mine = {config.name for config in extra.configs()}
    assert all(mine & offered(Product(*shape, kind), HOPPER).keys() for kind, *shape in products)
    monkeypatch.setenv(extra.SWITCH, "off")
    for kind, *shape in products:
        found = offered(Product(*shape, kind), HOPPER)
        assert found
        assert not mine & found.keys()
    assert not any("extra" in text for text in units("sm_90").values())
    monkeypatch.setenv(extra.SWITCH, "no")
    with pytest.raises(ValueError, match="OPWISE_EXTRA is 'no'"):
        plans.kernel_for("float16", 8, 300, 500)


def test_hoppers_rungs_are_of_16_bits_on_sm_90() -> None:
    for rung in ladder.HOPPER_RUNGS:
        found = ladder.plan_hopper(rung, Product(1000, 512, 776, "float16"), HOPPER)
        assert unit_of(found.kernel) in units("sm_90")
        assert [matrix[:2] for matrix in found.matrices][:2] == [(1000, 512), (512, 776)]
        for product, machine in (
            (Product(1000, 512, 776, "float32"), HOPPER),
            (Product(1000, 512, 777, "float16"), HOPPER),
            (Product(1000, 512, 776, "float16"), Machine(108, (8, 0), 163 * 1024)),
        ):
            with pytest.raises(UnsupportedWorkload, match=f"matmul:{rung} takes float16 and bfloat16 on sm_90"):
                ladder.plan_hopper(rung, product, machine)
    source = (FOLDER / "matmul/ladder/tma.cu").read_text()
    assert f"BM = {ladder.TMA_TILE}, BN = {ladder.TMA_TILE}, BK = {ladder.TMA_DEPTH}, STAGES = {ladder.TMA_STAGES};" in source
