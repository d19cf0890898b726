"""A kernel's Python as fibres run it: the same code, with other meanings for the names in it.

`cuda` becomes the machine of the launch under way, device functions and kernels the Python that they were made of, intrinsics what they
mean (meanings.py), Numba's types NumPy's. Nothing of Numba's, nor of the backend's modules, is changed: what is compiled stays as it is.
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
ROOTS = ("opwise", "numba", "numba_cuda_mlir", "math")  # whose modules are looked into
OF_FLOATS = ("exp", "log", "log1p", "log2", "sqrt", "tanh")  # NumPy's answer in float32 to float32, and by inf or nan where math's raise
Meanings = Mapping[str, Mapping[str, Any]]  # module of the backend -> name there -> meaning


class Now:
    """The machine of the launch under way. There is one at a time."""

    machine: Any = None


class Cuda:
    """What a kernel has for `cuda`."""

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
    """A module whose names are translated when they are asked for."""

    def __init__(self, module: ModuleType, of: Callable[[Any], Any]) -> None:
        self._module, self._of = module, of

    def __getattr__(self, name: str) -> Any:
        found = self._of(getattr(self._module, name))
        setattr(self, name, found)
        return found


class Translation:
    """By one set of meanings. That of a dict is a dict; that of a function which makes intrinsics, a function of the same arguments."""

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
        """Of one that has no name in its module."""
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
