"""The rungs below softmax's kernels in Triton, each one idea above the one before: docs/kernels.md climbs them.

passes    one row a program, a block of columns at a time, three passes over the row
online    maximum and sum in one pass, another to write
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import built_of_one
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
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
SUMMARIES = {"passes": "one row a program, three passes over it", "online": "one row a program, maximum and sum in one pass"}


def build_passes(x: Tensor, out: Tensor) -> Bind:
    return built_of_one(passes_kernel, (x.shape[0], 1, 1), x, out, x.shape[1], BLOCK=BLOCK, **OPTIONS)


def build_online(x: Tensor, out: Tensor) -> Bind:
    return built_of_one(online_kernel, (x.shape[0], 1, 1), x, out, x.shape[1], BLOCK=BLOCK, **OPTIONS)


BUILDS = {"passes": build_passes, "online": build_online}


def specimens() -> dict[str, Specimen]:
    """Of float32 alone: other types differ in the conversion."""
    types = {"x": POINTERS["float32"], "out": POINTERS["float32"], "columns": "i32"}
    return {f"{rung}, float32": Specimen(kernel, types, {"BLOCK": BLOCK}, OPTIONS) for rung, kernel in KERNELS.items()}
