"""Products through tensor descriptors: their arithmetic in Triton's interpreter, their tiles, their maps."""

from types import SimpleNamespace

import pytest
import torch
from support import LARGE_PRODUCTS

from opwise.backends import triton_jit
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS
from opwise.ops.spec import Workload


@pytest.fixture(scope="module")
def product():
    try:
        triton_jit.probe(torch.device("cpu"))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    from opwise.backends.triton_jit import matmul

    return matmul


def fits(shape, dtype, a, b, out):
    reference = OPS["matmul"].reference(a.double(), b.double())
    bound = OPS["matmul"].error_bound(Workload("matmul", shape, dtype), reference, a.double(), b.double())
    return bool(((out.double() - reference).abs() <= bound).all())


@pytest.mark.parametrize("persistent", [False, True])
def test_float32_through_descriptors_is_the_product(product, persistent):
    """A program a tile; two programs, each of which goes on to further tiles."""
    shape = m, k, n = 70, 100, 132
    torch.manual_seed(0)
    a, b = torch.randn(m, k), torch.randn(k, n)
    out = torch.full((m, n), float("nan"))
    product.tma.build(a, b, out, product.Config(64, 64, 32, 4, 3, persistent=persistent))(a, b, out)()
    assert fits(shape, "float32", a, b, out)


FLOAT32 = {(4096, 4096, 4096): 128, (1536, 1536, 1536): 128, (8192, 128, 8192): 128, (1024, 1024, 1024): 64, (512, 4096, 4096): 64,
           (1000, 1028, 1020): 64, (1024, 512, 1024): None, (128, 4096, 4096): None}  # fmt: skip


@pytest.mark.parametrize("shape", FLOAT32)
def test_float32_gets_tiles_that_fill_an_h200_or_pointers(product, monkeypatch, shape):
    m, k, n = shape
    monkeypatch.setattr(product, "processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = product.through_maps(*(torch.empty(each, device="meta") for each in ((m, k), (k, n))), "ieee")
    assert (config and config.BM) == FLOAT32[shape]


PERSISTENT = "128x256x64/8/3/persistent"
P128, P192 = "128x128x64/4/6/persistent/pingpong", "192x128x64/4/5/persistent/pingpong"


def test_large_products_that_warpgroups_were_not_measured_at_go_through_persistent_programs(product, monkeypatch):
    """On later GPUs, and where rows straddle lines of the L2: there no warpgroups that take turns are offered."""
    monkeypatch.setattr(product.cost, "processors", lambda device: 132)
    x = torch.empty(1, dtype=torch.bfloat16)
    for hopper, sizes in ((False, (4096, 6144, 8192)), (True, (5000, 8200))):
        for n in sizes:
            configs = product.half_configs(hopper, n, n, n)
            assert not any(c.pingpong for c in configs)
            assert product.cost.quickest(configs, n, n, n, x).name == PERSISTENT
    assert not any(c.pingpong for k, n in ((4096, 4104), (4104, 4096)) for c in product.half_configs(True, 4096, k, n))
    assert {c.name for c in product.half_configs(True, 4096, 4096, 4096) if c.pingpong} == {P128, P192}


def test_blocks_share_a_long_k_of_few_tiles_alone(product, monkeypatch):
    monkeypatch.setattr(product.cost, "processors", lambda device: 132)
    x = torch.empty(1, dtype=torch.float16)
    offered = {shape: configs for shape in LARGE_PRODUCTS if (configs := product.half_configs(True, *shape))}
    for m, k, n in ((64, 4096, 4096), (1024, 8192, 1024), (512, 16384, 4096), (4096, 4096, 4096)):
        assert product.cost.quickest(product.half_configs(True, m, k, n), m, n, k, x).split_k == 1, (m, k, n)
    for m, k, n in ((128, 2048, 128), (32, 8192, 128), (512, 8192, 512)):
        assert product.cost.quickest(product.half_configs(True, m, k, n), m, n, k, x).split_k > 1, (m, k, n)
    on_a_gpu = {shape: product.cost.quickest(configs, shape[0], shape[2], shape[1], x) for shape, configs in offered.items()}
    for (m, _, n), config in on_a_gpu.items():
        assert config.split_k == 1 or config.tiles(m, n) < 132, "a tile a multiprocessor needs no sharing"
    assert set(on_a_gpu.values()) >= {c for c in product.HALF_CONFIGS if c.split_k > 1 or c.swap_ab or c.BN == 32}, "each is tested there"


def test_products_that_no_tile_was_measured_for_go_through_pointers(product):
    for shape in ((16, 1024, 16384), (1, 1024, 1024), (128, 1024, 512), (512, 256, 512)):
        assert product.half_configs(True, *shape) == ()
    assert {(c.split_k > 1, c.swap_ab) for c in product.half_configs(True, 128, 2048, 128)} == {(True, False)}
    assert {c.BM for c in product.half_configs(True, 17, 2048, 128)} == {32}
    assert all(c.swap_ab for c in product.half_configs(True, 1, 2048, 8))
    assert product.half_configs(False, 16, 4096, 16384) == ()


def test_few_rows_of_a_short_k_have_a_tile_where_it_was_measured(product):
    for shape in ((32, 256, 8192), (17, 256, 512), (32, 128, 8192), (32, 1024, 4096)):
        assert product.half_configs(True, *shape) == (product.configurations.SHORT,)
        assert product.half_configs(False, *shape) == ()
    for shape in ((16, 256, 8192), (32, 120, 8192), (32, 256, 504), (32, 264, 2040), (32, 1032, 4096), (33, 256, 2048)):
        assert product.half_configs(True, *shape) == ()
    assert product.configurations.SHORT not in product.half_configs(True, 32, 2048, 2048)


def test_warpgroups_take_turns_where_two_tiles_a_multiprocessor_and_more_are(product, monkeypatch):
    monkeypatch.setattr(product.cost, "processors", lambda device: 132)

    def taken(*shape):
        m, n, k = shape
        return product.cost.quickest(product.half_configs(True, m, k, n), m, n, k, torch.empty(1, dtype=torch.bfloat16))

    on_a_gpu = {taken(m, n, k).name for m, k, n in LARGE_PRODUCTS if m * k * n >= product.configurations.LEAST_HALF}
    assert {P128, P192} <= on_a_gpu, "all are tested there"


def test_float32_products_of_few_columns_get_a_tile_too(product, monkeypatch):
    monkeypatch.setattr(product.cost, "processors", lambda device: 132)
    taken = {n: product.cost.quickest(product.TF32_CONFIGS, 2056, n, 2056, torch.empty(1)).name for n in (1, 24, 32, 33, 4096)}
    assert all(taken[n].startswith("128x64x32") for n in (1, 24, 32, 33))
    assert not taken[4096].startswith("128x64x32")


def test_a_tile_too_large_for_the_gpu_is_not_taken(product):
    small, huge = product.Config(64, 64, 32, 4, 3, k_ns=9.0), product.Config(256, 256, 64, 8, 4)
    assert product.cost.quickest((huge, small), 256, 256, 256, torch.empty(1)) is small
    with pytest.raises(ValueError, match="no tile fits 262144 bytes of shared memory: 256x256x64"):
        product.cost.quickest((huge,), 256, 256, 256, torch.empty(1))


def test_factors_maps_round(product):
    maps = [{"elem_type": 7, "block_size": [1, 1]} for _ in range(3)]
    product.descriptors.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=maps)), 3)
    assert [each["elem_type"] for each in maps] == [product.descriptors.TFLOAT32] * 3
    for unknown in (None, [], [{}] * 3):
        with pytest.raises(RuntimeError, match="would cut TF32 factors"):
            product.descriptors.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=unknown)), 3)
