"""softmax of long rows that are read twice, for maximum and sum and for the result: where programs cannot share a row.

many rows    one row a program: the second pass starts where the first ended, so that part of the row still is in L2
few rows     each row is split over several programs: one launch leaves a maximum and a sum a part, another writes
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.launch import built, built_of_one, chained, processors
from opwise.backends.triton_jit.common.portable import device_function, narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.softmax.math import finite_shift, merged, shifted_power


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
LONG_THREADS = 512
LEAST_PART, MOST_PARTS = 32768, 4096  # a part's columns; partials kept, 8 bytes each


def build(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    parts = _parts(rows, columns, processors(x.device))
    if parts > 1:
        return _split(x, out, parts)
    return built_of_one(long_row_kernel, (rows, 1, 1), x, out, columns, **_long(x))


def _long(x: Tensor) -> dict[str, Any]:
    """16 bytes a thread and block, two blocks in flight."""
    block = LONG_THREADS * 16 // x.element_size()
    return {"BLOCK": block, "WIDE": x.shape[1] > 2**31 - 4 * block, "num_warps": LONG_THREADS // 32, **OPTIONS}


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


def specimens() -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    odd: tuple[str, ...]
    for dtype in ("float32", "float16", "bfloat16"):
        size = 4 if dtype == "float32" else 2
        tensors = {"x": POINTERS[dtype], "out": POINTERS[dtype]}
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
    return found
