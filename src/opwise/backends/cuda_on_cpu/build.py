"""Builds the stand-in's library by torch.utils.cpp_extension, once for these sources, this torch and this compiler."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from opwise.backends.cuda_on_cpu import rewrite
from opwise.backends.protocol import BackendUnavailable

log = logging.getLogger(__name__)
HERE = Path(__file__).parent
ARCHITECTURE = 800  # the value of __CUDA_ARCH__
STANDARD = "-std=c++20"
# Thread sanitizer's instrumentation without its runtime: every access calls a function that memory.cpp defines. -ffp-contract=off: only
# an explicit fma is one.
FLAGS = ("-O1", STANDARD, "-fsanitize=thread", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
MODULE = "opwise_on_cpu"  # the Python module's name of every library with a binding, since the binding is compiled once for all
_refused: dict[Path, str] = {}
REMEDY = "install g++ 10 or later (Debian, Ubuntu: apt install g++) or clang++ 12 or later, and set CXX where it is not c++"


@dataclass(frozen=True)
class Compiler:
    command: str
    version: str


@cache
def compiler() -> Compiler:
    """The host's C++ compiler. Raises BackendUnavailable if it or ninja is missing, or if it is too old for C++20."""
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
    """The shared library of these units (name -> CUDA C++ text), built unless it exists. folders: the include path.

    binding: a C++ source that makes the library a Python module, called MODULE. Raises BackendUnavailable without a compiler, Unsupported
    for a construct that the stand-in lacks, RuntimeError with the compiler's message.
    """
    included = [path for folder in folders for path in sorted(folder.rglob("*.[ch]*"))]
    runtime, told = _runtime(binding), [Path(rewrite.__file__), *included]
    name = f"{name}_{_key(runtime.folder.name, sorted(units.items()), files=told)}"  # torch appends a number to a name that is built twice
    return _once(name, lambda folder: _build_units(name, folder, units, folders, runtime))


@dataclass(frozen=True)
class Runtime:
    """The object files linked into every library: fibres, memory, launches, and the binding, whose compilation takes longest."""

    folder: Path
    sources: tuple[str, ...]

    @property
    def objects(self) -> list[Path]:
        return [self.folder / f"{Path(source).stem}.o" for source in self.sources]


def _runtime(binding: Path | None) -> Runtime:
    sources = [*sorted(HERE.glob("*.cpp")), *([binding] if binding else [])]
    name = f"opwise_runtime_{_key(files=[*sources, *sorted(rewrite.INCLUDE.glob('*.[ch]*'))])}"

    def build(folder: Path) -> None:
        for path in sources:
            shutil.copyfile(path, folder / path.name)
        _load(name, folder, [folder / path.name for path in sources], ["-UTORCH_EXTENSION_NAME", f"-DTORCH_EXTENSION_NAME={MODULE}"])

    return Runtime(_once(name, build).parent, tuple(path.name for path in sources))


def _key(*values: object, files: Iterable[Path] = ()) -> str:
    """A digest of these values and files, and of torch, Python and the compiler."""
    key = hashlib.sha256(repr((values, torch.__version__, sys.version, compiler(), FLAGS, os.uname().machine)).encode())
    for path in files:
        key.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return key.hexdigest()[:20]


def _once(name: str, build: Callable[[Path], None]) -> Path:
    """The library in the folder `name`, built by `build` unless it exists; other processes wait for it."""
    folder = _root() / name
    if folder in _refused:  # the compiler would fail again, after half a minute
        raise RuntimeError(_refused[folder])
    built, done = folder / f"{name}.so", folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    if not (done.exists() and built.exists()):
        with _locked(folder / "opwise.lock"):
            if not (done.exists() and built.exists()):
                log.warning("building %s for the CPU: half a minute or so, once (%s)", name, folder)
                began = time.monotonic()
                build(folder)
                log.info("built in %.0f s", time.monotonic() - began)
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
    """Adds the environment's bin folder, which is on PATH only if the environment is activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, sysconfig.get_path("scripts")])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _build_units(name: str, folder: Path, units: Mapping[str, str], folders: tuple[Path, ...], runtime: Runtime) -> None:
    sources = []
    for unit, text in units.items():
        sources.append(folder / f"unit_{unit}.cpp")
        sources[-1].write_text(f'#include "stand_in.h"\n{rewrite.rewritten(_preprocessed(unit, text, folders))}', encoding="utf-8")
    _load(name, folder, sources, linked=runtime.objects)


def _load(name: str, folder: Path, sources: Sequence[Path], flags: Sequence[str] = (), linked: Sequence[Path] = ()) -> None:
    """Builds name.so in `folder`. Raises RuntimeError with the compiler's errors."""
    from torch.utils import cpp_extension

    (folder / "lock").unlink(missing_ok=True)  # a stale lock file of torch, which would wait for it forever; we hold our own lock
    with _ninja_on_path():
        try:
            cpp_extension.load(
                name,
                [str(path) for path in sources],
                extra_cflags=[*FLAGS, *flags],
                extra_ldflags=[*map(str, linked), "-Wl,--as-needed", "-pthread"],
                extra_include_paths=[str(rewrite.INCLUDE)],
                build_directory=str(folder),
                with_cuda=False,
                is_python_module=False,  # the caller loads it
            )
        except RuntimeError as error:
            told = [
                line.strip()
                for line in str(error).splitlines()
                if re.search(r"(?<!collect2: )error:|undefined reference|multiple definition", line)
            ]
            _refused[folder] = f"{compiler().command} refuses {name.rpartition('_')[0]}: {'; '.join(told[:3]) or error}"
            raise RuntimeError(_refused[folder]) from error


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
        """The kernel's handle. Raises KeyError if there is none of that name."""
        found: int | None = self.library.opwise_kernel(name.encode())
        if found is None:
            raise KeyError(f"no kernel {name!r} was compiled for the CPU")
        return found

    def parameters(self, name: str) -> int:
        count: int = self.library.opwise_parameters(self.kernel(name))
        return count

    def launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[int, ...], shared_bytes: int = 0) -> None:
        """Runs the kernel to its end. arguments: addresses and integers. Raises RuntimeError with kernel, block, thread and error."""
        size = (ctypes.c_uint * 6)(*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block)))
        values = (ctypes.c_int64 * len(arguments))(*arguments)
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(values) + 8 * i for i in range(len(arguments))))
        why = ctypes.create_string_buffer(1024)
        if self.library.opwise_launch(self.kernel(name), size, addresses, len(arguments), shared_bytes, why, len(why)):
            raise RuntimeError(f"CUDA kernel {name} on the CPU: {why.value.decode(errors='replace')}")
