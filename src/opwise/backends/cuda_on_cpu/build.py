"""Compiled once for these sources, this torch and this compiler, by torch.utils.cpp_extension; later processes load the file."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from opwise.backends.cuda_on_cpu import rewrite
from opwise.backends.protocol import BackendUnavailable

log = logging.getLogger(__name__)
HERE = Path(__file__).parent
ARCHITECTURE = 800  # what __CUDA_ARCH__ says: an A100's instructions, less what ptx.h lacks
STANDARD = "-std=c++20"
# Thread sanitizer's instrumentation without its runtime: every access calls a function, and runtime.cpp defines those functions.
# A product and a sum are contracted where a kernel says so, and not where the compiler likes.
FLAGS = ("-O1", STANDARD, "-fsanitize=thread", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
_refused: dict[Path, str] = {}
REMEDY = "install g++ 10 or later (Debian, Ubuntu: apt install g++) or clang++ 12 or later, and set CXX where it is not c++"


@dataclass(frozen=True)
class Compiler:
    command: str
    version: str


@cache
def compiler() -> Compiler:
    """The host's C++ compiler. Raises BackendUnavailable where it is missing, too old for C++20, or ninja is missing."""
    command = os.environ.get("CXX", "c++")  # as torch picks it
    if shutil.which(command) is None:
        raise BackendUnavailable(f"the stand-in compiles CUDA C++ for the CPU, and the C++ compiler {command!r} was not found", REMEDY)
    version = _said([command, "-dumpfullversion", "-dumpversion"])[1].strip()
    status, said = _said([command, STANDARD, "-fsyntax-only", "-x", "c++", "-"], "#include <span>\nstatic_assert(__cplusplus > 201703L);\n")
    if status:
        told = next((line for line in said.splitlines() if "error" in line), said.strip()[:200])
        raise BackendUnavailable(f"the C++ compiler {command!r} (version {version}) has no C++20: {told}", REMEDY)
    with _ninja_on_path():
        if shutil.which("ninja") is None:
            raise BackendUnavailable("the stand-in is built by ninja, which is not on PATH", "pip install ninja")
    return Compiler(command, version)


def _said(command: list[str], text: str = "") -> tuple[int, str]:
    try:
        done = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise BackendUnavailable(f"the C++ compiler {command[0]!r} does not run ({error})", REMEDY) from error
    return done.returncode, done.stdout


def library(name: str, units: Mapping[str, str], *, folders: tuple[Path, ...] = (), binding: Path | None = None) -> Path:
    """The shared library of these units (name -> CUDA C++), built where it is not there yet; `folders` hold what they include.

    `binding` is a C++ source that goes along and makes the library a Python module, called as its file. Raises BackendUnavailable without a
    compiler, Unsupported for a construct without stand-in, RuntimeError with the compiler's message.
    """
    tools = compiler()
    texts = [
        *sorted(HERE.glob("*.cpp")),
        Path(rewrite.__file__),
        *(p for folder in (rewrite.INCLUDE, *folders) for p in sorted(folder.glob("*.[ch]*"))),
    ]
    key = hashlib.sha256(repr((name, sorted(units.items()), torch.__version__, sys.version, tools, FLAGS, os.uname().machine)).encode())
    for path in [*texts, *([binding] if binding else [])]:
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    name = f"{name}_{key.hexdigest()[:20]}"  # torch renames what it builds under one name twice in a process
    folder = _root() / name
    if folder in _refused:  # a compiler that said no says no again, half a minute later
        raise RuntimeError(_refused[folder])
    built, done = folder / f"{name}.so", folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    if not (done.exists() and built.exists()):
        with _locked(folder / "opwise.lock"):
            if not (done.exists() and built.exists()):
                _build(name, folder, units, folders, binding)
                done.touch()
    return built


def _root() -> Path:
    from torch.utils.cpp_extension import get_default_build_root

    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _ninja_on_path() -> Iterator[None]:
    """An environment's bin folder is on PATH only where it was activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, sysconfig.get_path("scripts")])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _build(name: str, folder: Path, units: Mapping[str, str], folders: tuple[Path, ...], binding: Path | None) -> None:
    from torch.utils import cpp_extension

    (folder / "lock").unlink(missing_ok=True)  # torch's lock file, for which it would wait for ever: its owner is dead, we hold ours
    log.warning("building %s for the CPU: half a minute or so, once (%s)", name, folder)
    began = time.monotonic()
    sources = [folder / path.name for path in ([binding] if binding else []) + sorted(HERE.glob("*.cpp"))]
    for path in sources:
        shutil.copyfile(binding if binding and path.name == binding.name else HERE / path.name, path)
    for unit, text in units.items():
        sources.append(folder / f"unit_{unit}.cpp")
        sources[-1].write_text(f'#include "stand_in.h"\n{rewrite.rewritten(_preprocessed(unit, text, folders))}', encoding="utf-8")
    with _ninja_on_path():
        try:
            cpp_extension.load(
                name,
                [str(path) for path in sources],
                extra_cflags=list(FLAGS),
                extra_ldflags=["-Wl,--as-needed", "-pthread"],
                extra_include_paths=[str(rewrite.INCLUDE)],
                build_directory=str(folder),
                with_cuda=False,
                is_python_module=False,  # loaded by our caller, as every later process does
            )
        except RuntimeError as error:
            told = [
                line.strip()
                for line in str(error).splitlines()
                if re.search(r"(?<!collect2: )error:|undefined reference|multiple definition", line)
            ]
            _refused[folder] = f"{compiler().command} refuses {name.rpartition('_')[0]}: {'; '.join(told[:3]) or error}"
            raise RuntimeError(_refused[folder]) from error
    log.info("built in %.0f s", time.monotonic() - began)


def _preprocessed(unit: str, text: str, folders: tuple[Path, ...]) -> str:
    include = [f"-I{folder}" for folder in folders]
    command = [compiler().command, "-E", STANDARD, "-x", "c++", f"-D__CUDA_ARCH__={ARCHITECTURE}", "-D__CUDACC__", *include, "-"]
    done = subprocess.run(command, input=f'#line 1 "{unit}"\n{text}', capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{compiler().command} cannot preprocess {unit}: {done.stderr.strip()}")
    return done.stdout


class Kernels:
    """The kernels of a library, by name."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.opwise_kernel.restype = ctypes.c_void_p
        self.library.opwise_kernel.argtypes = (ctypes.c_char_p,)
        self.library.opwise_parameters.argtypes = (ctypes.c_void_p,)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.library.opwise_launch.argtypes = (pointer, pointer, pointer, ctypes.c_int, size, ctypes.c_char_p, size)

    def kernel(self, name: str) -> int:
        """Raises KeyError."""
        found: int | None = self.library.opwise_kernel(name.encode())
        if found is None:
            raise KeyError(f"no kernel {name!r} was compiled for the CPU")
        return found

    def parameters(self, name: str) -> int:
        count: int = self.library.opwise_parameters(self.kernel(name))
        return count

    def launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[int, ...], shared_bytes: int = 0) -> None:
        """Runs it to its end; arguments are addresses and integers. Raises RuntimeError with kernel, block, thread and what it did."""
        size = (ctypes.c_uint * 6)(*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block)))
        values = (ctypes.c_int64 * len(arguments))(*arguments)
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(values) + 8 * i for i in range(len(arguments))))
        why = ctypes.create_string_buffer(1024)
        if self.library.opwise_launch(self.kernel(name), size, addresses, len(arguments), shared_bytes, why, len(why)):
            raise RuntimeError(f"CUDA kernel {name} on the CPU: {why.value.decode(errors='replace')}")
