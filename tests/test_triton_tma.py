"""The TF32 product through tensor descriptors: its arithmetic in Triton's interpreter, its tiles, its maps."""

from types import SimpleNamespace

import pytest
import torch

from opwise.backends import triton_jit
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS
from opwise.ops.spec import Workload


@pytest.fixture(scope="module")
def tma():
    try:
        triton_jit.probe(torch.device("cpu"))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    from opwise.backends.triton_jit import matmul_tma

    return matmul_tma


@pytest.mark.parametrize("shape", [(64, 32, 64), (70, 100, 132), (33, 4, 260), (130, 36, 68)])
def test_the_transposed_product_is_the_product(tma, shape):
    """Whole tiles; ragged on all sides; K shorter than a step; more than one tile each way."""
    m, k, n = shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k), torch.randn(k, n)
    out = torch.full((m, n), float("nan"))
    tma.bound(a, b, out, tma.tf32_kernel, tma.Config(64, 64, 32, 4, 3))(a, b, out)()
    wide = (a.double(), b.double())
    reference = OPS["matmul"].reference(*wide)
    bound = OPS["matmul"].error_bound(Workload("matmul", shape, "tfloat32"), reference, *wide)
    assert ((out.double() - reference).abs() <= bound).all()


def test_a_product_gets_the_tiles_that_take_least_time(tma, monkeypatch):
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)
    chosen = {n: str(matmul_config.quickest(tma.TF32_CONFIGS, n, n, torch.empty(1))) for n in (256, 1024, 2048, 8192)}
    assert chosen == {256: "64x128x32", 1024: "64x128x32", 2048: "256x128x32", 8192: "256x128x32"}
    huge = tma.Config(256, 256, 64, 8, 4)
    with pytest.raises(ValueError, match="no tile fits 262144 bytes of shared memory: 256x256x64"):
        matmul_config.quickest((huge,), 256, 256, torch.empty(1))


def test_both_factors_maps_round_and_the_products_does_not(tma):
    maps = [{"elem_type": 7, "block_size": [1, 1]} for _ in range(3)]
    tma._round(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=maps)))
    assert [each["elem_type"] for each in maps] == [tma.TFLOAT32, tma.TFLOAT32, 7]
    for unknown in (None, [], [{}] * 3):
        with pytest.raises(RuntimeError, match="would cut TF32 factors"):
            tma._round(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=unknown)))
