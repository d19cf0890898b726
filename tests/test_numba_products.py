"""Which of Hopper's tiles a 16-bit product gets from numba_cuda, and what those tiles ask of a plan."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.matmul.kernels import wgmma

# By the model of CUDA C++'s kernels, which Numba's are in Python. Tiles by turns where a block has more than one,
# in more than one step of K, and rows are a multiple of 128 bytes apart.
MODELLED = {
    (1024, 1024, 1024): "128x64",
    (1536, 1536, 1536): "144x128",
    (3072, 3072, 3072): "pingpong_192x128",
    (6144, 6144, 6144): "pingpong_192x128",
    (8192, 8192, 8192): "pingpong_192x128",
    (8192, 2048, 8192): "pingpong_192x128",
    (3000, 3000, 3000): "pingpong_192x128_1x2",
    (4104, 520, 4104): "pingpong_192x128_1x2",
    (2056, 2056, 2056): "128x192_2x1",
    (8200, 8200, 8200): "pingpong_192x128_1x2",
    (5000, 5000, 5000): "pingpong_192x128_1x2",
    (2000, 2000, 2000): "128x256_2x1",
    (1000, 4096, 1000): "64x128_p2x1",
    (3000, 1024, 1000): "pingpong_192x128_1x2",
    (512, 4104, 4104): "128x192_2x1",
    (4096, 3000, 4096): "128x256",
    (4000, 4000, 4000): "128x256",
    (1280, 1280, 1280): "128x128",
    (512, 4096, 4096): "128x128",
    (1600, 1600, 1600): "128x192",
    (1024, 1024, 3072): "128x192",
    (1600, 8192, 2048): "128x256",
    (512, 8192, 512): "128x128_s6",
    (512, 16384, 512): "128x128_s6",
    (256, 8192, 512): "128x128_s8",
    (2304, 1536, 1024): "144x128",
    (2048, 8192, 512): "64x128_s1",
    (32, 2048, 8192): "64x64_s1",
    (64, 4096, 4096): "64x64_s2",
    (32, 8192, 2048): "64x64_s4",
    (128, 8192, 512): "64x64_s8",
    (1024, 8192, 1024): "64x128_s1",
    (4096, 4096, 128): "64x128_s2",
    (128, 4096, 4096): "64x64_s1",
    (128, 16384, 128): "64x64_s16",
    (256, 4096, 256): "64x64_s8",
    (4096, 4096, 512): "128x128",
}


@pytest.fixture
def tile_of(monkeypatch):
    """(m, k, n, dtype) -> the name of the tile on an H200."""
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    matmul = importlib.import_module("opwise.backends.numba_cuda.matmul")
    monkeypatch.setattr(matmul, "processors_of", lambda x: 132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))

    def chosen(m, k, n, dtype):
        a, b, out = (torch.empty(shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
        return matmul.hopper_tile(a, b, out).name

    return chosen


@pytest.mark.parametrize("shape", MODELLED, ids=lambda shape: "x".join(map(str, shape)))
def test_a_product_gets_the_tile_with_the_least_estimate(tile_of, shape) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert tile_of(*shape, dtype) == MODELLED[shape]


def test_a_tile_that_copies_cannot_bring_is_refused() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul_split")
    odd = replace(wgmma.SPLIT[0], name="64x96_s1", columns=96)
    with pytest.raises(ValueError, match="64x96_s1: 64 rows and 96 columns given, multiples of 64 are taken"):
        module.split_kernel("bfloat16", odd)
    small = replace(wgmma.SPLIT[1], inbox=4096)
    with pytest.raises(ValueError, match="64x64_s2: 8 units from 1 blocks do not fit into an inbox of 4096 bytes"):
        module.split_kernel("bfloat16", small)


def test_a_turned_tile_that_wgmma_cannot_take_is_refused() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul_turned")
    with pytest.raises(ValueError, match="144x128: 136 x 128, 6 stages given, multiples of 16 x 64"):
        module.turned_kernel("bfloat16", replace(wgmma.SWAP_AB[0], rows=136))


@pytest.mark.parametrize("m", [1, 16, 63, 64, 65, 127, 4096])
def test_a_kernel_waits_for_as_many_bytes_as_the_plans_boxes_bring(m: int) -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul_split")
    for tile in wgmma.SPLIT:
        of_a, of_b = launch(tile, "bfloat16", m, 4096, 4096, 132).matrices
        assert (of_a.box_columns, of_b.box_columns, of_b.box_rows) == (64, 64, tile.step_bytes // 2)
        boxes = of_a.box_rows * (tile.step_bytes // 128) + of_b.box_rows * (tile.columns // 64)
        whole, landing = tile.step_bytes * (tile.rows + tile.columns), module.landing
        assert int(getattr(landing, "py_func", landing)(m, tile.rows, whole, tile.step_bytes // 128)) == 64 * 2 * boxes
