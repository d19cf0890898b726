"""NVIDIA's disassemblers, nvdisasm and cuobjdump: from the CUDA toolkit, its wheels, or Triton."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REMEDY = "pip install triton, which brings both along, or install the CUDA toolkit and put its bin on PATH or set CUDA_HOME"


class ToolMissing(RuntimeError):
    """A disassembler is missing; the message says which and what to do."""


@cache
def tool(name: str) -> Path:
    """Path of the newest "nvdisasm" or "cuobjdump" of this machine: older ones do not know the newest architectures. Raises ToolMissing."""
    found = {path.resolve(): _version(path) for path in _candidates(name) if os.access(path, os.X_OK)}
    working = {path: version for path, version in found.items() if version}
    if not working:
        broken = f" ({', '.join(map(str, found))} does not run)" if found else ""
        raise ToolMissing(f"{name} was not found{broken}: {REMEDY}")
    return max(working, key=lambda path: working[path])


def output(name: str, *arguments: str | Path) -> str:
    """The tool's output. Raises ToolMissing, and RuntimeError with the tool's message if it fails."""
    path = tool(name)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path} refuses: {(done.stderr or done.stdout).strip().splitlines()[-1:] or ['no message']}")
    return done.stdout


def _candidates(name: str) -> Iterator[Path]:
    on_path = shutil.which(name)
    if on_path is not None:
        yield Path(on_path)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "bin", name)
    yield Path("/usr/local/cuda/bin", name)
    for package, pattern in (("nvidia", f"*/bin/{name}"), ("triton", f"backends/nvidia/bin/{name}")):
        spec = importlib.util.find_spec(package)  # finds without importing
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from Path(folder).glob(pattern)


def _version(path: Path) -> tuple[int, ...]:
    """() where it does not run: a tool of another system or processor."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return tuple(map(int, found[1].split("."))) if found else ()
