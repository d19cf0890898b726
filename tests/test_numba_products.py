"""Which of Hopper's tiles a 16-bit product gets from numba_cuda: the one that was fastest where they were timed."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

# us on one H200, torch 2.11, L2 flushed, interleaved, medians of 15: (m, k, n) -> tile -> time.
MEASURED = {
    (512, 8192, 512): {"128x64": 26.02, "64x64_s1": 20.26, "64x64_s2": 19.71, "64x64_s4": 24.22, "64x64_s16": 41.31, "64x128_s2": 20.70,
                       "64x256_s2": 28.42, "128x128_s4": 18.91, "128x128": 43.20},
    (1024, 8192, 1024): {"128x64": 35.78, "64x64_s1": 51.33, "64x64_s2": 62.82, "64x64_s4": 73.28, "64x64_s16": 146.85, "64x128_s2": 45.82,
                         "64x256_s2": 31.52, "128x128_s4": 52.00, "128x128": 44.51},
    (4096, 4096, 128): {"128x64": 19.52, "64x64_s1": 19.49, "64x64_s2": 19.42, "64x64_s4": 27.49, "64x128_s2": 16.86, "64x256_s2": 28.51,
                        "128x128_s4": 25.54, "128x128": 25.70},
    (128, 4096, 4096): {"128x64": 16.51, "64x64_s1": 15.01, "64x64_s2": 19.23, "64x64_s4": 28.19, "64x64_s16": 57.12, "64x128_s2": 18.85,
                        "64x256_s2": 21.89, "128x128_s4": 25.25, "128x128": 25.38},
    (64, 4096, 4096): {"128x64": 26.85, "64x64_s1": 14.98, "64x64_s2": 15.90, "64x64_s4": 19.94, "64x64_s16": 31.94, "64x128_s2": 16.90,
                       "64x256_s2": 21.73, "128x128_s4": 26.85, "128x128": 25.50},
    (256, 4096, 256): {"128x64": 15.84, "64x64_s1": 13.15, "64x64_s2": 12.26, "64x64_s4": 10.05, "64x64_s16": 13.66, "64x128_s2": 13.02,
                       "64x256_s2": 18.91, "128x128_s4": 13.79, "128x128": 24.83},
    (72, 4160, 520): {"128x64": 20.26, "64x64_s1": 17.73, "64x64_s2": 13.02, "64x64_s4": 10.78, "64x64_s16": 15.94, "64x128_s2": 16.45,
                      "64x256_s2": 23.90, "128x128_s4": 14.30, "128x128": 26.11},
    (128, 16384, 128): {"128x64": 43.97, "64x64_s2": 27.87, "64x64_s4": 17.41, "64x64_s16": 11.30},
}  # fmt: skip
# What nobody timed against the tiles above keeps the tile that is on record, the fastest or level with cuBLAS there.
RECORDED = {
    (1024, 1024, 1024): "128x64",
    (1536, 1536, 1536): "144x128",
    (2048, 2048, 2048): "128x256",
    (3072, 3072, 3072): "128x192",
    (4096, 4096, 4096): "128x256",
    (128, 2048, 2048): "64x64_s2",
    (512, 8192, 2048): "128x64",
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


@pytest.mark.parametrize("shape", MEASURED, ids=lambda shape: "x".join(map(str, shape)))
def test_a_product_gets_the_tile_that_was_fastest(tile_of, shape) -> None:
    times = MEASURED[shape]
    for dtype in (torch.bfloat16, torch.float16):
        assert tile_of(*shape, dtype) == min(times, key=times.__getitem__)


@pytest.mark.parametrize("shape", RECORDED, ids=lambda shape: "x".join(map(str, shape)))
def test_other_products_keep_the_tile_on_record(tile_of, shape) -> None:
    assert tile_of(*shape, torch.bfloat16) == RECORDED[shape]


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


@pytest.mark.parametrize("m", [1, 16, 63, 64, 65, 127, 4096])
def test_a_kernel_waits_for_as_many_bytes_as_the_plans_boxes_bring(m: int) -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul_split")
    for tile in module.TILES:
        of_a, of_b = module.matmul_plan.launch(tile, "bfloat16", m, 4096, 4096, 132).matrices
        assert (of_a.box_columns, of_b.box_columns) == (64, 64)
        boxes = of_a.box_rows + of_b.box_rows * (tile.columns // 64)
        whole = 64 * 2 * (tile.rows + tile.columns)
        assert int(getattr(module.landing, "py_func", module.landing)(m, tile.rows, whole)) == 64 * 2 * boxes
