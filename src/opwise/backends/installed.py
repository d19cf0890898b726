"""Kernels of an op that installed packages add to existing backends, by entry points of the group `opwise.kernels`.

    "triton_jit/rmsnorm" = "my_package.triton"      a module with VARIANTS: it is imported as opwise.backends.triton_jit.rmsnorm
    "cuda_src/rmsnorm" = "my_package"               a package whose rmsnorm.cu is one more unit of the CUDA C++ backends

Compilers, workers and reports find them under the same module names as opwise's own. Finding them reads metadata only: a module is
imported on first use, and a unit is read when the table of units is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from opwise import ops
from opwise.ops.installed import offered

GROUP, CUDA = "opwise.kernels", "cuda_src"
TABLE_OF_UNITS = "opwise.backends.cuda_src.sources"


class Finder(MetaPathFinder):
    """Finds packages' modules under the backends' names. backends: name -> module."""

    def __init__(self, backends: Mapping[str, str]) -> None:
        taken = {f"{name}/{op}": f"{module}.{op}" for name, module in backends.items() for op in ops.OURS}
        self.points = offered(GROUP, {**taken, **{f"{CUDA}/{op}": f"opwise.backends.{CUDA}.{op}" for op in ops.OURS}})
        self.modules: dict[str, EntryPoint] = {}
        self.units: dict[str, EntryPoint] = {}  # by op
        for name, point in self.points.items():
            backend, _, op = name.partition("/")
            if backend == CUDA:
                self.units[op] = point
            elif backend in backends:  # else the package that has the backend is not installed
                self.modules[f"{backends[backend]}.{op}"] = point

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == TABLE_OF_UNITS and self.units and (found := PathFinder.find_spec(name, path)) is not None:
            found.loader = _WithUnits(self.units, name, str(found.origin))
            return found
        point = self.modules.get(name)
        return importlib.util.spec_from_file_location(name, _origin(point)) if point else None

    def places(self, backend: str, op: str) -> set[Path]:
        """The folders of packages' kernels of `op` in `backend` and of its spec; a file if it is a module outside a package."""
        named = (self.points.get(f"{backend}/{op}"), self.points.get(f"{CUDA}/{op}"), ops.INSTALLED.get(op))
        found = {_origin(point) for point in named if point}
        return {path.parent if (path.parent / "__init__.py").exists() else path for path in found}


class _WithUnits(SourceFileLoader):
    """Adds the units to the table after its import. An edit of the table's own file would change the digest of all records' sources."""

    def __init__(self, units: Mapping[str, EntryPoint], name: str, path: str) -> None:
        super().__init__(name, path)
        self._units = units

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for op, point in self._units.items():
            path = _origin(point).with_name(f"{op}.cu")
            module.UNITS[op] = f'#line 1 "{path.as_posix()}"\n{path.read_text(encoding="utf-8")}'  # the digest of sources needs the text


def _origin(point: EntryPoint) -> Path:
    """The file of an entry point's module. Raises ModuleNotFoundError if there is none."""
    found = importlib.util.find_spec(point.module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the entry point {point.name} = {point.value} of {point.group} leads to no module", name=point.module)
    return Path(found.origin).resolve()


def install(backends: Mapping[str, str]) -> Finder:
    """A Finder for these backends, placed first in sys.meta_path if any package adds kernels."""
    found = Finder(backends)
    if found.points:
        sys.meta_path.insert(0, found)
    return found
