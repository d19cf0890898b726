"""What Numba assembled, kept on disk for the other workers of a crew: alone of the compilers it keeps nothing there itself.

A kernel here is a closure, and two closures of one function are different kernels. So the key is what the function is made of, all the
way down its closures: code, constants, device functions, types; and beside it every source file of the backend, the versions of what
compiles, and the architecture. A closure that holds anything else has no key and is compiled by each worker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.metadata
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opwise import provenance
from opwise.ops import OPS

BACKEND = "numba_cuda"
COMPILERS = re.compile(r"numba|cuda|nvidia|nvvm|nvjitlink|llvmlite|numpy", re.IGNORECASE)
KEPT = "__opwise_kept__"


class NoKey(TypeError):
    """The object is of a kind that is not known to be told by its contents."""


def keep(device: torch.device) -> None:
    """From now on this process looks on disk before it assembles a kernel, and leaves there what it assembled."""
    if device.type != "cuda":
        return
    try:
        from opwise.backends import probe

        probe(BACKEND, device)
        launch = importlib.import_module(f"opwise.backends.{BACKEND}.launch")
    except Exception:  # the backend is not there: its own cells say why
        return
    if not launch.SIMULATED:
        keep_for(launch.Kernel)


def keep_for(kernel_class: Any) -> None:
    """Puts the store in front of `assemble(arch) -> (cubin, entry)`, once."""
    assemble = kernel_class.assemble
    if hasattr(assemble, KEPT):
        return

    def assembled(self: Any, arch: str) -> tuple[bytes, str]:
        if arch not in self._cubins and (path := place(self, arch)) is not None:
            found = _read(path)
            if found is None:
                _write(path, assemble(self, arch))
            else:
                self._cubins[arch] = found
        found_: tuple[bytes, str] = assemble(self, arch)
        return found_

    setattr(assembled, KEPT, True)
    kernel_class.assemble = assembled


def place(kernel: Any, arch: str) -> Path | None:
    """The file of a kernel's cubin; None where it has no key."""
    options = (kernel.threads, kernel.min_blocks, kernel.maps, kernel.only, kernel.cluster, arch)
    try:
        parts = [*_told((kernel.function, tuple(kernel.parameters), options)), _toolchain()]
    except (NoKey, RecursionError):
        return None
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    root = os.environ.get("OPWISE_CACHE_DIR") or Path.home() / ".cache" / "opwise"
    return Path(root) / "numba" / f"{digest}.cubin"


@cache
def _toolchain() -> str:
    sources = [provenance.source(BACKEND, op) for op in OPS]
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if COMPILERS.search(d.metadata["Name"] or "")}
    from opwise.measure.device import _driver

    return repr((sys.version, _driver(), sources, sorted(found.items())))


def _read(path: Path) -> tuple[bytes, str] | None:
    try:
        entry, _, cubin = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return (cubin, entry.decode()) if cubin.startswith(b"\x7fELF") else None


def _write(path: Path, found: tuple[bytes, str]) -> None:
    """Whole or not at all: another worker may be reading."""
    cubin, entry = found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(entry.encode() + b"\n" + cubin)
        Path(file.name).replace(path)
    except OSError:  # a full disk costs the others the compilation, nothing else
        return


def _told(thing: Any, seen: tuple[int, ...] = ()) -> Iterator[str]:
    """Raises NoKey."""
    if id(thing) in seen:  # a function that refers to itself
        yield "again"
        return
    inner = (*seen, id(thing))
    yield type(thing).__qualname__
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        yield repr(thing)
    elif isinstance(thing, (tuple, list)):
        yield str(len(thing))
        for part in thing:
            yield from _told(part, inner)
    elif isinstance(thing, dict):
        yield str(len(thing))
        for key, value in thing.items():
            yield from _told(key, inner)
            yield from _told(value, inner)
    elif isinstance(thing, types.CodeType):
        yield repr((thing.co_code.hex(), thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_firstlineno, thing.co_filename))
        yield from _told(thing.co_consts, inner)
    elif isinstance(thing, types.FunctionType):
        cells = tuple(cell.cell_contents for cell in thing.__closure__ or ())
        for part in (thing.__module__, thing.__qualname__, thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells):
            yield from _told(part, inner)
    elif isinstance(thing, (types.BuiltinFunctionType, type)):
        yield f"{thing.__module__}.{thing.__qualname__}"
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield field.name
            yield from _told(getattr(thing, field.name), inner)
    else:
        yield from _told_by_numba(thing, inner)


def _told_by_numba(thing: Any, seen: tuple[int, ...]) -> Iterator[str]:
    """Types by their names; device functions and intrinsics by the Python functions that they are made of. Raises NoKey."""
    from numba.core import types as numba_types
    from numba.core.typing.templates import Signature

    if isinstance(thing, numba_types.Type):
        yield thing.name
    elif isinstance(thing, Signature):
        yield repr((str(thing.return_type), [str(a) for a in thing.args], str(thing.recvr)))
    elif isinstance(getattr(thing, "py_func", None), types.FunctionType):
        yield from _told(thing.py_func, seen)
        options = getattr(thing, "targetoptions", {})
        yield from _told({key: value for key, value in sorted(options.items()) if key in ("device", "inline", "fastmath", "opt")}, seen)
    elif isinstance(getattr(thing, "_defn", None), types.FunctionType):
        yield from _told(thing._defn, seen)
    else:
        raise NoKey(f"{type(thing).__module__}.{type(thing).__qualname__} has no key")
