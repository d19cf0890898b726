"""A user's file as a backend: found by name, imported only in a worker, and searched for marked functions."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

import torch

from opwise.backends.protocol import BackendUnavailable, Probe, Variant
from opwise.ops import OPS
from opwise.own.marking import MARK, Kernel

MODULE = "opwise_own_"  # before a backend's name: its module, and with `file_` the user's, in sys.modules
DECORATED = re.compile(r"""\bkernel\(\s*(['"])(\w+)\1""")
# A library that a file imports, and the backend whose `probe` says whether it works here and picks its stand-in, which must come first.
LIBRARIES: Mapping[str, str] = {
    "triton": "triton_jit",
    "numba": "numba_cuda",
    "cupy": "cupy_raw",
    "torch.utils.cpp_extension": "torch_inline",
}
GPU_ONLY = frozenset({"cupy_raw", "torch_inline"})  # whose stand-in runs the suite's own sources, not a user's calls of the library


class BadFile(ValueError):
    """The file cannot be a backend; the message names it, what is accepted and the remedy."""


def backend_name(path: Path, taken: Mapping[str, str]) -> str:
    """The backend name of a file: its stem. Raises BadFile if it is not a valid name, or is taken."""
    if path.suffix != ".py" or not path.is_file():
        raise BadFile(f"{path} is {'no Python file' if path.exists() else 'not there'}: give the path of a .py file")
    if not path.stem.isidentifier():
        raise BadFile(f"{path}: its rows go by the file's name, and {path.stem!r} is no Python name: rename it")
    if path.stem in taken:
        raise BadFile(f"{path} would be the backend {path.stem!r}, which {taken[path.stem]} is already: rename the file")
    return path.stem


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Backend name -> file. Raises BadFile."""
    from opwise.backends import BACKENDS

    found: dict[str, Path] = {}
    for path in paths:
        found[backend_name(path, {**BACKENDS, **{name: str(other) for name, other in found.items()}})] = path.resolve()
    return found


def declared(path: Path) -> list[str]:
    """The ops for which a file that cannot be imported declares kernels, from its text; all ops if that is unclear."""
    ops = [op for _, op in DECORATED.findall(path.read_text(encoding="utf-8", errors="replace")) if op in OPS]
    return list(dict.fromkeys(ops)) or list(OPS)


def install(files: Mapping[str, Path]) -> None:
    """Adds files to BACKENDS; each is imported when it is first probed."""
    from opwise import backends

    for name, path in files.items():
        sys.modules[MODULE + name] = FileBackend(MODULE + name, path)
        backends.BACKENDS[name] = MODULE + name  # type: ignore[index]


@dataclass(frozen=True)
class Setup:
    """What runs first in a worker that uses the files. Such a worker has a judge beside it."""

    files: Mapping[str, Path]

    def __call__(self) -> None:
        install(self.files)


def setup(files: Mapping[str, Path] | None) -> Setup | None:
    """The Setup for these files, None for none."""
    return Setup(dict(files)) if files else None


class FileBackend(types.ModuleType):
    """The backend module of a user's file, like `backends/<name>/__init__.py` of the five."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, f"The kernels of {path}.")
        self.__spec__ = ModuleSpec(name, None, origin=str(path))  # whose digest stands in the records
        self.path = path
        self._kernels: list[Kernel] | None = None

    def probe(self, device: torch.device) -> Probe:
        """Raises BackendUnavailable like the backends of the libraries it imports, and what importing the file raises."""
        from opwise import backends

        try:
            needed = libraries(self.path)
            if GPU_ONLY & set(needed):
                _require_gpu(device)
            found = [backends.probe(backend, device) for backend in needed]
        except BackendUnavailable as error:
            raise BackendUnavailable(error.reason, _remedy(error, device)) from error
        if self._kernels is None:
            self._kernels = self._loaded()
        versions = {name: version for probed in found for name, version in probed.versions.items()}
        stand_in = next((probed.stand_in for probed in found if probed.stand_in), "cpu" if device.type == "cpu" else None)
        return Probe(versions or {"torch": torch.__version__}, stand_in)

    def variants(self, op: str) -> Mapping[str, Variant]:
        return {k.variant: k.source for k in self._kernels or () if k.op == op}

    def _loaded(self) -> list[Kernel]:
        name = self.__name__.replace(MODULE, f"{MODULE}file_", 1)
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None or spec.loader is None:
            raise BadFile(f"{self.path} cannot be imported: give the path of a .py file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs: Triton and pickle look a function's module up there
        sys.path.append(str(self.path.parent))  # last: it may import its neighbours, and must not hide a library
        process = os.getpid()
        try:
            spec.loader.exec_module(module)
        finally:
            if os.getpid() != process:  # the file forked: the command is its parent's
                os._exit(0)
        return self._marked(module)

    def _marked(self, module: types.ModuleType) -> list[Kernel]:
        functions = {id(value): value for value in vars(module).values() if MARK in getattr(value, "__dict__", {})}
        found: dict[tuple[str, str], str] = {}
        kept = []
        for function in functions.values():
            for k in getattr(function, MARK):
                first = found.setdefault((k.op, k.variant), function.__name__)
                if first != function.__name__:
                    raise BadFile(f"{first} and {function.__name__} are both {k.op}{k.variant and ':' + k.variant}: give one a variant=")
                kept.append(k)
        if not kept:
            raise BadFile(f"{self.path.name} holds no kernel: decorate a function with @opwise.kernel('softmax'), or another op")
        return kept


def _remedy(error: BackendUnavailable, device: torch.device) -> str:
    """Without a GPU the suite's kernels are compiled at least; a user's are not."""
    try:
        _require_gpu(device)
    except BackendUnavailable as no_gpu:
        return "run it on a machine with a GPU" if error.reason == no_gpu.reason else error.remedy
    return error.remedy


def _require_gpu(device: torch.device) -> None:
    from opwise.backends.protocol import require_gpu  # late: the runner also runs early commits, which lack it

    require_gpu(device)


def libraries(path: Path) -> list[str]:
    """The backends whose libraries the file imports, anywhere in it; none if it is not Python."""
    try:
        tree = ast.parse(path.read_bytes())  # whose encoding the file itself tells, as Python reads it
    except (SyntaxError, ValueError):
        return []
    imported = set(_imported(tree))
    return [backend for library, backend in LIBRARIES.items() if any(f"{name}.".startswith(f"{library}.") for name in imported)]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
