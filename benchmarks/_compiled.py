"""Asks every compiler what it makes of every kernel, for each architecture: no GPU is needed, and no two machines differ."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks._order import Order, counting
from benchmarks._parameters import PRODUCT_DTYPES

Cells = dict[tuple[str, ...], dict[str, Any]]
COMPILE_S = 1800.0
# "23 registers, 0 bytes spilled, 112 instructions"; early commits did not count instructions
TOLD = re.compile(r"(\d+) registers, (\d+) bytes spilled(?:, (\d+) instructions)?")
DTYPE = re.compile("|".join(sorted(PRODUCT_DTYPES, key=len, reverse=True)))  # "tfloat32" before the "float32" in it
COMPILERS = ("triton", "numba", "numba-cuda", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "cupy-cuda12x", "cupy-cuda13x", "torch")
CACHE = Path(__file__).resolve().parents[1] / ".asv" / "compiled"


def compiled_cells(order: Order) -> Cells:
    """(op, backend, dtype, arch) -> status, reason, registers, spill_bytes, instructions, over all kernels of that op and dtype."""
    if importlib.util.find_spec("opwise.backends") is None:
        return {}
    wanted: dict[tuple[str, str], set[str]] = {}  # (backend, arch) -> ops
    asked = [cell for cell in order.compiled if not order.quick or cell[3] == order.compiled[0][3]]
    for op, backend, _, arch in asked:
        wanted.setdefault((backend, arch), set()).add(op)
    step = counting(order.say, "compiling, backend by backend and architecture", len(wanted))
    told: dict[tuple[str, str, str], dict[str, str] | str] = {}
    backends = list(dict.fromkeys(backend for backend, _ in wanted))

    def of_backend(backend: str) -> None:
        asking = Asking(backend, order.say)
        for arch in dict.fromkeys(a for b, a in wanted if b == backend):
            told.update({(op, backend, arch): lines for op, lines in asking.told(arch, wanted[backend, arch]).items()})
            step()

    with ThreadPoolExecutor(max(1, min(len(backends), os.cpu_count() or 1))) as pool:
        list(pool.map(of_backend, backends))
    cells: Cells = {}
    for op, backend, dtype, arch in asked:
        lines = told.get((op, backend, arch), {})
        found = _summed(lines, op, dtype) if isinstance(lines, dict) else {"status": "failed", "reason": lines}
        if found is not None:
            cells[op, backend, dtype, arch] = found
    return cells


class Asking:
    """One backend's compilers. What they said is kept by op, by what is compiled and by what compiles it: a commit that changed neither
    costs nothing, and one op costs its own kernels."""

    def __init__(self, backend: str, say: Callable[[str], None]) -> None:
        from opwise.backends import BACKENDS as THEIRS

        self.backend, self.say = backend, say
        self.key = _key(backend) if backend in THEIRS else ""

    def told(self, arch: str, ops: Iterable[str]) -> dict[str, dict[str, str] | str]:
        """op -> {kernel: what its compiler tells}, or why it failed; nothing where this machine or this commit has no such compiler."""
        if not self.key:
            return {}
        found: dict[str, dict[str, str] | str] = {
            op: json.loads(kept.read_text()) for op in ops if (kept := self._kept(arch, op)).is_file()
        }
        missing = sorted(set(ops) - set(found))
        if not missing:
            return found
        self.say(f"asking the compilers of {self.backend} about {', '.join(missing)} for {arch}")
        answer = self._asked(arch, missing)
        if answer is None or isinstance(answer, str):
            return found | ({} if answer is None else dict.fromkeys(missing, answer))
        for op in missing:
            lines = {kernel: line for kernel, line in answer.items() if _op_of(kernel) == op}
            found[op] = lines
            self._keep(arch, op, lines)
        return found

    def _asked(self, arch: str, ops: list[str]) -> dict[str, str] | str | None:
        """None: no compiler here, or none in this backend. A text: it failed."""
        from opwise.inspecting.narrow import compiled_lines
        from opwise.runner import Patience, Worker, WorkerLost

        try:
            with Worker("cpu") as worker:
                answer = worker.ask("apply", (compiled_lines, self.backend, arch, ops), Patience(COMPILE_S))
        except WorkerLost as lost:
            return f"does not compile: {lost.reason}"
        return None if isinstance(answer, str) else dict(answer)

    def _kept(self, arch: str, op: str) -> Path:
        return CACHE / f"{self.backend}-{op}-{arch}-{self.key}.json"

    def _keep(self, arch: str, op: str, lines: Mapping[str, str]) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        kept = self._kept(arch, op)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(lines))
        fresh.replace(kept)


def _op_of(kernel: str) -> str:
    return re.split("[_:]", kernel)[0]


def _key(backend: str) -> str:
    """Changes with the sources that the backend is compiled from, and with every compiler."""
    import opwise.backends
    import opwise.ops

    folder = Path(opwise.backends.__file__).parent
    files = _sources(folder / backend)
    if any("cuda_src" in path.read_text() for path in files):
        files += _sources(folder / "cuda_src")
    files += _sources(folder / "gemm")
    files += [*folder.glob("*.py"), *Path(opwise.ops.__file__).parent.glob("*.py")]
    h = hashlib.sha256(repr(([_version(name) for name in COMPILERS], _nvcc())).encode())
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
    mine = [line for kernel, line in lines.items() if _op_of(kernel) == op and DTYPE.findall(kernel)[:1] == [dtype]]
    facts = [match for match in map(TOLD.match, mine) if match]
    if not facts:
        return None
    found = {"status": "ok", "registers": max(int(f[1]) for f in facts), "spill_bytes": sum(int(f[2]) for f in facts)}
    counts = [int(f[3]) for f in facts if f[3]]
    return found | ({"instructions": sum(counts)} if len(counts) == len(facts) else {})
