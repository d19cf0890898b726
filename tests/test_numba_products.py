"""Which of Hopper's tiles a 16-bit product gets from numba_cuda: the one that was fastest where they were timed."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

# us on one H200, torch 2.11, L2 flushed, interleaved, medians of 15: (m, k, n) -> tile -> time.
MEASURED = {
    (512, 8192, 512): {"128x64": 25.82, "64x64_s2": 19.74, "64x64_s4": 27.58, "64x64_s16": 41.31},
    (1024, 8192, 1024): {"128x64": 38.18, "64x64_s2": 63.17, "64x64_s4": 72.58, "64x64_s16": 146.85},
    (128, 16384, 128): {"128x64": 43.97, "64x64_s2": 27.87, "64x64_s4": 17.41, "64x64_s16": 11.30},
    (256, 4096, 256): {"128x64": 15.65, "64x64_s2": 12.42, "64x64_s4": 9.95, "64x64_s16": 13.66},
    (64, 4096, 4096): {"128x64": 26.43, "64x64_s2": 15.55, "64x64_s4": 19.68, "64x64_s16": 31.94},
    (128, 4096, 4096): {"128x64": 17.28, "64x64_s2": 20.00, "64x64_s4": 28.51, "64x64_s16": 57.12},
    (72, 4160, 520): {"128x64": 20.00, "64x64_s2": 13.41, "64x64_s4": 10.56, "64x64_s16": 15.94},
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


@pytest.mark.parametrize("shape", MEASURED, ids=lambda shape: "x".join(map(str, shape)))
def test_a_product_gets_the_tile_that_was_fastest(tile_of, shape) -> None:
    times = MEASURED[shape]
    for dtype in (torch.bfloat16, torch.float16):
        assert tile_of(*shape, dtype) == min(times, key=times.__getitem__)


@pytest.mark.parametrize(("side", "tile"), [(1024, "128x64"), (2048, "128x256"), (4096, "128x256")])
def test_products_of_many_tiles_share_no_k(tile_of, side, tile) -> None:
    assert tile_of(side, side, side, torch.bfloat16) == tile


def test_no_block_of_a_cluster_is_without_a_step_of_k(tile_of) -> None:
    split = {tile.name: tile.split for tile in importlib.import_module("opwise.backends.numba_cuda.matmul_split").TILES}
    for k in range(8, 1032, 8):
        assert 64 * split.get(tile_of(64, k, 64, torch.bfloat16), 1) <= max(k, 64)


def test_a_tile_that_copies_cannot_bring_is_refused() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul_split")
    odd = replace(module.TILES[0], name="64x96_s2", columns=96)
    with pytest.raises(ValueError, match="64x96_s2: 64 rows and 96 columns given, multiples of 64 are taken"):
        module.split_kernel("bfloat16", odd)
