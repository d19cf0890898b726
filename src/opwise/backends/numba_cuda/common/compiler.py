"""The one place that imports numba-cuda or numba-cuda-mlir: every other module takes `cuda`, types and intrinsics from here.

Intrinsics are written for llvmlite's builder, which numba-cuda has; mlir.py emulates it for numba-cuda-mlir.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from opwise.backends.numba_cuda.common.chosen import successor

__all__ = [
    "SUCCESSOR",
    "Dispatcher",
    "Signature",
    "Type",
    "compiled",
    "cuda",
    "data_of",
    "float32",
    "int32",
    "int64",
    "intrinsic",
    "ir",
    "making",
    "types",
    "uint8",
    "uint32",
    "uint64",
]
SUCCESSOR = successor()

if SUCCESSOR:
    from numba_cuda_mlir import cuda, types
    from numba_cuda_mlir.descriptor import MLIRDispatcher as Dispatcher
    from numba_cuda_mlir.numba_cuda.typing.templates import Signature
    from numba_cuda_mlir.types import Type

    from opwise.backends.numba_cuda.common import mlir

    ir, intrinsic = mlir.ir, mlir.intrinsic
else:
    import llvmlite.ir
    import numba.cuda.extending
    import numba.types  # as a compilation does, after which `from numba import types` is another module
    from numba import cuda, types
    from numba.core.types import Type
    from numba.core.typing.templates import Signature
    from numba.cuda.dispatcher import CUDADispatcher as Dispatcher

    ir, intrinsic = llvmlite.ir, numba.cuda.extending.intrinsic

float32, int32, int64 = types.float32, types.int32, types.int64
uint8, uint32, uint64 = types.uint8, types.uint32, types.uint64


def making(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes intrinsics, each of which then says by `made` what it is: module, name and arguments of its maker. They have no
    names of their own by which fibres could know them (numba_on_cpu/meanings.py)."""

    @wraps(factory)
    def make(*given: Any) -> Any:
        found = factory(*given)
        found.made = factory.__module__, factory.__name__, given
        return found

    return make


def data_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """In an intrinsic: where an array begins."""
    if SUCCESSOR:
        return mlir.data_of(array)
    from numba.cuda.np.arrayobj import make_array

    return make_array(kind)(context, builder, array).data


def compiled(function: Callable[..., None], parameters: tuple[Any, ...], cc: tuple[Any, ...], bounds: tuple[int, int] | None = None) -> str:
    """PTX of a kernel for compute capability `cc`, (9, 0, "a") for sm_90a, without a GPU."""
    with warnings.catch_warnings():  # that the grid is small, or that Numba's own internals deprecate something, is no news here
        warnings.simplefilter("ignore")
        if SUCCESSOR:
            return mlir.compiled(function, types.void(*parameters), cc, bounds)
        text, _ = cuda.compile(function, types.void(*parameters), device=False, abi="numba", cc=cc, launch_bounds=bounds)
    return str(text)
