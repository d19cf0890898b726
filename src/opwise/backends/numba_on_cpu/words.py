"""NumPy implementations of the instructions of common/words.py, for one block a row: clusters are not emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import getcurrent

from opwise.backends.numba_on_cpu.fibres import Machine, shared_bytes

u32, f32 = np.uint32, np.float32
DTYPES = ("float32", "float16", "bfloat16")


def word_instructions(machine: Callable[[], Machine], narrow: Callable[..., Any], widen: Callable[..., Any]) -> dict[str, Any]:
    """Name in words.py -> its implementation on the current launch's machine. narrow, widen: from float32 to a dtype's bytes, and back."""

    def shared(address: Any) -> np.ndarray[Any, Any]:
        return shared_bytes(machine().dynamic, address, 16)

    def copies_done() -> None:
        """Completes all of the thread's asynchronous copies, committed or not."""
        for group in machine().queues.setdefault(getcurrent().thread, [[]]):
            for to, source, size, _ in group:
                shared(to)[:] = machine().memory.at(source, size)
        machine().queues[getcurrent().thread] = [[]]

    def load_words(address: Any, words: Any, at: int) -> None:
        words[at : at + 4] = machine().memory.at(address, 16).view(u32)

    def load_shared_words(address: Any, words: Any, at: int) -> None:
        words[at : at + 4] = shared(address).view(u32)

    def store_words(address: Any, words: Any, at: int) -> None:
        machine().memory.at(address, 16).view(u32)[:] = words[at : at + 4]

    def exp2_flushed(x: Any) -> Any:
        power = f32(np.exp2(f32(x)))
        return f32(0) if power < np.finfo(f32).tiny else power

    def of_dtype(dtype: str) -> tuple[Callable[..., None], ...]:
        def floats(words: Any) -> Any:
            return widen(np.ascontiguousarray(words).view(np.uint8), dtype)

        def unpack(words: Any, at: int, values: Any) -> None:
            values[:] = floats(words[at : at + 4])

        def pack(values: Any, words: Any, at: int) -> None:
            words[at : at + 4] = narrow(values, dtype).view(u32)

        def keep_greater(greatest: Any, words: Any, at: int) -> None:
            greatest[:] = narrow(np.fmax(floats(greatest), floats(words[at : at + 4])), dtype).view(u32)

        return unpack, pack, keep_greater

    found = {dtype: of_dtype(dtype) for dtype in DTYPES}
    return {
        "exp2_flushed": exp2_flushed,
        "fma": lambda a, b, c: f32(np.float64(a) * np.float64(b) + np.float64(c)),
        "copies_done": copies_done,
        "load_words": load_words,
        "load_shared_words": load_shared_words,
        "store_words": store_words,
        "again": lambda words, at: None,
        "UNPACK_WORDS": {dtype: of[0] for dtype, of in found.items()},
        "PACK_WORDS": {dtype: of[1] for dtype, of in found.items()},
        "KEEP_GREATER": {dtype: of[2] for dtype, of in found.items()},
    }
