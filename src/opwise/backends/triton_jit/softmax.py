"""softmax over rows in Triton, read once where that is possible: by the first of these that can (softmax_offered.in_turn).

    on sm_90               what was measured to be quicker for some numbers of rows (softmax_offered.RANGES)
    up to 1024 columns     several rows a program, as a tile of rows x columns
    long rows              on sm_90, from 64 KiB (float32 96 KiB) to 1 MiB, by the programs of a cluster (softmax_cluster.py)
    the longest rows       on sm_90, above 1 MiB to 4 MiB, as a stream that warps pass on as they come (softmax_warps.py)
    the longest rows       on sm_90 and later, up to 8 MiB, as a stream through groups of programs (softmax_stream.py)
    many long rows         on sm_90 and later, a row or a part of one a program, in shared memory (softmax_staged.py)
    up to 32768            one row a program, in registers
    longer                 a part of a row a program, in registers, and the programs of a row tell each other of theirs (softmax_parts.py)
    longer                 read twice (softmax_twice.py): rows off 16 elements, few very long ones, Triton's interpreter

exp is 2^(log2(e) (x - max)): the difference is rounded before it is scaled, or rows far from zero would lose all digits. A nan is
dropped by the maximum and comes back through the sum. The exponential must not flush subnormals, so it is written as PTX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, UnsupportedWorkload, Variant
from opwise.backends.triton_jit import (
    softmax_cluster,
    softmax_ladder,
    softmax_parts,
    softmax_staged,
    softmax_stream,
    softmax_twice,
    softmax_warps,
)
from opwise.backends.triton_jit.launch import built_of_one
from opwise.backends.triton_jit.portable import narrow, widen
from opwise.backends.triton_jit.softmax_math import finite_shift, shifted_power
from opwise.backends.triton_jit.softmax_offered import (
    RANGES,
    TABLE,
    TALLEST_TILE,
    own_row,
    own_tile,
    tuned,
    untuned,
)
from opwise.backends.triton_jit.specimen import POINTERS, Specimen
from opwise.backends.tuned import NoSuchConfiguration, look


@triton.jit
def tile_kernel(x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of ROWS rows, each padded to COLUMNS. Reads and writes every element once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    value = widen(tl.load(x + at, mask=mask, other=float("-inf")))
    power = shifted_power(value, finite_shift(tl.max(value, axis=1))[:, None])
    inverse = 1.0 / tl.sum(power, axis=1)
    tl.store(out + at, narrow(power * inverse[:, None], out.dtype.element_ty), mask=mask)


@triton.jit
def row_kernel(x, out, columns, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row, padded to COLUMNS. Reads and writes every element once."""
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, COLUMNS)
    mask = column < columns
    value = widen(tl.load(x + start + column, mask=mask, other=float("-inf")))
    power = shifted_power(value, finite_shift(tl.max(value, axis=0)))
    inverse = 1.0 / tl.sum(power, axis=0)
    tl.store(out + start + column, narrow(power * inverse, out.dtype.element_ty), mask=mask)


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}


def build(x: Tensor, out: Tensor) -> Bind:
    choices = look(TABLE, x.device)
    if way := tuned(x, out, choices):
        if bind := MADE[way.kind](x, out, *way.numbers):
            return bind
        if choices.forced:
            raise NoSuchConfiguration(f"this GPU has not the room for {way.name}, or too few rows are given")
    return next(bind for way in untuned(x) if (bind := MADE[way.kind](x, out, *way.numbers)))


def _row(x: Tensor, out: Tensor, warps: int) -> Bind:
    rows, columns = x.shape
    sizes = {"COLUMNS": triton.next_power_of_2(columns), "num_warps": warps, **OPTIONS}
    return built_of_one(row_kernel, (rows, 1, 1), x, out, columns, **sizes)


def _tile(x: Tensor, out: Tensor, elements: int, warps: int) -> Bind:
    rows, columns = x.shape
    padded = triton.next_power_of_2(columns)
    height = elements // padded
    grid = (-(-rows // height), 1, 1)
    return built_of_one(tile_kernel, grid, x, out, rows, columns, ROWS=height, COLUMNS=padded, num_warps=warps, **OPTIONS)


def build_textbook(x: Tensor, out: Tensor) -> Bind:
    """The Triton 1.0 article's: one row a program in a masked block of 1024, whatever the row's length."""
    rows, columns = x.shape
    if columns > 1024:
        raise UnsupportedWorkload(f"the textbook kernel's block is 1024 columns, the rows have {columns}")
    return built_of_one(row_kernel, (rows, 1, 1), x, out, columns, COLUMNS=1024, num_warps=4, **OPTIONS)


# By softmax_offered.Way's kinds; each takes the tensors and a way's numbers, and gives None where it cannot.
MADE: Mapping[str, Callable[..., Bind | None]] = {
    "tile": _tile,
    "row": _row,
    "warps": softmax_warps.build,
    "cluster": softmax_cluster.build,
    "stream": softmax_stream.build,
    "staged": partial(softmax_staged.build, resident=False),
    "resident": partial(softmax_staged.build, resident=True),
    "parts": softmax_parts.build,
    "twice": softmax_twice.build,
}
VARIANTS = {
    "": Variant(build, "rows in registers or in shared memory, long ones shared by several programs"),
    "textbook": Variant(build_textbook, "one row a program, a masked block of 1024"),
    **{rung: Variant(each, softmax_ladder.SUMMARIES[rung]) for rung, each in softmax_ladder.BUILDS.items()},
}


SHARED: Mapping[str, Callable[..., Specimen]] = {
    "cluster": lambda columns, dtype, *form: softmax_cluster.specimen(softmax_cluster.Plan(columns, dtype, softmax_cluster.Form(*form))),
    "staged": lambda columns, dtype, kib, warps: softmax_staged.specimen(softmax_staged.Plan(columns, dtype, kib, warps, resident=False)),
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    odd: tuple[str, ...]
    for dtype in ("float32", "float16", "bfloat16"):
        tensors = {"x": POINTERS[dtype], "out": POINTERS[dtype]}
        for columns in (1, 8, 128, 1024):
            types = {**tensors, "rows": "i32", "columns": "i32"}
            elements, warps = own_tile(TALLEST_TILE, columns, dtype).numbers
            constants = {"ROWS": elements // columns, "COLUMNS": columns}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "rows", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(tile_kernel, types, constants, {"num_warps": warps, **OPTIONS}, odd)
        for columns in (2048, 8192, 32768):
            types, options = {**tensors, "columns": "i32"}, {"num_warps": own_row(columns, dtype).numbers[0], **OPTIONS}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(row_kernel, types, {"COLUMNS": columns}, options, odd)
    gluon = softmax_staged.specimens() | softmax_stream.specimens() if int(arch[3:]) >= 90 else {}
    if int(arch[3:]) == 90:
        gluon |= softmax_cluster.specimens() | softmax_warps.specimens()
        for size, dtype in ((4, "float32"), (2, "bfloat16")):
            for columns, way in ((each.columns[1], each.way) for each in RANGES[size] if each.way.kind in SHARED):
                gluon[f"{way.name}, {columns} columns, {dtype}"] = SHARED[way.kind](columns, dtype, *way.numbers)
    return found | softmax_twice.specimens() | softmax_parts.specimens() | softmax_ladder.specimens() | gluon
