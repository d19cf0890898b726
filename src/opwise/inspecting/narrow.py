"""Compiler reports for some ops only. The backends' `compile_only` compiles everything, also for old commits, whose kernels asv puts in
place of today's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from opwise.backends import BACKENDS
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS

# Where the compiling modules of torch_inline and of cupy_raw look up the units of CUDA C++, whose names begin with their op.
OF_UNITS = ("toolchain", "module")


def compiled_lines(_: Callable[[str, str], None], backend: str, arch: str, ops: Collection[str] = OPS) -> dict[str, str] | str:
    """Kernel -> "N registers, M bytes spilled, K instructions" for an architecture such as "sm_90", for these ops and perhaps more; or why
    there is no compiler here. A worker's request ("apply"). Raises what the compiler raises."""
    module = importlib.import_module(BACKENDS[backend])
    if not hasattr(module, "compile_only"):
        return f"{backend} has nothing to compile"
    try:
        with _narrowed(backend, module, ops):
            return dict(module.compile_only(arch))
    except BackendUnavailable as error:
        return str(error)


@contextmanager
def _narrowed(backend: str, module: Any, ops: Collection[str]) -> Iterator[None]:
    """Numba's and Triton's loops over OPS, and the units of CUDA C++, have those ops alone. What a commit lacks of it is left as it is."""
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    if hasattr(module, "OPS"):
        put(module, "OPS", {op: spec for op, spec in module.OPS.items() if op in ops})
    for name in OF_UNITS:
        try:
            compiling = importlib.import_module(f"{BACKENDS[backend]}.{name}")
        except ModuleNotFoundError:
            continue
        if hasattr(compiling, "units"):
            put(compiling, "units", _some(compiling.units, ops))
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def _some(units: Callable[[str], dict[str, str]], ops: Collection[str]) -> Callable[[str], dict[str, str]]:
    return lambda arch: {unit: text for unit, text in units(arch).items() if unit.partition("_")[0] in ops}
