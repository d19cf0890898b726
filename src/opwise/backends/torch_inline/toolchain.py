"""The build tools: nvcc (the system's or the PyPI wheel nvidia-cuda-nvcc), the host compiler, ninja."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from opwise.backends.cuda_src.sources import FOLDER, STANDARD, resource_facts, target, units
from opwise.backends.protocol import BackendUnavailable

INSTALL_NVCC = "install the CUDA toolkit and put nvcc on PATH or set CUDA_HOME, or pip install 'opwise[nvcc13]'"


@dataclass(frozen=True)
class Toolchain:
    """cuda_home holds bin/nvcc, include and lib or lib64."""

    cuda_home: Path
    nvcc_version: str
    cxx: str
    cxx_version: str

    @property
    def nvcc(self) -> Path:
        return self.cuda_home / "bin" / "nvcc"

    def nvcc_flags(self, arch: str) -> list[str]:
        """nvcc's flags for an architecture (as "sm_90"): machine code for it alone, so that loading compiles nothing.

        nvcc 13 hides a library's kernels by default; here Python looks them up by name. Raises ValueError for a bad arch.
        """
        found = re.fullmatch(r"sm_(\d+[af]?)", target(arch))
        if found is None:
            raise ValueError(f"{arch!r} is no architecture: write sm_80, sm_90 or sm_100")
        visible = ["--device-entity-has-hidden-visibility=false"] if int(self.nvcc_version.split(".")[0]) >= 13 else []
        return [f"-std={STANDARD}", f"-gencode=arch=compute_{found[1]},code=sm_{found[1]}", *visible]

    def check_for_torch(self) -> None:
        """Raises BackendUnavailable if torch extensions cannot be built: torch has another major CUDA version, or ninja is missing."""
        wanted = (torch.version.cuda or "").split(".")[0]
        if self.nvcc_version.split(".")[0] != wanted:
            raise BackendUnavailable(
                f"nvcc in {self.cuda_home} is of CUDA {self.nvcc_version}, torch was built with CUDA {torch.version.cuda}",
                f"set CUDA_HOME to a CUDA {wanted} toolkit",
            )
        if shutil.which("ninja") is None:
            raise BackendUnavailable("ninja is not on PATH", "pip install ninja, and run with its environment's bin on PATH")


@cache
def toolchain() -> Toolchain:
    """The first complete toolkit found. Raises BackendUnavailable if nvcc or the host compiler is missing."""
    # An nvcc on PATH may be a script in /usr/local/bin: a toolkit must have headers, too.
    complete = (home for home in _cuda_homes() if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime.h").exists())
    home = next(complete, None)
    if home is None:
        raise BackendUnavailable("nvcc was not found", INSTALL_NVCC)
    said = _output([str(home / "bin" / "nvcc"), "--version"], INSTALL_NVCC)
    version = re.search(r"release [\d.]+, V([\d.]+)", said)
    if version is None:
        raise BackendUnavailable(f"{home / 'bin' / 'nvcc'} --version says {said!r}", INSTALL_NVCC)
    cxx = os.environ.get("CXX", "c++")  # as torch picks it
    if shutil.which(cxx) is None:
        raise BackendUnavailable(f"the host compiler {cxx!r} was not found", "install g++ (Debian, Ubuntu: apt install g++), or set CXX")
    return Toolchain(home, version[1], cxx, _output([cxx, "-dumpfullversion", "-dumpversion"], "set CXX to g++ or clang++").strip())


def _cuda_homes() -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name])
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
        yield Path(on_path).parent.parent
    yield Path("/usr/local/cuda")
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels.submodule_search_locations or ()) if wheels else ():
        yield from sorted(Path(folder).glob("cu[0-9]*"), reverse=True)


def _output(command: list[str], remedy: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BackendUnavailable(f"{command[0]} does not run ({error})", remedy) from error


def compile_units(arch: str) -> dict[str, str]:
    """Compiles every unit and discards the code. Kernel -> registers, spills, instructions, as resource_facts."""
    tools = toolchain()
    flags, texts = [*tools.nvcc_flags(arch), f"-I{FOLDER}", "-Xptxas", "-v"], units(arch)
    facts: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="opwise-compile-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compiled(unit: str) -> tuple[str, bytes]:
            source = Path(folder) / f"unit_{unit}.cu"
            source.write_text(texts[unit])
            command = [str(tools.nvcc), "-cubin", *flags, str(source), "-o", f"{folder}/{unit}.cubin"]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"nvcc refuses {unit} for {arch}: {done.stdout.strip()}")
            return done.stdout, Path(folder, f"{unit}.cubin").read_bytes()

        for log, cubin in pool.map(compiled, texts):
            facts.update(resource_facts(log, cubin))
    return facts
