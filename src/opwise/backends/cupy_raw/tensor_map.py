"""Tensor maps, the descriptions by which Hopper's copy engine finds a box of a matrix: encoded by the driver, passed by value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from cupy.cuda import function

from opwise.backends.cuda_src.plan import Matrix

MAP_BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
# cuda.h's values. The element type says no more than "16 bits": they are moved, not read.
UINT16, INTERLEAVE_NONE, SWIZZLE_128B, L2_PROMOTION_128B, FILL_ZEROS = 1, 0, 3, 2, 0


@cache
def _encode() -> Any:
    """cuTensorMapEncodeTiled of the driver that CuPy has loaded."""
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    word, pointer = ctypes.c_uint32, ctypes.c_void_p
    encode.argtypes = (pointer, word, word, pointer, pointer, pointer, pointer, pointer, word, word, word, word)
    return encode


def mapped(matrices: Sequence[Matrix]) -> Callable[[Sequence[int]], tuple[tuple[Any, ...], object]]:
    """addresses -> (kernel arguments, what must live as long as they): the maps of matrices of these shapes at those addresses.

    Raises RuntimeError where the driver refuses one.
    """
    shapes = [
        (
            (ctypes.c_uint64 * 2)(matrix.columns, matrix.rows),
            (ctypes.c_uint64 * 1)(2 * matrix.columns),
            (ctypes.c_uint32 * 2)(matrix.box_columns, matrix.box_rows),
            (ctypes.c_uint32 * 2)(1, 1),
        )
        for matrix in matrices
    ]
    encode: Any = _encode() if matrices else None
    memory_bytes = ALIGNMENT + MAP_BYTES * len(matrices)

    def maps(addresses: Sequence[int]) -> tuple[tuple[Any, ...], object]:
        memory = ctypes.create_string_buffer(memory_bytes)
        at = ctypes.addressof(memory) + ALIGNMENT - 1 & -ALIGNMENT
        arguments = []
        for address, shape in zip(addresses, shapes, strict=True):
            status = encode(at, UINT16, 2, address, *shape, INTERLEAVE_NONE, SWIZZLE_128B, L2_PROMOTION_128B, FILL_ZEROS)
            if status:
                raise RuntimeError(f"cuTensorMapEncodeTiled refuses a {shape[0][1]} x {shape[0][0]} matrix: error {status}")
            arguments.append(function.CPointer(at))  # a kernel argument that lies there, however long the kernel knows it to be
            at += MAP_BYTES
        return tuple(arguments), memory

    return maps
