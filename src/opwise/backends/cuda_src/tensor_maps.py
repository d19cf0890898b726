"""Tensor maps, the descriptions by which Hopper's copy engine finds a box of a matrix: encoded by the driver, passed by value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import ELEMENT_BYTES, Matrix

MAP_BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
# cuda.h's values.
INTERLEAVE_NONE, SWIZZLE_NONE, SWIZZLE_128B, L2_PROMOTION_128B, FILL_ZEROS = 0, 0, 3, 2, 0


@cache
def _driver() -> Any:
    """The driver that torch has loaded. cuda.bindings has the same calls, but puts a map wherever Python puts the object that holds it."""
    driver = ctypes.CDLL("libcuda.so.1")
    word, pointer = ctypes.c_uint32, ctypes.c_void_p
    driver.cuTensorMapEncodeTiled.argtypes = (pointer, word, word, pointer, pointer, pointer, pointer, pointer, word, word, word, word)
    driver.cuTensorMapReplaceAddress.argtypes = (pointer, pointer)
    return driver


def mapped(matrices: Sequence[Matrix], addresses: Sequence[int]) -> Callable[[Sequence[int]], tuple[list[int], object]]:
    """addresses -> (where the maps lie, what must live as long as they): the maps of matrices of these shapes at those addresses.

    What a map says but for the address is encoded here, once, for sample `addresses`. Raises RuntimeError where the driver refuses it.
    """
    total, driver = MAP_BYTES * len(matrices), _driver()
    sample, first = _memory(total)
    for i, ((rows, columns, box_rows, box_columns, element), address) in enumerate(zip(matrices, addresses, strict=True)):
        size = ELEMENT_BYTES[element]
        shape, pitch = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(size * columns)
        box, every = (ctypes.c_uint32 * 2)(box_columns, box_rows), (ctypes.c_uint32 * 2)(1, 1)
        swizzle = SWIZZLE_128B if size * box_columns == 128 else SWIZZLE_NONE
        how = INTERLEAVE_NONE, swizzle, L2_PROMOTION_128B, FILL_ZEROS
        status = driver.cuTensorMapEncodeTiled(first + i * MAP_BYTES, element, 2, address, shape, pitch, box, every, *how)
        if status:
            raise RuntimeError(f"cuTensorMapEncodeTiled refuses a {rows} x {columns} matrix: error {status}")
    replace = driver.cuTensorMapReplaceAddress

    def maps(addresses: Sequence[int], encoded: object = sample) -> tuple[list[int], object]:
        memory, at = _memory(total)
        ctypes.memmove(at, first, total)
        places = []
        for address in addresses:
            if replace(at, address):
                raise RuntimeError(f"cuTensorMapReplaceAddress refuses {address:#x}")
            places.append(at)
            at += MAP_BYTES
        return places, memory

    return maps


def _memory(size: int) -> tuple[object, int]:
    """Memory and the first aligned address in it."""
    memory = ctypes.create_string_buffer(ALIGNMENT + size)
    return memory, ctypes.addressof(memory) + ALIGNMENT - 1 & -ALIGNMENT
