"""Translates a kernel for fibres: the same bytecode, with other objects bound to its global names.

`cuda` becomes the machine of the current launch; device functions and kernels become their Python functions, intrinsics their NumPy
implementations (meanings.py), Numba's types NumPy's. Numba and the backend's modules are not modified, so compiled kernels are unaffected.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from greenlet import getcurrent

from opwise.backends.numba_on_cpu.fibres import Fault

BACKEND = "opwise.backends.numba_cuda"
ROOTS = ("opwise", "numba", "numba_cuda_mlir", "math")  # packages whose modules are translated
OF_FLOATS = ("exp", "log", "log1p", "log2", "sqrt", "tanh")  # NumPy's: float32 stays float32, and inf or nan where math raises
Meanings = Mapping[str, Mapping[str, Any]]  # module of the backend -> name there -> implementation


class Now:
    """The machine of the current launch. There is one launch at a time."""

    machine: Any = None


class Cuda:
    """Replaces `cuda` in a kernel: forwards to Now.machine. Raises Fault for a name that the machine lacks."""

    @property
    def threadIdx(self) -> Any:  # noqa: N802
        return getcurrent().place

    def syncthreads(self) -> None:
        Now.machine.syncthreads()

    def __getattr__(self, name: str) -> Any:
        found = getattr(Now.machine, name, None)
        if found is None:
            raise Fault(f"fibres have no cuda.{name}")
        return found


class _Names:
    """A module whose attributes are translated on first access."""

    def __init__(self, module: ModuleType, of: Callable[[Any], Any]) -> None:
        self._module, self._of = module, of

    def __getattr__(self, name: str) -> Any:
        found = self._of(getattr(self._module, name))
        setattr(self, name, found)
        return found


class Translation:
    """Translates by one set of meanings: of a dict, one with the same keys; of a factory of intrinsics, one with the same arguments."""

    def __init__(self, meanings: Meanings) -> None:
        from opwise.backends.numba_cuda.common import compiler

        self._cuda, self._type, self._meanings = compiler.cuda, compiler.Type, meanings
        self._known: dict[int, Any] = {id(getattr(math, name)): getattr(np, name) for name in OF_FLOATS}
        for module_name, names in meanings.items():
            module = importlib.import_module(f"{BACKEND}.{module_name}")
            for name, meaning in names.items():
                held = getattr(module, name)
                self._known |= {id(held[key]): meaning[key] for key in held} if isinstance(held, dict) else {id(held): meaning}
        self._functions: WeakKeyDictionary[FunctionType, FunctionType] = WeakKeyDictionary()
        self._modules: dict[str, _Names] = {}

    def function(self, function: Any) -> FunctionType:
        if function not in self._functions:
            code, cells = function.__code__, [CellType() for _ in function.__closure__ or ()]
            names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": function.__module__}
            made = FunctionType(code, names, function.__name__, function.__defaults__, tuple(cells))
            made.__kwdefaults__ = function.__kwdefaults__
            self._functions[function] = made
            names |= {name: self.of(function.__globals__[name]) for name in set(_names(code)) & function.__globals__.keys()}
            for cell, held in zip(cells, function.__closure__ or (), strict=True):
                cell.cell_contents = self.of(held.cell_contents)
        return self._functions[function]

    def of(self, thing: Any) -> Any:
        if id(thing) in self._known:
            return self._known[id(thing)]
        if thing is self._cuda:
            return CUDA
        if isinstance(thing, ModuleType):
            return self._module(thing) if thing.__name__.partition(".")[0] in ROOTS else thing
        if isinstance(thing, FunctionType):
            return self.function(thing) if thing.__module__.partition(".")[0] == "opwise" else thing
        if isinstance(getattr(thing, "py_func", None), FunctionType):
            return self.function(thing.py_func)
        if isinstance(thing, self._type):
            return getattr(np, str(thing), thing)
        if hasattr(thing, "_defn"):
            return self._intrinsic(thing)
        return thing

    def _intrinsic(self, thing: Any) -> Any:
        """An intrinsic made by a factory, so not a module's attribute. One without a meaning raises Fault when it is called."""
        module, factory, given = getattr(thing, "made", ("", thing.__name__, ()))
        names = self._meanings.get(module.removeprefix(f"{BACKEND}."), {})
        if factory in names:
            return names[factory](*given)

        def unknown(*_: Any) -> None:
            raise Fault(f"fibres have no meaning for the intrinsic {factory}: numba_on_cpu/meanings.py has the others'")

        return unknown

    def _module(self, module: ModuleType) -> _Names:
        if module.__name__ not in self._modules:
            self._modules[module.__name__] = _Names(module, self.of)
        return self._modules[module.__name__]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


CUDA = Cuda()
