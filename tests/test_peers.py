"""The comparison with other people's kernels: what is compared, and what counts as behind. Its times need a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from script_modules import script

from opwise.ops import OPS, Workload

kernels = script("peers_kernels")  # first: peers imports it by that name
peers = script("peers")

QUOTED: dict[str, Any] = {"measured": []}


@pytest.mark.parametrize("name", [*peers.SOFTMAX, *peers.MATMUL])
def test_each_workload_is_one_of_ours(name: str) -> None:
    workload = Workload.parse(name)
    assert workload.dtype in OPS[workload.op].dtypes
    assert str(workload) == name


def test_a_share_is_of_the_yardstick_beside_it() -> None:
    found = QUOTED | {"workload": "softmax/4x4/float32", "us": {"copy": 10.0, "triton_jit": 12.5, "numba_cuda": 20.0}}
    assert peers.shares(found, (1000.0, 700.0, None)) == ("triton_jit", 0.8, 0.7)
    product = QUOTED | {"workload": "matmul/4x4x4/bfloat16", "us": {"torch_eager": 10.0, "cupy_raw": 8.0}}
    assert peers.shares(product, (500.0, 510.0, None)) == ("cupy_raw", 1.25, 1.02)


def test_what_a_peer_refuses_is_an_empty_cell_and_no_rival() -> None:
    found = QUOTED | {"workload": "softmax/4x4/float32", "us": {"copy": 10.0, "triton_jit": 12.5}}
    assert peers.shares(found, (1000.0, None, None)) == ("triton_jit", 0.8, 0.0)
    assert (
        peers.told([found], {"softmax/4x4/float32": (1000.0, None, 900.0)})[-1]
        == "| `softmax/4x4/float32` | triton_jit | 0.800 |  | 0.900 quoted |"
    )


def test_a_peer_measured_beside_ours_counts_by_that_and_not_by_what_is_quoted() -> None:
    us = {"copy": 10.0, "triton_jit": 12.5, "torch_eager": 5.0, "quack": 8.0}
    found = {"workload": "softmax/4x4/float32", "us": us, "measured": ["quack", "liger"]}
    published = (1000.0, 500.0, None)
    assert peers.standing(found, published) == {
        "quack": {"share": 1.25, "source": "measured"},
        "liger": {"share": None, "source": "measured"},  # it was there, and refused the shape here as where it was measured before
    }
    assert peers.shares(found, published) == ("triton_jit", 0.8, 1.25)
    assert (
        peers.told([found], {"softmax/4x4/float32": published})[-1] == "| `softmax/4x4/float32` | triton_jit | 0.800 | 1.250 measured |  |"
    )


def test_each_peer_with_a_kernel_has_a_column() -> None:
    assert set(peers.PEERS) == set(kernels.MODULES)
    assert all(set(makers) <= set(peers.PEERS) for makers in kernels.KERNELS.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: the comparison would run")
def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run([sys.executable, Path(peers.__file__)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch sees no GPU" in done.stderr
