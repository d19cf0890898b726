"""The rungs below softmax's kernels in Triton, each one idea above the one before: docs/kernels.md climbs them.

passes    one row a program, a block of columns at a time, three passes over the row
online    maximum and sum in one pass, another to write
textbook  the Triton 1.0 article's: one row a program in a masked block of 1024, whatever the row's length
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, UnsupportedWorkload
from opwise.backends.triton_jit.common.launch import built_of_one
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.softmax.block import row_kernel
from opwise.backends.triton_jit.softmax.math import finite_shift, merged, shifted_power


@triton.jit
def passes_kernel(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    start, lane = tl.program_id(0).to(tl.int64) * columns, tl.arange(0, BLOCK)
    maximum = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + lane
        maximum = tl.maximum(maximum, widen(tl.load(x + start + at, mask=at < columns, other=float("-inf"))))
    shift = finite_shift(tl.max(maximum, axis=0))
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + lane
        total += shifted_power(widen(tl.load(x + start + at, mask=at < columns, other=float("-inf"))), shift)
    inverse = 1.0 / tl.sum(total, axis=0)
    for first in range(0, columns, BLOCK):
        at = first + lane
        power = shifted_power(widen(tl.load(x + start + at, mask=at < columns)), shift)
        tl.store(out + start + at, narrow(power * inverse, out.dtype.element_ty), mask=at < columns)


@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    start, lane = tl.program_id(0).to(tl.int64) * columns, tl.arange(0, BLOCK)
    maximum = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + lane
        value = widen(tl.load(x + start + at, mask=at < columns, other=float("-inf")))
        larger = tl.maximum(maximum, value)
        shift = finite_shift(larger)
        total = total * shifted_power(maximum, shift) + shifted_power(value, shift)
        maximum = larger
    largest, total = merged(maximum, total)
    shift, inverse = finite_shift(largest), 1.0 / total
    for first in range(0, columns, BLOCK):
        at = first + lane
        power = shifted_power(widen(tl.load(x + start + at, mask=at < columns)), shift)
        tl.store(out + start + at, narrow(power * inverse, out.dtype.element_ty), mask=at < columns)


BLOCK = 1024
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False, "num_stages": 1}
KERNELS = {"passes": passes_kernel, "online": online_kernel}
SUMMARIES = {
    "passes": "one row a program, three passes over it", "online": "one row a program, maximum and sum in one pass",
    "textbook": "one row a program, a masked block of 1024",
}  # fmt: skip


def build_passes(x: Tensor, out: Tensor) -> Bind:
    return built_of_one(passes_kernel, (x.shape[0], 1, 1), x, out, x.shape[1], BLOCK=BLOCK, **OPTIONS)


def build_online(x: Tensor, out: Tensor) -> Bind:
    return built_of_one(online_kernel, (x.shape[0], 1, 1), x, out, x.shape[1], BLOCK=BLOCK, **OPTIONS)


def build_textbook(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    if columns > BLOCK:
        raise UnsupportedWorkload(f"the textbook kernel's block is 1024 columns, the rows have {columns}")
    return built_of_one(row_kernel, (rows, 1, 1), x, out, columns, COLUMNS=BLOCK, **OPTIONS)


BUILDS = {"passes": build_passes, "online": build_online, "textbook": build_textbook}


def specimens() -> dict[str, Specimen]:
    """passes and online of float32 alone: other types differ in the conversion."""
    types = {d: {"x": POINTERS[d], "out": POINTERS[d], "columns": "i32"} for d in ("float32", "float16", "bfloat16")}
    found = {f"{rung}, float32": Specimen(kernel, types["float32"], {"BLOCK": BLOCK}, OPTIONS) for rung, kernel in KERNELS.items()}
    return found | {f"textbook, {d}": Specimen(row_kernel, types[d], {"COLUMNS": BLOCK}, OPTIONS) for d in types}
