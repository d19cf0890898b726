"""numba-cuda-mlir behind the backend numba_cuda: the switch, and what its compiler makes without a GPU.

On a CPU its kernels run in fibres, as numba-cuda's do.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opwise.backends.numba_cuda.common.chosen import successor

SOURCE = Path(__file__).resolve().parents[1] / "src"
installed = pytest.mark.skipif(importlib.util.find_spec("numba_cuda_mlir") is None, reason="numba-cuda-mlir is not installed")

# One of each kind: intrinsics alone, shuffles, cp.async, mma, clusters, TMA and wgmma.
COMPILED = """
import importlib
for op, part in (("square", "bfloat16 vector"), ("gelu", "float16 scalar"), ("mean", "float32 vector"), ("softmax", "float16 1024 columns"),
                 ("softmax", "bfloat16 2 blocks of 192 a row"), ("matmul", "bfloat16 mma_64x64 unaligned"),
                 ("matmul", "float32 fma_64x64 unaligned"), ("matmul", "float16 wgmma 128x64")):
    kernel = importlib.import_module(f"opwise.backends.numba_cuda.{op}").kernels()[part]
    for arch in ("sm_80", "sm_90", "sm_100"):
        if kernel.runs_on(arch):
            print(f"{op}: {part}, {arch}: {kernel.report(arch)}")
"""

SHARED = """
from opwise.backends.numba_cuda.common.compiler import compiled, cuda, float32, int64, uint8, uint32
from opwise.backends.numba_cuda.common import ptx, tensor

def kernel(out, n):
    fixed, room = cuda.shared.array(32, float32), cuda.shared.array(0, uint8)
    fixed[cuda.threadIdx.x] = float32(n)
    cuda.syncthreads()
    ptx.store_word(out, tensor.shared_address(room))
    ptx.store_word(out + 4, ptx.bits_of(fixed[31 - cuda.threadIdx.x]))

for cc in ((8, 0), (9, 0), (10, 0)):
    text = compiled(kernel, (int64, int64), cc, (32, 1))
    print([line.strip() for line in text.splitlines() if "__dynamic_shmem__0" in line and ".shared ." in line])
"""


def said(*arguments: str) -> list[str]:
    environment = os.environ | {"OPWISE_NUMBA": "mlir", "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(("word", "expected"), [("mlir", True), ("cuda", False)])
def test_the_word_chooses(monkeypatch: pytest.MonkeyPatch, word: str, expected: bool) -> None:
    monkeypatch.setenv("OPWISE_NUMBA", word)
    assert successor.__wrapped__() is expected


@pytest.mark.parametrize("absent", ["numba", "numba_cuda_mlir"])
def test_without_a_word_numba_cuda_where_it_is_there(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.delenv("OPWISE_NUMBA", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else object())
    assert successor.__wrapped__() is (absent == "numba")


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWISE_NUMBA", "llvm")
    with pytest.raises(ValueError, match="OPWISE_NUMBA=llvm names no Numba: write cuda or mlir"):
        successor.__wrapped__()


@installed
def test_kernels_compile_without_a_gpu() -> None:
    lines = said("-c", COMPILED)
    assert len(lines) == 6 * 3 + 2, lines
    spilled = [int(line.partition(" bytes spilled")[0].rpartition(" ")[2]) for line in lines]
    assert max(spilled) <= 32, lines  # mean on sm_80: 16 bytes where numba-cuda spills none


@installed
def test_dynamic_shared_memory_lies_behind_static_arrays() -> None:
    for line in said("-c", SHARED):
        assert line == "['.extern .shared .align 16 .b8 __dynamic_shmem__0[];']"


@installed
def test_its_kernels_are_right_in_fibres() -> None:
    chosen = "test_right_in_fibres and (square or mean) or test_plain"
    lines = said("-m", "pytest", "-q", str(Path(__file__).with_name("test_numba_fibres.py")), "-k", chosen)
    assert " passed" in lines[-1], lines
    assert " skipped" not in lines[-1], lines
