"""softmax over rows in Triton. Rows that fit a program's registers are read once, and longer ones where several programs may share them.

    up to 1024 columns     several rows a program, as a tile of rows x columns
    up to 32768            one row a program, in registers
    longer                 a part of a row a program, in registers, and the programs of a row tell each other of theirs (softmax_parts.py)

Where that does not apply (rows off 16 elements, very long ones, few of them, Triton's interpreter), they are read twice:

    longer, many rows      one row a program: a pass for maximum and sum, a pass that writes; the second starts where the first ended,
                           so that part of the row still is in L2
    longer, few rows       each row is split over several programs: one launch leaves a maximum and a sum a part, another writes

exp is 2^(log2(e) (x - max)): the difference is rounded before it is scaled, or rows far from zero would lose all digits. A nan is
dropped by the maximum and comes back through the sum. The exponential must not flush subnormals, so it is written as PTX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, UnsupportedWorkload, Variant
from opwise.backends.triton_jit import softmax_ladder, softmax_parts, softmax_staged
from opwise.backends.triton_jit.launch import built, chained, processors
from opwise.backends.triton_jit.portable import device_function, narrow, widen
from opwise.backends.triton_jit.softmax_math import finite_shift, merged, raised_power, shifted_power
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


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
def row_kernel(x, out, columns, COLUMNS: tl.constexpr, RAISED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row, padded to COLUMNS. Reads and writes every element once. RAISED: see `raised_power`; it cancels out."""
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, COLUMNS)
    mask = column < columns
    value = widen(tl.load(x + start + column, mask=mask, other=float("-inf")))
    power = raised_power(value, finite_shift(tl.max(value, axis=0)), RAISED)
    inverse = 1.0 / tl.sum(power, axis=0)
    tl.store(out + start + column, narrow(power * inverse, out.dtype.element_ty), mask=mask)


@device_function
def scan(x, first, last, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Maximum and sum of x[first:last], two loads in flight a thread."""
    lane = tl.arange(0, BLOCK)
    maximum = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(first, last, 2 * BLOCK):
        at = start + lane
        if start + 2 * BLOCK <= last:
            one = widen(tl.load(x + at))
            two = widen(tl.load(x + at + BLOCK))
        else:
            one = widen(tl.load(x + at, mask=at < last, other=float("-inf")))
            two = widen(tl.load(x + at + BLOCK, mask=at + BLOCK < last, other=float("-inf")))
        larger = tl.maximum(maximum, tl.maximum(one, two))
        shift = finite_shift(larger)
        total = total * shifted_power(maximum, shift) + (shifted_power(one, shift) + shifted_power(two, shift))
        maximum = larger
    return merged(maximum, total)


@device_function
def write(x, out, first, last, shift, inverse, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[first:last], from the last block to the first: what `scan` read last is the likeliest to be in L2 still."""
    lane = tl.arange(0, BLOCK)
    blocks = tl.cdiv(last - first, 2 * BLOCK)
    for i in range(blocks):
        start = first + (blocks - 1 - i) * (2 * BLOCK)
        at = start + lane
        if start + 2 * BLOCK <= last:
            one = widen(tl.load(x + at))
            two = widen(tl.load(x + at + BLOCK))
            tl.store(out + at, narrow(shifted_power(one, shift) * inverse, out.dtype.element_ty))
            tl.store(out + at + BLOCK, narrow(shifted_power(two, shift) * inverse, out.dtype.element_ty))
        else:
            one = widen(tl.load(x + at, mask=at < last))
            two = widen(tl.load(x + at + BLOCK, mask=at + BLOCK < last))
            tl.store(out + at, narrow(shifted_power(one, shift) * inverse, out.dtype.element_ty), mask=at < last)
            tl.store(out + at + BLOCK, narrow(shifted_power(two, shift) * inverse, out.dtype.element_ty), mask=at + BLOCK < last)


@triton.jit
def long_row_kernel(x, out, columns, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of any length: reads it twice, writes it once."""
    if WIDE:  # an index within the row can pass 2^31
        columns = tl.cast(columns, tl.int64)
    start = tl.program_id(0).to(tl.int64) * columns
    maximum, total = scan(x + start, 0, columns, BLOCK)
    write(x + start, out + start, 0, columns, finite_shift(maximum), 1.0 / total, BLOCK)


@triton.jit
def part_kernel(x, maxima, sums, columns, part, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (p, r): maximum and sum of the p-th `part` columns of row r."""
    row = tl.program_id(1)
    first = tl.program_id(0) * part
    if WIDE:
        first = tl.program_id(0).to(tl.int64) * part
    start = row.to(tl.int64) * columns
    maximum, total = scan(x + start, first, tl.minimum(first + part, columns), BLOCK)
    slot = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(maxima + slot, maximum)
    tl.store(sums + slot, total)


@triton.jit
def finish_kernel(x, out, maxima, sums, columns, part, PADDED: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (p, r): the p-th `part` columns of row r's result, from all parts' maxima and sums."""
    row = tl.program_id(1)
    first = tl.program_id(0) * part
    if WIDE:
        first = tl.program_id(0).to(tl.int64) * part
    start = row.to(tl.int64) * columns
    parts = tl.num_programs(0)
    slot = tl.arange(0, PADDED)
    known = slot < parts
    each = tl.load(maxima + row * parts + slot, mask=known, other=float("-inf"))
    maximum, total = merged(each, tl.load(sums + row * parts + slot, mask=known, other=0.0))
    write(x + start, out + start, first, tl.minimum(first + part, columns), finite_shift(maximum), 1.0 / total, BLOCK)


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
LONGEST_ROW_IN_TILE, LONGEST_ROW_IN_REGISTERS = 1024, 32768
TILE, TALLEST_TILE = 2048, 512  # elements and rows of a tile of short rows
LONG_THREADS = 512
RAISED: dict[torch.dtype, int] = {}  # by how many powers of two `row_kernel`'s exponentials are raised; not here: none, subnormals kept
LEAST_PART, MOST_PARTS = 32768, 4096  # a part's columns; partials kept, 8 bytes each


def row_warps(padded: int, element_size: int) -> int:
    """16 to 64 elements a thread: 64 are the most whose float32 powers stay in registers."""
    return min(max(padded // 1024, 4), 16)


def build(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    if columns <= LONGEST_ROW_IN_TILE:
        return _tile(x, out)
    if staged := _staged(x, out):
        return staged
    if columns <= LONGEST_ROW_IN_REGISTERS:
        padded = triton.next_power_of_2(columns)
        warps = row_warps(padded, x.element_size())
        fixed = {"COLUMNS": padded, "RAISED": RAISED.get(x.dtype, -1), "num_warps": warps, **OPTIONS}
        return _with_sizes(built(row_kernel, (rows, 1, 1), x, out, columns, **fixed), columns)
    if shared := softmax_parts.build(x, out):
        return shared
    parts = _parts(rows, columns, processors(x.device))
    if parts > 1:
        return _split(x, out, parts)
    return _with_sizes(built(long_row_kernel, (rows, 1, 1), x, out, columns, **_long(x)), columns)


# (dtype, fewest columns, most columns): KiB a program, warps, resident. What is not here goes on through registers.
STAGED: dict[tuple[str, int, int], tuple[int, int, bool]] = {}


def _staged(x: Tensor, out: Tensor) -> Bind | None:
    columns, dtype = x.shape[1], str(x.dtype).removeprefix("torch.")
    for (name, fewest, most), (kib, warps, resident) in STAGED.items():
        if name == dtype and fewest <= columns <= most:
            return softmax_staged.build(x, out, softmax_staged.Plan(columns, dtype, kib, warps, resident=resident))
    return None


def _long(x: Tensor) -> dict[str, Any]:
    """16 bytes a thread and block, two blocks in flight."""
    block = LONG_THREADS * 16 // x.element_size()
    return {"BLOCK": block, "WIDE": x.shape[1] > 2**31 - 4 * block, "num_warps": LONG_THREADS // 32, **OPTIONS}


def _tile(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    padded = triton.next_power_of_2(columns)
    height = min(TILE // padded, TALLEST_TILE, triton.next_power_of_2(rows))
    grid = (-(-rows // height), 1, 1)
    warps = max(1, min(4, height * padded // 512))
    return _with_sizes(
        built(tile_kernel, grid, x, out, rows, columns, ROWS=height, COLUMNS=padded, num_warps=warps, **OPTIONS), rows, columns
    )


def _with_sizes(ready: Callable[..., Launch], *sizes: int) -> Bind:
    def bind(x: Tensor, out: Tensor) -> Launch:
        return ready(x, out, *sizes)

    return bind


def _parts(rows: int, columns: int, multiprocessors: int) -> int:
    """How many programs share a row: 1 where the rows alone fill the GPU well."""
    at_once = 2 * multiprocessors
    waves = -(-rows // at_once)
    if rows > MOST_PARTS or rows / (waves * at_once) > 0.8:
        return 1
    wanted = -(-4 * at_once // rows)
    return max(1, min(wanted, columns // LEAST_PART, MOST_PARTS // rows))


def _split(x: Tensor, out: Tensor, parts: int) -> Bind:
    rows, columns = x.shape
    fixed = _long(x)
    part = -(-columns // parts)
    part = -(-part // (2 * fixed["BLOCK"])) * 2 * fixed["BLOCK"]  # whole blocks, so that every part but the last goes without masks
    parts = -(-columns // part)
    scratch = torch.empty((2, rows * parts), dtype=torch.float32, device=x.device)
    grid = (parts, rows, 1)
    first = built(part_kernel, grid, x, scratch[0], scratch[1], columns, part, **fixed)
    padded = triton.next_power_of_2(parts)
    second = built(finish_kernel, grid, x, out, scratch[0], scratch[1], columns, part, PADDED=padded, **fixed)

    def bind(x: Tensor, out: Tensor) -> Launch:
        maxima, sums = torch.empty((2, rows * parts), dtype=torch.float32, device=x.device)
        return chained(first(x, maxima, sums, columns, part), second(x, out, maxima, sums, columns, part))

    return bind


def build_textbook(x: Tensor, out: Tensor) -> Bind:
    """The Triton 1.0 article's: one row a program in a masked block of 1024, whatever the row's length."""
    rows, columns = x.shape
    if columns > 1024:
        raise UnsupportedWorkload(f"the textbook kernel's block is 1024 columns, the rows have {columns}")
    return _with_sizes(built(row_kernel, (rows, 1, 1), x, out, columns, COLUMNS=1024, RAISED=-1, num_warps=4, **OPTIONS), columns)


VARIANTS = {
    "": Variant(build, "rows in registers up to 32768 columns, shared by several programs beyond"),
    "textbook": Variant(build_textbook, "one row a program, a masked block of 1024"),
    **{rung: Variant(each, softmax_ladder.SUMMARIES[rung]) for rung, each in softmax_ladder.BUILDS.items()},
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    odd: tuple[str, ...]
    for dtype in ("float32", "float16", "bfloat16"):
        size = 4 if dtype == "float32" else 2
        tensors = {"x": POINTERS[dtype], "out": POINTERS[dtype]}
        for columns in (1, 8, 128, 1024):
            types = {**tensors, "rows": "i32", "columns": "i32"}
            constants = {"ROWS": min(TILE // columns, TALLEST_TILE), "COLUMNS": columns}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "rows", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(
                    tile_kernel, types, constants, {"num_warps": 1 if columns == 1 else 4, **OPTIONS}, odd
                )
        for columns in (2048, 8192, 32768):
            types, options = {**tensors, "columns": "i32"}, {"num_warps": row_warps(columns, size), **OPTIONS}
            for label, odd in (("", ()), (", unaligned", ("x", "out", "columns"))):
                found[f"{columns} columns, {dtype}{label}"] = Specimen(
                    row_kernel, types, {"COLUMNS": columns, "RAISED": RAISED.get(getattr(torch, dtype), -1)}, options, odd
                )
        options = {"num_warps": LONG_THREADS // 32, **OPTIONS}
        block, scratch = LONG_THREADS * 16 // size, {"maxima": "*fp32", "sums": "*fp32"}
        for label, index, odd in (("", "i32", ()), (", unaligned", "i32", ("x", "out", "columns")), (", beyond 2^31", "i64", ())):
            fixed = {"BLOCK": block, "WIDE": index == "i64"}
            sizes = {"columns": index, "part": index}
            found[f"long rows, {dtype}{label}"] = Specimen(long_row_kernel, {**tensors, "columns": index}, fixed, options, odd)
            parts = {"x": POINTERS[dtype], **scratch, **sizes}
            found[f"parts, {dtype}{label}"] = Specimen(part_kernel, parts, fixed, options, odd)
            finish = {**tensors, **scratch, **sizes}
            found[f"finish, {dtype}{label}"] = Specimen(finish_kernel, finish, {"PADDED": 16, **fixed}, options, odd)
    staged = softmax_staged.specimens() if int(arch[3:]) >= 90 else {}
    return found | softmax_parts.specimens() | softmax_ladder.specimens() | staged
