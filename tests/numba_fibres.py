"""numba_cuda's kernels for GPUs, run by fibres.py: each intrinsic's meaning in NumPy, and how they come in place of the real ones.

`in_fibres` patches what the backend's modules hold (`cuda`, SIMULATED, intrinsics, `Kernel.bind` and `fixed`): unnamed variants build
what they build on a GPU: planning, alignment, arguments and kernels are all theirs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fibres import SHARED_BASE, Fault, Machine, Memory
from numba_fibres_tensor import fma_multiplier, tensor_instructions
from numba_fibres_words import word_instructions
from torch import Tensor

from opwise.backends import scratch
from opwise.backends.gemm import gpu
from opwise.backends.protocol import Launch

PROCESSORS = 2  # of the GPU that is played: few, so that grids end and kernels loop
CAPABILITY = (8, 0)  # mma.sync and cp.async, and nothing of Hopper's own
MODULES = ("common.elementwise", "square", "gelu", "mean", "common.reduce", "softmax", "softmax.registers", "softmax.short",
           "softmax.cluster", "matmul", "matmul.kernels.fma", "matmul.kernels.mma_sync")  # fmt: skip
f32, u16, u32 = np.float32, np.uint16, np.uint32


def to_float32(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return (raw.view(u16).astype(u32) << 16).view(f32)
    return raw.view(dtype).astype(f32)


def from_float32(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The bytes, rounded to nearest even."""
    values = np.ascontiguousarray(values, f32)
    if dtype != "bfloat16":
        return values.astype(dtype).view(np.uint8)
    bits = values.view(u32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(u16).view(np.uint8)


class Now:
    """The machine of the launch under way. There is one at a time."""

    machine: Machine


def in_shared(address: int, size: int) -> np.ndarray[Any, Any]:
    at, memory = int(address) - SHARED_BASE, Now.machine.dynamic
    if at % size or at < 0 or at + size > memory.size:
        raise Fault(f"{size} bytes at {at} of {memory.size} of dynamic shared memory")
    return memory[at : at + size]


def loads_and_stores(dtype: str, size: int, shared: bool = False) -> tuple[Callable[..., None], Callable[..., None]]:
    each = size // (4 if dtype == "float32" else 2)

    def place(address: int) -> np.ndarray[Any, Any]:
        return in_shared(address, size) if shared else Now.machine.memory.at(address, size)

    def load(address: int, values: Any, at: int) -> None:
        values[at : at + each] = to_float32(place(address), dtype)

    def store(address: int, values: Any, at: int) -> None:
        place(address)[:] = from_float32(values[at : at + each], dtype)

    return load, store


def ticket(address: int, limit: Any) -> Any:
    word = Now.machine.memory.at(address, 4).view(u32)
    old = u32(word[0])
    word[0] = 0 if old >= limit else old + 1
    return old


def store_word(address: int, word: Any) -> None:
    Now.machine.memory.at(address, 4).view(u32)[0] = word


INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: f32(np.exp2(f32(x))),
    "reciprocal": lambda x: f32(1) / f32(x),
    "greater": lambda a, b: np.fmax(f32(a), f32(b)),
    "ticket": ticket,
    "load_word": lambda address: u32(Now.machine.memory.at(address, 4).view(u32)[0]),
    "store_word": store_word,
    "bits_of": lambda x: f32(x).view(u32),
    "float_of": lambda bits: u32(bits).view(f32),
}


@contextlib.contextmanager
def in_fibres() -> Iterator[None]:
    """The backend as on a GPU of PROCESSORS multiprocessors, its launches run by fibres, on tensors of the CPU."""
    package = "opwise.backends.numba_cuda"
    ptx, tensor, words, launch = (importlib.import_module(f"{package}.common.{name}") for name in ("ptx", "tensor", "words", "launch"))
    modules = [importlib.import_module(f"{package}.{name}") for name in MODULES]
    lent: list[Tensor] = []
    zeroes: list[Tensor] = []

    def bind(kernel: Any, grid: tuple[int, int], *arguments: Tensor | int, device: torch.device, shared: int | None = None) -> Launch:
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        addresses = tuple(x.data_ptr() if isinstance(x, Tensor) else int(x) for x in arguments)

        def run() -> None:
            Now.machine = machine = Machine(
                grid, kernel.threads, kernel.dynamic_shared if shared is None else shared, Memory([*tensors, *lent])
            )
            with pytest.MonkeyPatch.context() as patch:
                for module in modules:
                    if hasattr(module, "cuda"):
                        patch.setattr(module, "cuda", machine)
                machine.run(kernel.function, addresses)
            assert not any(room.view(torch.int32).any() for room in zeroes), "a launch leaves 0 where it found 0"

        return run

    def fixed(
        kernel: Any,
        grid: tuple[int, int],
        *sizes: int,
        device: torch.device,
        shared: int | None = None,
        scratch_bytes: int = 0,
        zeroed: int = scratch.COUNTER_BYTES,
    ) -> Any:
        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            return bind(kernel, grid, *tensors, *sizes, *more, device=device, shared=shared)

        return scratch.bound_with(launch_of, lambda *given: launch_of(*given)(), scratch_bytes, device, zeroed)

    def lender(size: int, device: torch.device, zeroed: int = scratch.COUNTER_BYTES) -> Callable[[], Any]:
        def lend() -> Any:
            room = torch.full((size // 4 + 1,), torch.nan)
            room[: zeroed // 4] = 0.0  # what lies behind may hold anything
            lent.append(room)
            zeroes.append(room[: zeroed // 4])
            return SimpleNamespace(memory=SimpleNamespace(address=room.data_ptr()), keep=room)

        return lend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.Kernel, "bind", bind)
        patch.setattr(launch.Kernel, "fixed", fixed)
        for name, meaning in INSTRUCTIONS.items():
            patch.setattr(ptx, name, meaning)
        for dtype, wide in ptx.LOAD:
            load, store = loads_and_stores(dtype, 16 if wide else ptx.BYTES[dtype])
            patch.setitem(ptx.LOAD, (dtype, wide), load)
            patch.setitem(ptx.STORE, (dtype, wide), store)
        for dtype in ptx.LOAD_SHARED:
            load, store = loads_and_stores(dtype, ptx.BYTES[dtype], shared=True)
            patch.setitem(ptx.LOAD_SHARED, dtype, load)
            patch.setitem(ptx.STORE_SHARED, dtype, store)
        for name, meaning in word_instructions(lambda: Now.machine, from_float32, to_float32).items():
            patch.setattr(words, name, meaning)
        for name, meaning in tensor_instructions(lambda: Now.machine, from_float32, to_float32).items():
            patch.setattr(tensor, name, meaning)
        patch.setattr(importlib.import_module(f"{package}.matmul.kernels.fma"), "multiplier", fma_multiplier(lambda: Now.machine))
        for module in modules:
            if hasattr(module, "SIMULATED"):
                patch.setattr(module, "SIMULATED", False)
        patch.setattr(scratch, "lender", lender)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=PROCESSORS))
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: CAPABILITY)
        patch.setattr(gpu.Machine, "of", lambda device: gpu.Machine(PROCESSORS, CAPABILITY, 163 * 1024))
        _forget(modules)
        yield
    _forget(modules)


def _forget(modules: list[Any]) -> None:
    """Kernels made with one set of intrinsics must not be met by the other."""
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


__all__ = ["Fault", "in_fibres"]
