"""NumPy implementations of numba_cuda's intrinsics for sm_80 and later. A test checks that none is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opwise.backends.numba_on_cpu.fibres import shared_bytes
from opwise.backends.numba_on_cpu.tensor import fma_multiplier, tensor_instructions
from opwise.backends.numba_on_cpu.translated import Now
from opwise.backends.numba_on_cpu.words import word_instructions

f32, u16, u32 = np.float32, np.uint16, np.uint32


def to_float32(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return (raw.view(u16).astype(u32) << 16).view(f32)
    return raw.view(dtype).astype(f32)


def from_float32(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """values rounded to `dtype`, to nearest even; returned as uint8."""
    values = np.ascontiguousarray(values, f32)
    if dtype != "bfloat16":
        return values.astype(dtype).view(np.uint8)
    bits = values.view(u32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(u16).view(np.uint8)


def loads_and_stores(dtype: str, size: int, shared: bool = False) -> tuple[Callable[..., None], Callable[..., None]]:
    each = size // (4 if dtype == "float32" else 2)

    def place(address: int) -> np.ndarray[Any, Any]:
        return shared_bytes(Now.machine.dynamic, address, size) if shared else Now.machine.memory.at(address, size)

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


SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
WIDE = {(dtype, wide): loads_and_stores(dtype, 16 if wide else size) for dtype, size in SIZES.items() for wide in (True, False)}
SHARED = {dtype: loads_and_stores(dtype, size, shared=True) for dtype, size in SIZES.items()}
OF_PTX: dict[str, Any] = {
    "LOAD": {key: load for key, (load, _) in WIDE.items()},
    "STORE": {key: store for key, (_, store) in WIDE.items()},
    "LOAD_SHARED": {key: load for key, (load, _) in SHARED.items()},
    "STORE_SHARED": {key: store for key, (_, store) in SHARED.items()},
    "exp2": lambda x: f32(np.exp2(f32(x))),
    "reciprocal": lambda x: f32(1) / f32(x),
    "greater": lambda a, b: np.fmax(f32(a), f32(b)),
    "ticket": ticket,
    "load_word": lambda address: u32(Now.machine.memory.at(address, 4).view(u32)[0]),
    "store_word": store_word,
    "bits_of": lambda x: f32(x).view(u32),
    "float_of": lambda bits: u32(bits).view(f32),
}


def machine() -> Any:
    return Now.machine


ROUNDING = from_float32, to_float32
SM80: Mapping[str, Mapping[str, Any]] = {
    "common.ptx": OF_PTX,
    "common.tensor": tensor_instructions(machine, *ROUNDING),
    "common.words": word_instructions(machine, *ROUNDING),
    "matmul.kernels.fma": {"multiplier": fma_multiplier(machine)},
}
