"""Which of Hopper's tiles a 16-bit product gets from numba_cuda, and what those tiles ask of a plan."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

# By the model of CUDA C++'s kernels, which Numba's are in Python.
MODELLED = {
    (1024, 1024, 1024): "128x64",
    (1536, 1536, 1536): "128x192",
    (3072, 3072, 3072): "128x192",
    (6144, 6144, 6144): "128x256",
    (8192, 8192, 8192): "128x256",
    (8192, 2048, 8192): "128x256",
    (3000, 3000, 3000): "128x192",
    (4104, 520, 4104): "128x256",
    (2056, 2056, 2056): "128x192",
    (8200, 8200, 8200): "128x256",
    (5000, 5000, 5000): "128x256",
    (2000, 2000, 2000): "128x256",
    (1000, 4096, 1000): "128x64",
    (3000, 1024, 1000): "128x256",
    (512, 4104, 4104): "128x256",
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
    (2304, 1536, 1024): "128x192",
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
def tile_of():
    """(m, k, n, dtype) -> the name of the configuration on an H200."""
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    plan = importlib.import_module("opwise.backends.numba_cuda.matmul.plan")
    return lambda m, k, n, kind: plan.name_of(plan.planned(m, k, n, kind, True, 132, (9, 0)))


@pytest.mark.parametrize("shape", MODELLED, ids=lambda shape: "x".join(map(str, shape)))
def test_a_product_gets_the_tile_with_the_least_estimate(tile_of, shape) -> None:
    for dtype in ("bfloat16", "float16"):
        assert tile_of(*shape, dtype) == MODELLED[shape]


def test_a_tile_that_copies_cannot_bring_is_refused() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul.kernels.split_k")
    with pytest.raises(ValueError, match="64x96_s1: 64 rows and 96 columns given, multiples of 64 are taken"):
        module.kernel("bfloat16", replace(split_k()[0], name="64x96_s1", columns=96))
    with pytest.raises(ValueError, match="64x64_s2: 8 units from 1 blocks do not fit into an inbox of 4096 bytes"):
        module.kernel("bfloat16", replace(split_k()[1], inbox=4096))


@pytest.mark.parametrize("m", [1, 16, 63, 64, 65, 127, 4096])
def test_a_kernel_waits_for_as_many_bytes_as_its_boxes_bring(m: int) -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    module = importlib.import_module("opwise.backends.numba_cuda.matmul.kernels.split_k")
    for tile in split_k():
        of_a, of_b = module.matrices(tile, m, 4096, 4096)
        assert (of_a.box_columns, of_b.box_columns, of_b.box_rows) == (64, 64, tile.step_bytes // 2)
        boxes = of_a.box_rows * (tile.step_bytes // 128) + of_b.box_rows * (tile.columns // 64)
        whole, landing = tile.step_bytes * (tile.rows + tile.columns), module.landing
        assert int(getattr(landing, "py_func", landing)(m, tile.rows, whole, tile.step_bytes // 128)) == 64 * 2 * boxes


def split_k() -> Any:
    return importlib.import_module("opwise.backends.numba_cuda.matmul.configurations").SPLIT_K


@pytest.mark.parametrize("kind", ["float32", "tfloat32", "float16", "bfloat16"])
def test_without_extra_the_plan_has_the_main_tiles_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    plan = importlib.import_module("opwise.backends.numba_cuda.matmul.plan")
    extra = set(importlib.import_module("opwise.backends.numba_cuda.matmul.extra").COSTS[kind if "32" in kind else "16-bit", True])
    product = 16, 4096, 4096, kind, False, 132, (9, 0)
    assert extra & set(plan.any_gpu_tiles(kind, (9, 0)))
    monkeypatch.setenv("OPWISE_EXTRA", "off")
    plan.estimates.cache_clear()
    assert not extra & set(plan.any_gpu_tiles(kind, (9, 0)))
    assert plan.planned(*product)._replace(split=1) not in extra
    plan.estimates.cache_clear()
