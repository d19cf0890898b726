"""Tensor maps (CUtensorMap) for TMA, encoded by the driver and passed to kernels by value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import ELEMENT_BYTES, Matrix

MAP_BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
SHIFTS_BYTES = 128  # of a ResidueMaps, after its maps
GRANULE = 16  # bytes: a map's address and row pitch are multiples of it
# cuda.h's values.
INTERLEAVE_NONE, SWIZZLE_NONE, L2_PROMOTION_128B, FILL_ZEROS = 0, 0, 2, 0
SWIZZLES = {64: 2, 128: 3}  # bytes of a box's row -> CUtensorMapSwizzle


@cache
def _driver() -> Any:
    """The driver's library. cuda.bindings has the same calls, but does not let the caller choose a map's address."""
    driver = ctypes.CDLL("libcuda.so.1")
    word, pointer = ctypes.c_uint32, ctypes.c_void_p
    driver.cuTensorMapEncodeTiled.argtypes = (pointer, word, word, pointer, pointer, pointer, pointer, pointer, word, word, word, word)
    driver.cuTensorMapReplaceAddress.argtypes = (pointer, pointer)
    return driver


def mapped(matrices: Sequence[Matrix], addresses: Sequence[int]) -> Callable[[Sequence[int]], tuple[list[int], object]]:
    """A function from the matrices' addresses to (addresses of their maps, an object that must live as long as they). Each matrix has one
    map, or a ResidueMaps of residue_maps.cuh.

    The maps are encoded once, for the sample `addresses`; then only their addresses are replaced, which must differ from the sample's by
    multiples of 16. Raises RuntimeError with the driver's error.
    """
    driver = _driver()
    parts = [_parts(matrix, address) for matrix, address in zip(matrices, addresses, strict=True)]
    sizes = [MAP_BYTES * len(part) + (SHIFTS_BYTES if matrix.classes else 0) for matrix, part in zip(matrices, parts, strict=True)]
    sample, first = _memory(sum(sizes))
    at = first
    moved: list[list[tuple[int, int]]] = []  # of each matrix, for each map: its offset in memory, and its address minus the matrix's
    for matrix, part, address, size in zip(matrices, parts, addresses, sizes, strict=True):
        for i, (rows, columns, pitch, base, shift) in enumerate(part):
            _encode(driver, at + i * MAP_BYTES, matrix, rows, columns, pitch, base)
            if matrix.classes:
                ctypes.c_int32.from_address(at + len(part) * MAP_BYTES + 4 * i).value = shift
        moved.append([(at - first + i * MAP_BYTES, base - address) for i, (*_, base, _) in enumerate(part)])
        at += size
    replace, total = driver.cuTensorMapReplaceAddress, sum(sizes)

    def maps(addresses: Sequence[int], encoded: object = sample) -> tuple[list[int], object]:
        memory, at = _memory(total)
        ctypes.memmove(at, first, total)
        for address, own in zip(addresses, moved, strict=True):
            for further, before in own:
                if replace(at + further, address + before):
                    raise RuntimeError(f"cuTensorMapReplaceAddress refuses {address + before:#x}")
        return [at + own[0][0] for own in moved], memory

    return maps


def _parts(matrix: Matrix, address: int) -> list[tuple[int, int, int, int, int]]:
    """For each map of a matrix at that address: rows, columns, row pitch in bytes, the map's address, and the number of elements from there
    to the first row."""
    size = ELEMENT_BYTES[matrix.element]
    row_bytes = size * matrix.columns
    if not matrix.classes:
        return [(matrix.rows, matrix.columns, row_bytes, address, 0)]
    found = []
    for c in range(matrix.classes):
        rows, begin = -((c - matrix.rows) // matrix.classes), address + c * row_bytes
        if rows > 0:
            shift = begin % GRANULE // size
            found.append((rows, matrix.columns + shift, matrix.classes * row_bytes, begin - begin % GRANULE, shift))
        else:  # no row is of this class: a map must have an element, and shift 1 hides it, so that zeros are read
            found.append((1, 1, matrix.classes * row_bytes, address - address % GRANULE, 1))
    return found


def _encode(driver: Any, to: int, matrix: Matrix, rows: int, columns: int, pitch: int, address: int) -> None:
    shape, pitches = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(pitch)
    box, every = (ctypes.c_uint32 * 2)(matrix.box_columns, matrix.box_rows), (ctypes.c_uint32 * 2)(1, 1)
    swizzle = SWIZZLES.get(ELEMENT_BYTES[matrix.element] * matrix.box_columns, SWIZZLE_NONE)
    how = INTERLEAVE_NONE, swizzle, L2_PROMOTION_128B, FILL_ZEROS
    status = driver.cuTensorMapEncodeTiled(to, matrix.element, 2, address, shape, pitches, box, every, *how)
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled refuses a {matrix.rows} x {matrix.columns} matrix: error {status}")


def _memory(size: int) -> tuple[object, int]:
    """Memory of `size` bytes, and the first aligned address in it."""
    memory = ctypes.create_string_buffer(ALIGNMENT + size)
    return memory, ctypes.addressof(memory) + ALIGNMENT - 1 & -ALIGNMENT
