"""Which kernels a stand-in launched: what a verdict without a GPU is about. Each stand-in is asked where it launches, from outside."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

_launched: list[str] = []


@contextmanager
def kernels_run(stand_in: str | None) -> Iterator[list[str]]:
    """A list that holds, behind the block, each kernel once that the stand-in launched in it: `softmax.tile_kernel` of a Python module,
    `softmax_float32_warp8_v4` of CUDA C++. Only of what is prepared in the block too, since a launch may be bound before. Nothing on a
    GPU, where `stand_in` is None, nor of torch's own operators."""
    if stand_in in _WATCHES:
        _watched(stand_in)
    _launched.clear()
    found: list[str] = []
    try:
        yield found
    finally:
        found += dict.fromkeys(_launched)


@cache
def _watched(stand_in: str) -> None:
    """Once in a process."""
    module, watch = _WATCHES[stand_in]
    watch(importlib.import_module(module))


def _telling(function: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def told(*given: Any, **named: Any) -> Any:
        _launched.extend(filter(None, [name_of(*given)]))
        return function(*given, **named)

    return told


def _name(launched: Any, *_: Any) -> str:
    return f"{launched.fn.__module__.rpartition('.')[2]}.{launched.fn.__name__}"


def _watch_triton(module: Any) -> None:
    module.GridExecutor.__call__ = _telling(module.GridExecutor.__call__, _name)


def _watch_numba(module: Any) -> None:
    def name_of(kernel: Any, *_: Any) -> str:
        return "" if kernel._device or module._get_kernel_context() else _name(kernel)  # "": a function that a kernel calls

    module.FakeCUDAKernel.__call__ = _telling(module.FakeCUDAKernel.__call__, name_of)


def _watch_fibres(module: Any) -> None:
    module.Extension.Launch = _telling(module.Extension.Launch, lambda self, kernel, name, *_: str(name))  # torch_inline's
    launcher = module.build.Kernels
    launcher.launch = _telling(launcher.launch, lambda self, name, *_: str(name))  # cupy_raw's


_WATCHES: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "interpreter": ("triton.runtime.interpreter", _watch_triton),
    "simulator": ("numba.cuda.simulator.kernel", _watch_numba),
    "fibres": ("opwise.backends.cuda_on_cpu.suite", _watch_fibres),
}
