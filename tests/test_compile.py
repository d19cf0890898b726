"""Every kernel compiles for sm_80, sm_90 and sm_100, GPU or not: each backend's `compile_only(arch)`, in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.ops.spec import DTYPES

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCE = Path(__file__).resolve().parents[1] / "src"
DTYPE = re.compile("|".join(DTYPES))
UNAVAILABLE = 77  # the exit status by which the child says that the compiler is missing

CHILD = """
import importlib, json, sys
from opwise.backends.protocol import BackendUnavailable
try:
    found = importlib.import_module(sys.argv[1]).compile_only(sys.argv[2])
except BackendUnavailable as problem:
    print(problem)
    sys.exit(77)
print("FOUND", json.dumps({str(k): str(v) for k, v in found.items()} if hasattr(found, "items") else {}))
"""


def compiling_backends() -> list[str]:
    return [name for name, module in BACKENDS.items() if hasattr(importlib.import_module(module), "compile_only")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("backend", compiling_backends())
def test_every_kernel_compiles(backend: str, arch: str, tmp_path: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in {"TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM"}}
    clean |= {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-c", CHILD, BACKENDS[backend], arch]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, env=clean, cwd=tmp_path, check=False)
    if done.returncode == UNAVAILABLE:
        nvcc = shutil.which("nvcc") or "no nvcc on PATH"
        pytest.skip(f"{backend}: {done.stdout.strip()} ({nvcc})")
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    report = json.loads(line.removeprefix("FOUND "))
    assert all(any(op in kernel for kernel in report) for op in OPS), f"kernels of each op are compiled: {sorted(report)}"
    facts = [re.fullmatch(r"(\d+) registers, (\d+) bytes spilled, (\d+) instructions", line) for line in report.values()]
    assert all(facts), f"every compiler tells what it made: {report}"
    assert all(1 <= int(f[1]) <= 255 and int(f[3]) >= 8 for f in facts if f), report
    assert all(kernel.split("_")[0].split(":")[0] in OPS and DTYPE.search(kernel) for kernel in report), "its op and dtype are in its name"
