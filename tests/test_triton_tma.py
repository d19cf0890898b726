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
def tma():
    try:
        triton_jit.probe(torch.device("cpu"))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    from opwise.backends.triton_jit import matmul_tma

    return matmul_tma


def fits(shape, dtype, a, b, out):
    reference = OPS["matmul"].reference(a.double(), b.double())
    bound = OPS["matmul"].error_bound(Workload("matmul", shape, dtype), reference, a.double(), b.double())
    return bool(((out.double() - reference).abs() <= bound).all())


@pytest.mark.parametrize("resident", [False, True])
def test_float32_through_descriptors_is_the_product(tma, resident):
    """A program a tile; two programs, each of which goes on to further tiles."""
    shape = m, k, n = 70, 100, 132
    torch.manual_seed(0)
    a, b = torch.randn(m, k), torch.randn(k, n)
    out = torch.full((m, n), float("nan"))
    tma.bound(a, b, out, tma.Config(64, 64, 32, 4, 3, resident=resident))(a, b, out)()
    assert fits(shape, "float32", a, b, out)


FLOAT32 = {(4096, 4096, 4096): 128, (1536, 1536, 1536): 128, (8192, 128, 8192): 128, (1024, 1024, 1024): 64, (512, 4096, 4096): 64,
           (1000, 1028, 1020): 64, (1024, 512, 1024): None, (128, 4096, 4096): None}  # fmt: skip


@pytest.mark.parametrize("shape", FLOAT32)
def test_float32_gets_tiles_that_fill_an_h200_or_pointers(tma, monkeypatch, shape):
    m, k, n = shape
    monkeypatch.setattr(tma, "processors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(tma, "build_in_gluon", lambda name, a, b, out, config: config.BM)
    assert tma.build(*(torch.empty(each, device="meta") for each in ((m, k), (k, n), (m, n))), "ieee") == FLOAT32[shape]


# Times on an H200, in microseconds, by tile: the kernel in use is to be among the quickest, and its model near them. The times of a product
# are of one run; an H200 that has multiplied for long is slower. The model leaves out DRAM, which is most of a 128 x 4096 x 4096 product.
RESIDENT, T256, T192 = "128x256x64/8/3/resident", "256x128x32/4/4/resident", "192x128x32/4/5/resident"
P128, P192, LONE = "128x128x64/4/6/resident/pingpong", "192x128x64/4/5/resident/pingpong", "144x128x64/8/6/turned"
TURNED = "192x128x64/8/5/resident/turned"
MEASURED = {
    ("16-bit", (1024, 1024, 1024)): {"64x128x128/4/4": 6.3, "64x64x128/4/4": 9.1},
    ("16-bit", (2048, 2048, 2048)): {P128: 26.3, "128x128x64/4/3": 26.3, RESIDENT: 27.0},
    ("16-bit", (1536, 512, 1536)): {LONE: 7.14, P128: 9.12, RESIDENT: 9.21},
    ("16-bit", (1536, 1536, 1536)): {LONE: 12.5, RESIDENT: 18.4, P128: 18.5},
    ("16-bit", (1536, 4096, 1536)): {LONE: 29.1},
    ("16-bit", (2560, 2560, 2560)): {P128: 57.8, RESIDENT: 59.9, P192: 65.6},
    ("16-bit", (3072, 1024, 3072)): {P192: 31.1, P128: 33.3, TURNED: 34.2},
    ("16-bit", (3072, 3072, 3072)): {P192: 83.2, TURNED: 87.1, P128: 93.0, "128x128x64/4/3": 100.6, RESIDENT: 114.1},
    ("16-bit", (1024, 4096, 4096)): {P128: 50.1, RESIDENT: 50.2},
    ("16-bit", (2048, 512, 2048)): {P128: 9.59, "128x128x64/4/3": 9.69, RESIDENT: 10.15},
    ("16-bit", (2304, 4096, 2304)): {P192: 72.3, P128: 73.1, "64x128x128/4/4": 78.7, RESIDENT: 96.3},
    ("16-bit", (4096, 256, 4096)): {P128: 18.5, P192: 20.2, RESIDENT: 20.8},
    ("16-bit", (4096, 512, 4096)): {P128: 29.7, P192: 31.1, RESIDENT: 32.9},
    ("16-bit", (4096, 1024, 1024)): {"128x128x64/4/3": 15.0, P128: 15.3, RESIDENT: 15.6},
    ("16-bit", (4096, 1024, 4096)): {P128: 53.9, RESIDENT: 57.0, P192: 58.5},
    ("16-bit", (4096, 4096, 4096)): {P128: 202.9, RESIDENT: 205.3, P192: 228.8},
    ("16-bit", (4096, 4096, 11008)): {P128: 549.8, P192: 570.5, RESIDENT: 573.4},
    ("16-bit", (6144, 6144, 6144)): {P192: 689.9, RESIDENT: 709.2, P128: 717.2},
    ("16-bit", (8192, 512, 8192)): {P192: 102.8, P128: 107.7, RESIDENT: 131.9},
    ("16-bit", (8192, 2048, 8192)): {P192: 396.5, P128: 407.8, RESIDENT: 435.3},
    ("16-bit", (8192, 8192, 8192)): {P192: 1570.8, RESIDENT: 1630.8, P128: 1685.5},
    ("16-bit", (1024, 8192, 1024)): {"64x128x128/4/4": 29.2, "128x128x64/8/5/split4": 51.1},
    ("16-bit", (128, 4096, 4096)): {"64x64x128/4/6": 12.3, "64x128x128/4/4": 15.8},
    ("16-bit", (4096, 4096, 128)): {"64x64x128/4/6": 12.7, "64x128x128/4/4": 16.0},
    ("16-bit", (512, 4096, 4096)): {"128x128x64/8/4": 26.2, "64x128x128/4/4": 31.8, "64x64x128/4/6": 44.9},
    ("16-bit", (512, 8192, 512)): {"128x128x64/8/5/split6": 13.6, "64x64x128/4/6": 19.1},
    ("16-bit", (512, 16384, 512)): {"128x128x64/8/5/split6": 20.5, "128x128x64/8/5/split4": 23.9},
    ("16-bit", (384, 8192, 512)): {"128x128x64/8/5/split6": 12.6},
    ("16-bit", (256, 8192, 512)): {"128x128x64/8/5/split8": 10.4, "128x128x64/8/5/split6": 11.4},
    ("16-bit", (512, 6144, 512)): {"128x128x64/8/5/split6": 12.2},
    ("16-bit", (512, 4096, 512)): {"64x64x128/4/6": 9.65, "128x128x64/8/5/split6": 10.1},
    ("16-bit", (128, 16384, 128)): {"64x32x128/4/8/split8": 6.3, "64x64x128/4/6": 31.7},
    ("16-bit", (512, 8192, 32)): {"64x32x128/4/8/split8": 5.1},
    ("16-bit", (2048, 8192, 32)): {"64x32x128/4/4/split4": 11.5},
    ("16-bit", (2048, 2048, 32)): {"64x32x128/4/4/split4": 5.3, "64x32x128/4/8": 6.9},
    ("16-bit", (128, 8192, 512)): {"64x64x128/4/6/split4": 7.0},
    ("16-bit", (512, 8192, 128)): {"64x64x128/4/6/split4": 7.0},
    ("16-bit", (128, 2048, 512)): {"64x64x128/4/6/split4": 4.2},
    ("16-bit", (256, 4096, 256)): {"64x64x128/4/6/split4": 5.0},
    ("16-bit", (8192, 8192, 32)): {"64x32x128/4/8": 35.0},
    ("16-bit", (1, 4096, 16384)): {"16x128x128/8/6/few": 32.6},
    ("16-bit", (1, 16384, 4096)): {"16x64x128/4/10/few/split2": 32.4},
    ("16-bit", (16, 4096, 4096)): {"16x64x128/4/10/few/split2": 10.4},
    ("16-bit", (32, 8192, 8192)): {"32x64x128/4/9/few": 33.6},
    ("16-bit", (32, 2048, 8192)): {"32x64x128/4/9/few": 10.8},
    ("16-bit", (32, 8192, 2048)): {"32x64x128/4/4/few/split4": 11.0},
    ("16-bit", (32, 2048, 2048)): {"32x64x128/4/4/few/split4": 5.1},
    ("16-bit", (32, 8192, 512)): {"32x64x128/4/9/few/split8": 5.0},
    ("16-bit", (8192, 128, 8192)): {P128: 45.4, P192: 46.5, RESIDENT: 50.6, "128x128x64/4/3": 62.9},
    ("16-bit", (4096, 128, 4096)): {P128: 13.7, RESIDENT: 14.8, P192: 15.1, "128x128x64/4/3": 16.8},
    ("tf32", (1000, 1028, 1020)): {"128x64x32/4/4": 20.0, "128x128x32/4/3": 25.9},
    ("tf32", (2048, 2048, 2048)): {T256: 49.8, T192: 71.1, "256x128x32/8/3": 52.3},
    ("tf32", (4096, 4096, 4096)): {T256: 333.5, T192: 382.0, "256x128x32/8/3": 361.8},
    ("tf32", (8192, 8192, 8192)): {T192: 2689.5, T256: 2909.8, "256x128x32/8/3": 3174.0},
}


@pytest.mark.parametrize(("kind", "shape"), MEASURED)
def test_a_product_gets_the_tile_that_was_quickest(tma, monkeypatch, kind, shape):
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)
    m, k, n = shape
    configs, dtype = (tma.half_configs(True, m, k, n), torch.float16) if kind == "16-bit" else (tma.TF32_CONFIGS, torch.float32)
    by_name = {c.name: c for c in configs}
    times = MEASURED[kind, shape]
    chosen = matmul_config.quickest(configs, m, n, k, torch.empty(1, dtype=dtype))
    assert times[chosen.name] <= 1.03 * min(times.values())
    for name, microseconds in times.items():
        if name in by_name:
            assert matmul_config.busy_us(by_name[name], m, n, k, 132) == pytest.approx(microseconds, rel=0.3), name


def test_large_products_that_warpgroups_were_not_measured_at_go_through_resident_programs(tma, monkeypatch):
    """On later GPUs, and where rows straddle lines of the L2."""
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)
    x = torch.empty(1, dtype=torch.bfloat16)
    for hopper, sizes, names in (
        (False, (4096, 6144, 8192), {RESIDENT}),
        (True, (5000, 8200), {RESIDENT}),
        (True, (4096, 6144, 8192), {P128, P192}),
    ):
        assert {matmul_config.quickest(tma.half_configs(hopper, n, n, n), n, n, n, x).name for n in sizes} == names
    assert not any(c.pingpong for k, n in ((4096, 4104), (4104, 4096)) for c in tma.half_configs(True, 4096, k, n))


def test_blocks_share_a_long_k_of_few_tiles_alone(tma, monkeypatch):
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)
    x = torch.empty(1, dtype=torch.float16)
    for m, k, n in ((64, 4096, 4096), (512, 4096, 512), (1024, 8192, 1024), (512, 16384, 4096)):
        assert matmul_config.quickest(tma.half_configs(True, m, k, n), m, n, k, x).split == 1, (m, k, n)
    # Which measured quickest, if in half to two thirds of what the model says: 3.3 us, 4.0 by 64x64x128/4/6/split4; 4.5.
    for (m, k, n), name in {(128, 2048, 128): "64x32x128/4/8/split8", (32, 8192, 128): "32x64x128/4/9/few/split8"}.items():
        assert matmul_config.quickest(tma.half_configs(True, m, k, n), m, n, k, x).name == name
    offered = {shape: configs for shape in LARGE_PRODUCTS if (configs := tma.half_configs(True, *shape))}
    on_a_gpu = {matmul_config.quickest(configs, m, n, k, x) for (m, k, n), configs in offered.items()}
    assert on_a_gpu >= {c for c in tma.HALF_CONFIGS if c.split > 1 or c.few or c.BN == 32}, "each is tested there"


def test_products_that_no_tile_was_measured_for_go_through_pointers(tma):
    for shape in ((16, 1024, 16384), (1, 1024, 1024), (128, 1024, 512), (512, 256, 512)):
        assert tma.half_configs(True, *shape) == ()
    assert {(c.split > 1, c.few) for c in tma.half_configs(True, 128, 2048, 128)} == {(True, False)}
    assert {c.BM for c in tma.half_configs(True, 17, 2048, 128)} == {32}
    assert all(c.few for c in tma.half_configs(True, 1, 2048, 8))
    assert tma.half_configs(False, 16, 4096, 16384) == ()


def test_few_rows_of_a_short_k_have_a_tile_where_it_was_measured(tma):
    for shape in ((32, 256, 8192), (17, 256, 512), (32, 128, 8192), (32, 1024, 4096)):
        assert tma.half_configs(True, *shape) == (tma.SHORT,)
        assert tma.half_configs(False, *shape) == ()
    for shape in ((16, 256, 8192), (32, 120, 8192), (32, 256, 504), (32, 264, 2040), (32, 1032, 4096), (33, 256, 2048)):
        assert tma.half_configs(True, *shape) == ()
    assert tma.SHORT not in tma.half_configs(True, 32, 2048, 2048)


def test_tiles_are_turned_round_where_128x256_would_fill_the_gpu_badly(tma, monkeypatch):
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)

    def taken(*shape):
        m, n, k = shape
        return matmul_config.quickest(tma.half_configs(True, m, k, n), m, n, k, torch.empty(1, dtype=torch.bfloat16))

    on_a_gpu = {taken(m, n, k).name for m, k, n in LARGE_PRODUCTS if m * k * n >= tma.LEAST_HALF}
    assert {P128, P192, TURNED, LONE} <= on_a_gpu, "all are tested there"
    assert not any(taken(*shape).turned for shape in ((512, 4096, 4096), (2048, 2048, 2048), (2560, 2560, 2560), (4096, 4096, 4096)))


def test_float32_products_of_few_columns_get_a_tile_too(tma, monkeypatch):
    from opwise.backends.triton_jit import matmul_config

    monkeypatch.setattr(matmul_config, "processors", lambda device: 132)
    taken = {n: matmul_config.quickest(tma.TF32_CONFIGS, 2056, n, 2056, torch.empty(1)).name for n in (1, 24, 32, 33, 4096)}
    assert all(taken[n].startswith("128x64x32") for n in (1, 24, 32, 33))
    assert not taken[4096].startswith("128x64x32")


def test_a_tile_too_large_for_the_gpu_is_not_taken(tma):
    from opwise.backends.triton_jit import matmul_config

    small, huge = tma.Config(64, 64, 32, 4, 3, k_ns=9.0), tma.Config(256, 256, 64, 8, 4)
    assert matmul_config.quickest((huge, small), 256, 256, 256, torch.empty(1)) is small
    with pytest.raises(ValueError, match="no tile fits 262144 bytes of shared memory: 256x256x64"):
        matmul_config.quickest((huge,), 256, 256, 256, torch.empty(1))


def test_both_factors_maps_round_and_the_products_does_not(tma):
    from opwise.backends.triton_jit import matmul_maps

    maps = [{"elem_type": 7, "block_size": [1, 1]} for _ in range(3)]
    matmul_maps.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=maps)), 3)
    assert [each["elem_type"] for each in maps] == [matmul_maps.TFLOAT32, matmul_maps.TFLOAT32, 7]
    for unknown in (None, [], [{}] * 3):
        with pytest.raises(RuntimeError, match="would cut TF32 factors"):
            matmul_maps.round_maps(SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=unknown)), 3)
