"""A disk cache of Numba's cubins: unlike the other backends' compilers, it has none for these launches.

A kernel here is a closure, and two closures of one function are different kernels. So the key is what the function is made of, all the
way down: code, constants, what its closures hold, the globals that it names, device functions, types; and beside it every source file of
the backend, what is compiled with, and the architecture. A closure that holds anything else has no key and is compiled anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from opwise.backends import kept
from opwise.backends.numba_cuda.common.chosen import package

COMPILERS = re.compile(r"(numba|cuda|nvidia|nvvm|nvjitlink|llvmlite|numpy).*\.dist-info", re.IGNORECASE)
BACKEND = Path(__file__).parents[1]
OURS = "opwise"  # packages whose modules' contents are told, not only their names
OPTIONS = ("device", "inline", "fastmath", "opt")  # of a device function

Assembled = tuple[bytes, str]  # cubin, and the name of its entry


class NoKey(TypeError):
    """The object is of a kind that is not known to be told by its contents."""


def kept_or(assemble: Callable[[], Assembled], kernel: Any, arch: str) -> Assembled:
    """What was left on disk for a kernel of this key; else what `assemble` makes, which is left there."""
    path = place(kernel, arch)
    if path is None:
        return assemble()
    found = _read(path)
    if found is None:
        cubin, entry = found = assemble()
        with contextlib.suppress(OSError):  # a full disk costs the others the compilation, nothing else
            kept.keep(path, entry.encode() + b"\n" + cubin)
    return found


def place(kernel: Any, arch: str) -> Path | None:
    """The file of a kernel's cubin; None where it has no key."""
    options = (kernel.threads, kernel.min_blocks, kernel.maps, kernel.only, kernel.cluster, arch)
    try:
        parts = [*_Telling().told((kernel.function, tuple(kernel.parameters), options)), _toolchain()]
    except (NoKey, RecursionError):
        return None
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return kept.folder() / "numba" / f"{digest}.cubin"


def _read(path: Path) -> Assembled | None:
    try:
        entry, _, cubin = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return (cubin, entry.decode()) if cubin.startswith(b"\x7fELF") else None


@cache
def _toolchain() -> str:
    """Python, the backend's sources, the installed compilers, the toolkit that may hold Numba's, the driver that may link, and Numba's own
    switches. Versions are read off the names of the installed packages' folders: their metadata take a tenth of a second."""
    digest = hashlib.sha256()
    for path in sorted(BACKEND.rglob("*.py")):
        digest.update(str(path.relative_to(BACKEND)).encode() + b"\0" + path.read_bytes() + b"\0")
    packages = sorted(
        {path.name for folder in map(Path, sys.path) for path in folder.glob("*.dist-info") if COMPILERS.fullmatch(path.name)}
    )
    toolkit = os.path.realpath(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    switches = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_") and item[0] != "NUMBA_CACHE_DIR")
    return repr((package(), sys.version, digest.hexdigest(), packages, toolkit, _driver(), switches))


def _driver() -> tuple[int, str]:
    """CUDA's version of the driver, 0 without one, and what its kernel module says of itself, where that can be read."""
    version, text = ctypes.c_int(0), ""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    return version.value, text


class _Telling:
    """Tells objects by their contents. Of a function that was told before, only which one it is."""

    def __init__(self) -> None:
        self._functions: dict[int, int] = {}

    def told(self, thing: Any) -> Iterator[str]:
        """Raises NoKey."""
        yield type(thing).__qualname__
        if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
            yield repr(thing)
        elif isinstance(thing, (tuple, list)):
            yield str(len(thing))
            for part in thing:
                yield from self.told(part)
        elif isinstance(thing, dict):
            yield str(len(thing))
            for item in thing.items():
                yield from self.told(item)
        elif isinstance(thing, types.CodeType):
            yield repr((thing.co_code.hex(), thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_firstlineno, thing.co_filename))
            yield from self.told(thing.co_consts)
        elif isinstance(thing, types.FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, (types.BuiltinFunctionType, type)):
            yield f"{thing.__module__}.{thing.__qualname__}"
        elif isinstance(thing, types.ModuleType):
            yield thing.__name__
        elif dataclasses.is_dataclass(thing):
            for field in dataclasses.fields(thing):
                yield field.name
                yield from self.told(getattr(thing, field.name))
        else:
            yield from self._numbas(thing)

    def _function(self, thing: types.FunctionType) -> Iterator[str]:
        if id(thing) in self._functions:  # one that many call, or that refers to itself
            yield str(self._functions[id(thing)])
            return
        self._functions[id(thing)] = len(self._functions)
        cells = tuple(cell.cell_contents for cell in thing.__closure__ or ())
        for part in (thing.__module__, thing.__qualname__, thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells):
            yield from self.told(part)
        if thing.__module__.partition(".")[0] == OURS:
            yield from self._globals(set(_names(thing.__code__)), thing.__globals__)

    def _globals(self, names: set[str], found: dict[str, Any]) -> Iterator[str]:
        """What a function may name, here and in the modules that it names. The sources, which are in the key too, tell what has no key."""
        for name in sorted(names & found.keys()):
            thing = found[name]
            yield name
            if isinstance(thing, types.ModuleType) and thing.__name__.partition(".")[0] == OURS:
                yield from self._globals(names - {name}, vars(thing))
                continue
            try:
                parts = [*self.told(thing)]
            except NoKey:
                parts = [type(thing).__qualname__]
            yield from parts

    def _numbas(self, thing: Any) -> Iterator[str]:
        """Types by their names; device functions and intrinsics by the Python functions that they are made of. Raises NoKey."""
        from opwise.backends.numba_cuda.common.compiler import Signature, Type

        if isinstance(thing, Type):
            yield thing.name
        elif isinstance(thing, Signature):
            yield repr((str(thing.return_type), [str(a) for a in thing.args], str(thing.recvr)))
        elif isinstance(getattr(thing, "py_func", None), types.FunctionType):
            yield from self.told(thing.py_func)
            options = getattr(thing, "targetoptions", {})
            yield from self.told({key: value for key, value in sorted(options.items()) if key in OPTIONS})
        elif isinstance(getattr(thing, "_defn", None), types.FunctionType):
            yield from self.told(thing._defn)
        else:
            raise NoKey(f"{type(thing).__module__}.{type(thing).__qualname__} has no key")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
