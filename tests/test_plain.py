"""The variant `plain`: what its texts become for each compiler. Whether it is right is asked in test_implementations, as of all."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opwise.backends.cuda_src import plain
from opwise.backends.protocol import UnsupportedWorkload

CUDA_TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
@pytest.mark.parametrize("op", plain.SUMMARIES)
def test_nvcc_takes_every_kernel(op: str, tmp_path: Path) -> None:
    kernels = [plain.typed(op, f"{op}_{i}", (t, "float") if op == "mean" else (t,)) for i, t in enumerate(CUDA_TYPES.values())]
    source = tmp_path / f"{op}.cu"
    source.write_text("\n".join(["#include <cuda_fp16.h>\n#include <cuda_bf16.h>", *kernels]))
    done = subprocess.run(
        ["nvcc", "-arch=sm_80", "-cubin", "-o", str(tmp_path / "cubin"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_one_text_is_typed_for_any_library() -> None:
    text = plain.typed("mean", "mine", ("__half", "float"))
    assert "#define In __half\n#define Out float\n" in text
    assert 'extern "C" __global__ void mine(const In *x, Out *out,' in text
    assert text.endswith("#undef In\n#undef Out\n")
    assert "template" not in text


def test_a_product_higher_than_a_grid_is_refused() -> None:
    a, b, out = (torch.empty(shape, device="meta") for shape in ((1 << 20, 1), (1, 1), (1 << 20, 1)))
    with pytest.raises(UnsupportedWorkload, match="1048560 rows of A at most, given 1048576: use the unnamed variant"):
        plain.steps("matmul", a, b, out)
