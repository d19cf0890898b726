"""The kernels that a stand-in launched, which a verdict without a GPU is about. Each stand-in is observed from outside."""

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
    """Context manager: a list that holds, after the block, each kernel launched in it once: `softmax.tile_kernel` of a Python module,
    `softmax_float32_warp8_v4` of CUDA C++. Only for launches that are also prepared in the block. Empty on a GPU, where `stand_in` is None,
    and for torch's own operators."""
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


def _name(function: Any, *_: Any) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def _watch_triton(module: Any) -> None:
    module.GridExecutor.__call__ = _telling(module.GridExecutor.__call__, lambda launched, *_: _name(launched.fn))


def _watch_greenlets(module: Any) -> None:
    module.run = _telling(module.run, _name)


def _watch_fibres(module: Any) -> None:
    module.Extension.Launch = _telling(module.Extension.Launch, lambda self, kernel, name, *_: str(name))  # torch_inline's
    launcher = module.build.Kernels
    launcher.launch = _telling(launcher.launch, lambda self, name, *_: str(name))  # cupy_raw's


_WATCHES: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "interpreter": ("triton.runtime.interpreter", _watch_triton),
    "greenlets": ("opwise.backends.numba_on_cpu", _watch_greenlets),
    "fibres": ("opwise.backends.cuda_on_cpu.suite", _watch_fibres),
}
