"""cuda_src compiled for the CPU, behind the interfaces that the launchers of torch_inline and cupy_raw use on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from opwise.backends.cuda_on_cpu import build
from opwise.backends.cuda_src import plain, sources
from opwise.backends.cuda_src.sources import FOLDER

UNITS = {**sources.UNITS, **plain.units()}
BINDING = Path(__file__).parents[1] / "torch_inline" / "binding.cpp"


@cache
def path() -> Path:
    """The library, built on first use. Raises what build.library raises."""
    return build.library(build.MODULE, UNITS, folders=(FOLDER,), binding=BINDING)


@cache
def kernels() -> build.Kernels:
    return build.Kernels(path())


class Extension:
    """Replaces torch_inline's extension: binding.cpp, compiled with a CUDA runtime that runs kernels on the CPU.

    CUDA does not check the number of arguments; here a wrong number raises RuntimeError.
    """

    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location(build.MODULE, path())
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{path()} cannot be imported: remove its folder, so that it is built anew")
        self._module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)
        self.prepare, self.Matrices, self.call_of = self._module.prepare, self._module.Matrices, self._module.call_of

    def Launch(self, kernel: int, name: str, grid: Any, block: Any, shared: int, together: bool, matrices: Any, arguments: Sequence[int],  # noqa: N802
               keep: Any) -> Any:  # fmt: skip
        taken = kernels().parameters(name)
        if len(arguments) != taken:
            raise RuntimeError(f"CUDA kernel {name} on the CPU: {len(arguments)} arguments, {taken} are taken")
        return self._module.Launch(kernel, name, grid, block, shared, together, matrices, arguments, keep)


@cache
def extension() -> tuple[Extension, ctypes.CDLL]:
    """As torch_inline.extension.extension: the module, and the library in which kernels are looked up by name."""
    return Extension(), ctypes.CDLL(str(path()))


class Function:
    """Replaces a CuPy function in cupy_raw's launcher: called with grid, block, arguments as C values, shared bytes and a stream."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._launch = kernels().launch
        kernels().kernel(name)

    def __call__(self, grid: Any, block: Any, arguments: Sequence[Any], shared: int, stream: object, together: bool = False) -> None:
        self._launch(self.name, grid, block, tuple(value.value for value in arguments), shared)

    def enqueue(self, handle: int, *rest: int) -> None:
        """As CuPy's driver.launchKernel: grid and block (six numbers), shared bytes, stream, address of the parameters' addresses, 0."""
        *size, shared, _, parameters, _ = rest
        places = (ctypes.c_int64 * kernels().parameters(self.name)).from_address(parameters)
        values = tuple(ctypes.c_int64.from_address(place).value for place in places)
        self._launch(self.name, tuple(size[:3]), tuple(size[3:]), values, shared)


def no_stream(index: int) -> int:
    """Replaces torch's current stream; launches are synchronous."""
    return 0
