"""The variant `plain`: what its texts become for each compiler. Whether it is right is asked in test_implementations, as of all."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

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


def test_load_inline_is_given_what_it_takes_by_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parameters come and go in the middle of its list: functions was the fourth, then sycl_sources."""
    from torch.utils import cpp_extension

    from opwise.backends.torch_inline import extension as build
    from opwise.backends.torch_inline import plain as inline
    from opwise.backends.torch_inline import toolchain

    given: dict[str, object] = {}
    signature = inspect.signature(cpp_extension.load_inline)
    monkeypatch.setattr(cpp_extension, "load_inline", lambda *a, **k: given.update(signature.bind(*a, **k).arguments))
    monkeypatch.setattr(build, "build_root", lambda: tmp_path)
    monkeypatch.setattr(build, "toolkit", lambda tools, folder: contextlib.nullcontext("-L"))
    monkeypatch.setattr(toolchain, "toolchain", lambda: SimpleNamespace(check_for_torch=lambda: None))
    inline.extension.__wrapped__()
    assert set(given["functions"]) == {f"{way}_{op}" for op in plain.SUMMARIES for way in ("call", "launch")}  # type: ignore[arg-type]
    assert given["cuda_sources"] == inline.source()
    assert given.get("sycl_sources") is None
