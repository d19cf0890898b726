"""NumPy implementations of common/tensor.py's instructions: cp.async, which copies when it is waited for, ldmatrix, mma.sync by warp.

Fragment layouts are those of the PTX ISA, whose groupID is g = lane / 4 and threadID_in_group t = lane % 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import getcurrent

from opwise.backends.numba_on_cpu.fibres import SHARED_BASE, Fault, Machine, shared_bytes

u32, f32 = np.uint32, np.float32
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4
# Row and column of lane l's element i of C, 16 x 8.
C_ROW, C_COLUMN = np.stack([G, G, G + 8, G + 8], 1), np.stack([2 * T, 2 * T + 1] * 2, 1)


def tensor_instructions(machine: Callable[[], Machine], narrow: Callable[..., Any], widen: Callable[..., Any]) -> dict[str, Any]:
    """Name in tensor.py -> its implementation on the current launch's machine. narrow, widen: from float32 to a dtype's bytes, and back."""

    def shared(address: Any, size: int) -> np.ndarray[Any, Any]:
        return shared_bytes(machine().dynamic, address, size)

    def queue() -> list[Any]:
        """The thread's groups of copies: the committed ones in order, then the open one."""
        return machine().queues.setdefault(getcurrent().thread, [[]])

    def copy(size: int) -> Callable[[Any, Any, Any], None]:
        def begin(to: Any, source: Any, present: Any) -> None:
            if int(present) not in (0, size):
                raise Fault(f"{present} of {size} bytes: none or all are taken here")
            queue()[-1].append((to, source, size, bool(present)))

        return begin

    def wait_for_all_but(groups: int) -> Callable[[], None]:
        def wait() -> None:
            committed = queue()
            while len(committed) - 1 > groups:
                for to, source, size, present in committed.pop(0):
                    shared(to, size)[:] = machine().memory.at(source, size) if present else 0

        return wait

    def store_words(to: Any, *words: Any) -> None:
        shared(to, 16).view(u32)[:] = words

    def read(size: int, kind: Any) -> Callable[[Any, Any], Any]:
        return lambda source, present: u32(machine().memory.at(source, size).view(kind)[0]) if present else u32(0)

    def round_tf32(bits: Any) -> Any:  # to nearest, ties away; inf and nan stay
        return u32((int(bits) + 0x1000) & 0xFFFFE000) if int(bits) & 0x7F800000 != 0x7F800000 else u32(bits)

    def matrices(transposed: bool) -> Callable[[Any, Any, int], None]:
        def act(addresses: list[Any]) -> list[Any]:
            rows = np.stack([shared(address, 16).view(np.uint16) for address in addresses]).reshape(4, 8, 8)
            if transposed:
                rows = rows.transpose(0, 2, 1)
            words = np.ascontiguousarray(rows).view(u32)  # matrix, row, pair
            return [words[:, lane // 4, lane % 4] for lane in range(32)]

        def load(address: Any, buffer: Any, at: int) -> None:
            buffer[at : at + 4] = machine().together(f"ldmatrix {transposed}", address, act)

        return load

    def multiplier(dtype: str) -> Callable[..., None]:
        pairs = dtype != "tfloat32"

        def floats(words: np.ndarray[Any, Any]) -> Any:
            if not pairs:
                return (words & u32(0xFFFFE000)).view(f32)[..., None]  # the tensor core ignores the low 13 bits
            return widen(np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4), dtype)

        def act(brought: list[Any]) -> list[Any]:
            left, right, sums = (np.stack([one[i] for one in brought]) for i in range(3))
            a, b = floats(left), floats(right)  # lane, register, element
            wide = a.shape[-1]
            k = 8 * wide
            A, B, C = np.zeros((16, k), f32), np.zeros((k, 8), f32), np.zeros((16, 8), f32)
            for e in range(wide):
                for i in range(4):
                    A[G + 8 * (i % 2), T * wide + e + k // 2 * (i // 2)] = a[:, i, e]
                for i in range(2):
                    B[T * wide + e + k // 2 * i, G] = b[:, i, e]
            C[C_ROW, C_COLUMN] = sums
            C = (A.astype(np.float64) @ B.astype(np.float64) + C).astype(f32)
            return list(C[C_ROW, C_COLUMN])

        def multiply(c: Any, c_at: int, a: Any, a_at: int, b: Any, b_at: int) -> None:
            brings = a[a_at : a_at + 4].copy(), b[b_at : b_at + 2].copy(), c[c_at : c_at + 4].copy()
            c[c_at : c_at + 4] = machine().together("mma", brings, act)

        return multiply

    def load_floats(address: Any, buffer: Any, at: int) -> None:
        buffer[at : at + 4] = shared(address, 16).view(f32)

    def pair_store(dtype: str) -> Callable[[Any, Any, int], None]:
        def store(address: Any, buffer: Any, at: int) -> None:
            raw = narrow(buffer[at : at + 2], dtype)
            machine().memory.at(address, raw.size)[:] = raw

        return store

    return {
        "copy16": copy(16),
        "copy4": copy(4),
        "commit": lambda: queue().append([]),
        "wait_for_all_but": wait_for_all_but,
        "store_words": store_words,
        "load_word": lambda address: u32(shared(address, 4).view(u32)[0]),
        "round_tf32": round_tf32,
        "read32": read(4, u32),
        "read16": read(2, np.uint16),
        "shared_address": lambda memory: u32(SHARED_BASE),
        "load_matrices": matrices(False),
        "load_transposed": matrices(True),
        "load_floats": load_floats,
        "STORE_PAIR": {dtype: pair_store(dtype) for dtype in ("float32", "float16", "bfloat16")},
        "MULTIPLY": {dtype: multiplier(dtype) for dtype in ("float16", "bfloat16", "tfloat32")},
    }


def fma_multiplier(machine: Callable[[], Machine]) -> Callable[..., Any]:
    """The implementation of `multiplier` in matmul/kernels/fma.py."""

    def four(address: Any) -> Any:
        return shared_bytes(machine().dynamic, address, 16).view(f32)

    def multiplier(depth: int, rows: int, columns: int, high: int, wide: int, pitches: tuple[int, int]) -> Any:
        def values(address: Any, count: int, length: int) -> Any:
            """A thread's `count` floats: groups of four, evenly spaced over `length`."""
            return np.concatenate([four(int(address) + i * length // (count // 4) * 4) for i in range(count // 4)])

        def multiply(a: Any, b: Any, sums: Any) -> None:
            for p in range(depth):
                left, right = values(a + 4 * p * pitches[0], high, rows), values(b + 4 * p * pitches[1], wide, columns)
                sums += np.outer(left, right).ravel()

        return multiply

    return multiplier
