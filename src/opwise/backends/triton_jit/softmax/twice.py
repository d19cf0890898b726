"""softmax of long rows, one program a row, read twice: for maximum and sum, and for the result. It is used where programs cannot share a
row. The second pass begins where the first ended, so part of the row is still in L2."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import built_of_one
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


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
LONG_THREADS = 512


def build(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    return built_of_one(long_row_kernel, (rows, 1, 1), x, out, columns, **_long(x))


def _long(x: Tensor) -> dict[str, Any]:
    """16 bytes a thread and block, two blocks in flight."""
    block = LONG_THREADS * 16 // x.element_size()
    return {"BLOCK": block, "WIDE": x.shape[1] > 2**31 - 4 * block, "num_warps": LONG_THREADS // 32, **OPTIONS}


def specimens() -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    odd: tuple[str, ...]
    for dtype in ("float32", "float16", "bfloat16"):
        size = 4 if dtype == "float32" else 2
        tensors = {"x": POINTERS[dtype], "out": POINTERS[dtype]}
        options = {"num_warps": LONG_THREADS // 32, **OPTIONS}
        block = LONG_THREADS * 16 // size
        for label, index, odd in (("", "i32", ()), (", unaligned", "i32", ("x", "out", "columns")), (", beyond 2^31", "i64", ())):
            fixed = {"BLOCK": block, "WIDE": index == "i64"}
            found[f"long rows, {dtype}{label}"] = Specimen(long_row_kernel, {**tensors, "columns": index}, fixed, options, odd)
    return found
