"""Products through tensor descriptors: their arithmetic in Triton's interpreter, their tiles, their maps."""

from itertools import product as every
from types import SimpleNamespace

import pytest
import torch
from support import or_skip

from opwise.backends import triton_jit
from opwise.backends.gemm.choice import choose
from opwise.backends.gemm.cost import Product, predicted_us
from opwise.backends.gemm.gpu import H100, HOPPER, Machine
from opwise.ops import OPS
from opwise.ops.spec import Workload


@pytest.fixture(scope="module")
def product():
    with or_skip():
        triton_jit.probe(torch.device("cpu"))
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
    product.kernel_module("tma").build(a, b, out, product.Config(64, 64, 32, 4, 3, 1, "tma", persistent=persistent))(a, b, out)()
    assert fits(shape, "float32", a, b, out)


AMPERE, BLACKWELL = Machine(108, (8, 0), 163 * 1024), Machine(148, (10, 0), 227 * 1024)
KINDS = "float32", "tfloat32", "float16", "bfloat16"


def taken(product, *shape_and_kind):
    asked = Product(*shape_and_kind)
    found = product.offered(asked, HOPPER)
    return found[choose(asked, found, H100).name]


@pytest.mark.parametrize("kind", KINDS)
def test_descriptors_are_of_rows_on_16_bytes_and_gluons_kernels_of_sm_90(product, kind):
    for *shape, alignment, machine in every((1, 17, 4096), (48, 701), (5, 1024), (4, 16), (HOPPER, AMPERE, BLACKWELL)):
        asked = Product(*shape, kind, alignment)
        found = product.offered(asked, machine)
        assert any(c.kernel == "pointers" for c in found.values())
        for name, config in found.items():
            assert name == config.name
            assert config.shared_bytes(asked.size) <= machine.shared_bytes
            assert config.kernel == "pointers" or (asked.vector_bytes == 16 and machine.capability >= (9, 0))
            assert config.kernel in ("pointers", "tma") or machine == HOPPER
            assert not config.swap_ab or asked.m <= config.BM


@pytest.mark.parametrize("kind", KINDS)
def test_work_takes_longer_for_more_of_k(product, kind):
    for shape in ((64, 512, 128), (1000, 512, 776), (5000, 1032, 4000)):
        asked = Product(*shape, kind)
        for config in product.offered(asked, HOPPER).values():
            work, deeper = (config.work(each) for each in (asked, asked._replace(k=9 * asked.k)))
            assert work.ctas == config.tiles(asked.m, asked.n) * config.split_k
            assert 0 < predicted_us(work, H100) < predicted_us(deeper, H100)


def test_large_products_get_sm_90s_own_kernels_and_a_long_k_of_few_tiles_is_split(product):
    for n in (2048, 4096, 8192):
        assert taken(product, n, n, n, "bfloat16").kernel in ("tma", "pingpong")
        assert taken(product, n, n, n, "tfloat32").kernel == "tf32"
        assert taken(product, n, n, n, "float32").kernel == "ffma"
    for m, k, n in ((128, 16384, 128), (32, 8192, 32)):
        assert all(taken(product, m, k, n, kind).split_k > 1 for kind in KINDS)
    for m, k, n in ((1024, 8192, 1024), (512, 16384, 4096)):
        assert taken(product, m, k, n, "bfloat16").split_k == 1


def test_what_triton_cannot_know_to_be_whole_vectors_comes_by_elements(product):
    """By multiples of 16 elements: 328 and 5860 are of 16 bytes. TF32 for wgmma must then not wait in shared memory, 32 rows to a bank."""
    small = next(c for c in product.offered(Product(20, 336, 5856, "tfloat32"), AMPERE).values() if c.BM == c.BN == 64)
    for k, n, times in ((328, 5860, 4), (83, 643, 4), (336, 5856, 1)):
        assert small.work(Product(20, k, n, "tfloat32")).loads == times * 32
    for shape in ((3792, 83, 643), (20, 328, 5860), (3049, 860, 84)):
        config = taken(product, *shape, "tfloat32")
        assert config.kernel != "pointers" or config.prefetch or config.BM < 64


def test_factors_maps_round(product):
    maps = [{"elem_type": 7, "block_size": [1, 1]} for _ in range(3)]
    product.descriptors.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=maps)), 3)
    assert [each["elem_type"] for each in maps] == [product.descriptors.TFLOAT32] * 3
    for unknown in (None, [], [{}] * 3):
        with pytest.raises(RuntimeError, match="would cut TF32 factors"):
            product.descriptors.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=unknown)), 3)
