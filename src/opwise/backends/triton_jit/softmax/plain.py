"""softmax as the Triton 1.0 article has it: one row a program, the row padded to a power of two as one block."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, UnsupportedWorkload
from opwise.backends.triton_jit.common.launch import called
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.softmax.math import shifted_power

LONGEST = 32768  # columns: a program's registers hold no more


@triton.jit
def plain_kernel(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * columns
    value = widen(tl.load(x + start + at, mask=at < columns, other=float("-inf")))
    power = shifted_power(value, tl.max(value, axis=0))
    tl.store(out + start + at, narrow(power / tl.sum(power, axis=0), out.dtype.element_ty), mask=at < columns)


def build(x: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    if columns > LONGEST:
        raise UnsupportedWorkload(f"softmax:plain: rows of {columns} columns given, up to {LONGEST} are taken: use the unnamed variant")
    block = triton.next_power_of_2(columns)
    warps = 4 if block <= 4096 else 16

    def bind(x: Tensor, out: Tensor) -> Launch:
        return called(plain_kernel, (rows, 1, 1), x, out, columns, BLOCK=block, num_warps=warps)

    return bind


def specimens() -> dict[str, Specimen]:
    types = {d: {"x": POINTERS[d], "out": POINTERS[d], "columns": "i32"} for d in ("float32", "float16", "bfloat16")}
    return {f"plain, {d}": Specimen(plain_kernel, types[d], {"BLOCK": 1024}) for d in types}
