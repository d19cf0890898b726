"""softmax of rows that one program holds in registers: a tile of several short rows, or one row. Each element is read and written once."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import built_of_one
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.softmax.configurations import LINES, TALLEST_TILE, own_row, own_tile
from opwise.backends.triton_jit.softmax.math import finite_shift, scaled_power


@triton.jit
def tile_kernel(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of ROWS rows a program. x, out: (rows, columns); COLUMNS: columns rounded up to a power of two."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    value = widen(tl.load(x + at, mask=mask, other=float("-inf")))
    power = scaled_power(value, finite_shift(tl.max(value, axis=1))[:, None], out.dtype.element_ty)
    inverse = 1.0 / tl.sum(power, axis=1)
    tl.store(out + at, narrow(power * inverse[:, None], out.dtype.element_ty), mask=mask)


@triton.jit
def flat_kernel(x, out, rows, columns, reciprocal, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """tile_kernel for very short rows. A program reads and writes ROWS * columns contiguous elements, in 16-byte accesses, and gathers them
    to a COLUMNS x ROWS tile, in which a thread has whole rows. reciprocal: 2^20 / columns, rounded up, to divide by columns."""
    ELEMENTS: tl.constexpr = ROWS * COLUMNS
    first = tl.program_id(0).to(tl.int64) * (ROWS * columns)
    left = rows.to(tl.int64) * columns - first
    at = tl.arange(0, ELEMENTS)
    if left >= ROWS * columns:  # noqa: SIM108 - known to leave out whole 16-byte pieces, unlike the last program's mask
        line = tl.load(x + first + at, mask=at < ROWS * columns)
    else:
        line = tl.load(x + first + at, mask=at < left)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.gather(line, tl.reshape(row[None, :] * columns + column[:, None], (ELEMENTS,)), 0)
    value = tl.where((column < columns)[:, None], widen(tl.reshape(tile, (COLUMNS, ROWS))), float("-inf"))
    power = scaled_power(value, finite_shift(tl.max(value, axis=0))[None, :], out.dtype.element_ty)
    inverse = 1.0 / tl.sum(power, axis=0)
    result = tl.reshape(narrow(power * inverse[None, :], out.dtype.element_ty), (ELEMENTS,))
    row_of = (at * reciprocal) >> 20
    line = tl.gather(result, row_of + (at - row_of * columns) * ROWS, 0)
    if left >= ROWS * columns:
        tl.store(out + first + at, line, mask=at < ROWS * columns)
    else:
        tl.store(out + first + at, line, mask=at < left)


@triton.jit
def row_kernel(x, out, columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row a program, padded to COLUMNS, a power of two."""
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, COLUMNS)
    mask = column < columns
    value = widen(tl.load(x + start + column, mask=mask, other=float("-inf")))
    power = scaled_power(value, finite_shift(tl.max(value, axis=0)), out.dtype.element_ty)
    inverse = 1.0 / tl.sum(power, axis=0)
    tl.store(out + start + column, narrow(power * inverse, out.dtype.element_ty), mask=mask)


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}


def build_tile(x: Tensor, out: Tensor, elements: int, warps: int) -> Bind:
    rows, columns = x.shape
    padded = triton.next_power_of_2(columns)
    height = elements // padded
    grid = (-(-rows // height), 1, 1)
    return built_of_one(tile_kernel, grid, x, out, rows, columns, ROWS=height, COLUMNS=padded, num_warps=warps, **OPTIONS)


def build_flat(x: Tensor, out: Tensor, elements: int, warps: int) -> Bind:
    rows, columns = x.shape
    padded = triton.next_power_of_2(columns)
    height, reciprocal = elements // padded, -(-(2**20) // columns)
    grid = (-(-rows // height), 1, 1)
    sizes = {"ROWS": height, "COLUMNS": padded, "num_warps": warps, **OPTIONS}
    return built_of_one(flat_kernel, grid, x, out, rows, columns, reciprocal, **sizes)


def build_row(x: Tensor, out: Tensor, warps: int) -> Bind:
    rows, columns = x.shape
    sizes = {"COLUMNS": triton.next_power_of_2(columns), "num_warps": warps, **OPTIONS}
    return built_of_one(row_kernel, (rows, 1, 1), x, out, columns, **sizes)


def specimens() -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    odd: tuple[str, ...]
    for dtype in ("float32", "float16", "bfloat16"):
        types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "columns": "i32"}
        for columns in (1, 8, 128, 1024):
            elements, warps = own_tile(TALLEST_TILE, columns).numbers
            constants = {"ROWS": elements // columns, "COLUMNS": columns}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "rows", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(
                    tile_kernel, {**types, "rows": "i32"}, constants, {"num_warps": warps, **OPTIONS}, odd
                )
        for columns, (elements, warps) in LINES.items():
            constants, options = {"ROWS": elements // columns, "COLUMNS": columns}, {"num_warps": warps, **OPTIONS}
            sizes = {**types, "rows": "i32", "reciprocal": "i32"}
            found[f"a line of {columns} columns, {dtype}"] = Specimen(
                flat_kernel, sizes, constants, options, ("rows", "columns", "reciprocal")
            )
        for columns in (2048, 8192, 32768):
            options = {"num_warps": own_row(columns, dtype).numbers[0], **OPTIONS}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(row_kernel, types, {"COLUMNS": columns}, options, odd)
    return found
