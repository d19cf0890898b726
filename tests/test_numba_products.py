"""Which configurations a product can have in numba_cuda, what they say of themselves, and what the plan takes."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import product as every
from types import ModuleType
from typing import Any

import pytest
from support import needs

from opwise.backends.gemm.choice import choose
from opwise.backends.gemm.cost import Product, predicted_us
from opwise.backends.gemm.gpu import H100, HOPPER, Machine

AMPERE = Machine(108, (8, 0), 163 * 1024)
KINDS = "float32", "tfloat32", "float16", "bfloat16"


@pytest.fixture
def own() -> ModuleType:
    """The module of configurations."""
    needs("numba.cuda")
    return importlib.import_module("opwise.backends.numba_cuda.matmul.configurations")


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_can_be_computed_and_only_hopper_has_clusters_and_tma(own: ModuleType, kind: str) -> None:
    for *shape, alignment, machine in every((1, 17, 4096), (8, 701), (3, 1024), (4, 16), (HOPPER, AMPERE)):
        found = own.offered(Product(*shape, kind, alignment), machine)
        assert found
        for name, tile in found.items():
            assert name == tile.name
            assert machine == HOPPER or (not isinstance(tile, own.HopperTile) and tile.split == 1)
            assert not isinstance(tile, own.HopperTile) or Product(*shape, kind, alignment).vector_bytes == 16


@pytest.mark.parametrize("kind", KINDS)
def test_work_is_what_is_launched_and_takes_longer_for_more_of_k(own: ModuleType, kind: str) -> None:
    for shape in ((64, 512, 128), (1000, 512, 776), (5000, 1032, 4000)):
        product = Product(*shape, kind)
        for tile in own.offered(product, HOPPER).values():
            work, deeper = (tile.work(each) for each in (product, product._replace(k=8 * product.k)))
            assert work.ctas == tile.tiles(product.m, product.n) * tile.split
            assert 0 < predicted_us(work, H100) < predicted_us(deeper, H100)


def test_large_products_get_wgmma_and_few_tiles_of_a_long_k_are_split(own: ModuleType) -> None:
    def taken(*product: Any) -> Any:
        found = own.offered(Product(*product), HOPPER)
        return found[choose(Product(*product), found, H100).name]

    for n in (2048, 4096, 8192):
        assert [taken(n, n, n, kind).kernel for kind in ("bfloat16", "tfloat32")] == ["wgmma", "wgmma_tf32"]
        assert taken(n, n, n, "float32").kernel == "fma_tma"
    assert taken(128, 16384, 128, "float16").split > 1
    assert not isinstance(taken(1000, 1001, 1003, "float16"), own.HopperTile)


def test_a_tile_that_copies_cannot_bring_is_refused(own: ModuleType) -> None:
    module = importlib.import_module("opwise.backends.numba_cuda.matmul.kernels.split_k")
    with pytest.raises(ValueError, match="64x96_s1: 64 rows and 96 columns given, multiples of 64 are taken"):
        module.kernel("bfloat16", replace(own.SPLIT_K[0], columns=96))


def test_what_wgmmas_tiles_ask_for_fits_an_sm(own: ModuleType) -> None:
    for tile in (*own.WGMMA, *own.SPLIT_K):
        assert tile.ctas_per_sm * (tile.shared_bytes + 1024) <= 228 * 1024


@pytest.mark.parametrize("m", [1, 16, 63, 64, 65, 127, 4096])
def test_a_kernel_waits_for_as_many_bytes_as_its_boxes_bring(own: ModuleType, m: int) -> None:
    module = importlib.import_module("opwise.backends.numba_cuda.matmul.kernels.split_k")
    for tile in own.SPLIT_K:
        of_a, of_b = module.matrices(tile, m, 4096, 4096)
        assert (of_a.box_columns, of_b.box_columns, of_b.box_rows) == (64, 64, tile.step_bytes // 2)
        boxes = of_a.box_rows * (tile.step_bytes // 128) + of_b.box_rows * (tile.columns // 64)
        whole, landing = tile.step_bytes * (tile.rows + tile.columns), module.landing
        assert int(getattr(landing, "py_func", landing)(m, tile.rows, whole, tile.step_bytes // 128)) == 64 * 2 * boxes


@pytest.mark.parametrize("kind", KINDS)
def test_without_extra_the_plan_has_the_main_tiles_alone(own: ModuleType, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {tile.name for tile in importlib.import_module("opwise.backends.numba_cuda.matmul.extra").TILES}
    product = Product(16, 4096, 4096, kind)
    assert extra & own.offered(product, HOPPER).keys()
    monkeypatch.setenv("OPWISE_EXTRA", "off")
    found = own.offered(product, HOPPER)
    assert found
    assert not {name.partition("_s")[0] for name in found} & extra
