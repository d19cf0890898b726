"""State that foreign code may have changed for its whole process: torch's global settings, and the functions that measure.

Settings are restored before each implementation's turn, so that a file that changes one costs its own rows only. A kernel that leaves a
setting changed, or a function replaced, is wrong for that reason."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from opwise.ops import spec

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _float32_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's other interface to it
        return "set by fp32_precision"


def _flushes() -> bool:
    """torch has no getter: half of a subnormal is 0 where they are flushed."""
    return float(torch.tensor(2.0**-140, dtype=torch.float32, device="cpu") * 0.5) == 0.0


def _attribute(owner: Any, name: str) -> Setting:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def settings() -> dict[str, Setting]:
    """Name -> (get, set) of all settings that are restored."""
    found: dict[str, Setting] = {
        "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),  # any other way leaves a mode behind
        "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch.backends.fp32_precision": _attribute(torch.backends, "fp32_precision"),
        "float32 matmul precision": (_float32_precision, torch.set_float32_matmul_precision),
        "flushing of denormals": (_flushes, torch.set_flush_denormal),
        "number of threads": (torch.get_num_threads, torch.set_num_threads),
        "deterministic mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        "gradients": (torch.is_grad_enabled, torch._C._set_grad_enabled),
        "autocast": (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
        "autocast on the CPU": (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    }
    found |= {
        name: _attribute(torch.backends.cuda.matmul, name) for name in getattr(spec, "REDUCTION_SWITCHES", ())
    }  # old commits, in the history, have none
    if not hasattr(torch.backends, "fp32_precision"):  # before torch 2.9
        del found["torch.backends.fp32_precision"]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["current stream"] = (torch.cuda.current_stream, torch.cuda.set_stream)
    return found


@dataclass(frozen=True)
class Settings:
    """torch's global state at one moment."""

    values: Mapping[str, tuple[Any, Setting]]

    @classmethod
    def now(cls) -> Settings:
        return cls({name: (setting[0](), setting) for name, setting in settings().items()})

    def changed(self) -> list[str]:
        """A line for each setting that differs now."""
        found = [(name, before, get()) for name, (before, (get, _)) in self.values.items()]
        return [f"{name}: {before} became {after}" for name, before, after in found if after != before]

    def restore(self) -> None:
        for before, (get, set_) in self.values.values():
            if get() != before:
                set_(before)


# What the clock and its samples are made of. What opwise binds early is safe; what is replaced all the same says what the file is.
CLOCK = ((torch.cuda.Event, ("record", "elapsed_time", "query", "synchronize")),
         (torch.cuda.CUDAGraph, ("capture_begin", "capture_end", "replay")),
         (torch.cuda, ("Event", "CUDAGraph", "Stream", "synchronize", "current_stream", "_sleep")),
         (time, ("perf_counter", "perf_counter_ns")))  # fmt: skip
OURS = ("opwise.measure.", "opwise.runner.", "opwise.ops.", "opwise.backends.protocol", "opwise.record")


def _watched() -> dict[tuple[Any, str], Any]:
    found: dict[tuple[Any, str], Any] = {
        (owner, name): vars(owner)[name] for owner, names in CLOCK for name in names if name in vars(owner)
    }
    for module in [module for name, module in list(sys.modules.items()) if name.startswith(OURS)]:
        classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
        for owner in (module, *classes):
            found |= {(owner, name): value for name, value in vars(owner).items() if isinstance(value, (types.FunctionType, type))}
    return found


@dataclass(frozen=True)
class Functions:
    """The functions of the clock and of opwise's runner, as they were before foreign code was imported."""

    originals: Mapping[tuple[Any, str], Any] = field(default_factory=_watched)

    def replaced(self) -> list[str]:
        """Restores replaced functions; returns a line for each."""
        found = []
        for (owner, name), original in self.originals.items():
            if vars(owner).get(name) is not original:
                found.append(f"{owner.__module__ + '.' if isinstance(owner, type) else ''}{owner.__name__}.{name} was replaced")
                setattr(owner, name, original)
        return found
