"""Asks every compiler what it makes of every kernel, for each architecture: no GPU is needed, and no two machines differ."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks._parameters import ARCHITECTURES, BACKENDS, PRODUCT_DTYPES

Cells = dict[tuple[str, ...], dict[str, Any]]
COMPILE_S = 1800.0
# "23 registers, 0 bytes spilled, 112 instructions"; early commits did not count instructions
TOLD = re.compile(r"(\d+) registers, (\d+) bytes spilled(?:, (\d+) instructions)?")
DTYPE = re.compile("|".join(sorted(PRODUCT_DTYPES, key=len, reverse=True)))  # "tfloat32" before the "float32" in it
COMPILERS = ("triton", "numba", "numba-cuda", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "cupy-cuda12x", "cupy-cuda13x", "torch")
CACHE = Path(__file__).resolve().parents[1] / ".asv" / "compiled"


def compiled_cells(ops: Iterable[str]) -> Cells:
    """(op, backend, dtype, arch) -> status, reason, registers, spill_bytes, instructions, over all kernels of that op and dtype."""
    if importlib.util.find_spec("opwise.backends") is None:
        return {}
    with ThreadPoolExecutor(min(len(BACKENDS), os.cpu_count() or 1)) as pool:
        told = dict(zip(BACKENDS, pool.map(_told, BACKENDS), strict=True))
    cells: Cells = {}
    for op in ops:
        for backend, of_backend in told.items():
            for arch, lines in of_backend.items():
                for dtype in PRODUCT_DTYPES:
                    found = _summed(lines, op, dtype) if isinstance(lines, dict) else {"status": "failed", "reason": lines}
                    if found is not None:
                        cells[op, backend, dtype, arch] = found
    return cells


def _told(backend: str) -> dict[str, dict[str, str] | str]:
    """arch -> {kernel: what its compiler tells} or why it failed; nothing where this machine or this commit has no such compiler.

    Kept by what is compiled and by what compiles it: a commit that changed neither costs nothing.
    """
    from opwise.backends import BACKENDS as THEIRS
    from opwise.runner import Patience, Worker, WorkerLost

    if backend not in THEIRS:
        return {}
    kept = CACHE / f"{backend}-{_key(backend)}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text()))
    found: dict[str, dict[str, str] | str] = {}
    try:
        with Worker("cpu") as worker:
            for arch in ARCHITECTURES:
                answer = worker.ask("compile", (backend, arch), Patience(COMPILE_S))
                if isinstance(answer, str):  # no compiler here, or none in this backend
                    return {}
                found[arch] = answer
    except WorkerLost as lost:
        return {arch: found.get(arch, f"does not compile: {lost.reason}") for arch in ARCHITECTURES}
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(found))
    fresh.replace(kept)
    return found


def _key(backend: str) -> str:
    """Changes with the sources that the backend is compiled from, and with every compiler."""
    import opwise.backends
    import opwise.ops

    folder = Path(opwise.backends.__file__).parent
    files = _sources(folder / backend)
    if any("cuda_src" in path.read_text() for path in files):
        files += _sources(folder / "cuda_src")
    files += [*folder.glob("*.py"), *Path(opwise.ops.__file__).parent.glob("*.py")]
    h = hashlib.sha256(repr((ARCHITECTURES, [_version(name) for name in COMPILERS], _nvcc())).encode())
    for path in files:
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:20]


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _nvcc() -> str:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).is_file():
        return ""
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout


def _summed(lines: Mapping[str, str], op: str, dtype: str) -> dict[str, Any] | None:
    """None where no kernel of that op and dtype was compiled."""
    mine = [line for kernel, line in lines.items() if re.split("[_:]", kernel)[0] == op and DTYPE.findall(kernel)[:1] == [dtype]]
    facts = [match for match in map(TOLD.match, mine) if match]
    if not facts:
        return None
    found = {"status": "ok", "registers": max(int(f[1]) for f in facts), "spill_bytes": sum(int(f[2]) for f in facts)}
    counts = [int(f[3]) for f in facts if f[3]]
    return found | ({"instructions": sum(counts)} if len(counts) == len(facts) else {})
