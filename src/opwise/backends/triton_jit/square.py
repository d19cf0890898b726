"""square in Triton: reads n, writes n elements, one multiplication in float32 and one rounding each."""

from __future__ import annotations

import triton
import triton.language as tl

from opwise.backends.protocol import Variant
from opwise.backends.triton_jit.common.elementwise import build_with, plain_specimens, plain_with, specimens_of
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import Specimen


@triton.jit
def plain_kernel(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = widen(tl.load(x + at, mask=at < n))
    tl.store(out + at, narrow(value * value, out.dtype.element_ty), mask=at < n)


@triton.jit
def square_kernel(x, out, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    block = tl.program_id(0)
    if WIDE:  # an index can pass 2^31
        block = block.to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    if (block + 1) * BLOCK <= n:  # no mask: accesses of 16 bytes whatever n is
        value = widen(tl.load(x + at))
        tl.store(out + at, narrow(value * value, out.dtype.element_ty))
    else:
        value = widen(tl.load(x + at, mask=at < n))
        tl.store(out + at, narrow(value * value, out.dtype.element_ty), mask=at < n)


# (elements, warps) of a program, by bytes of an element: 16 bytes a thread, and enough programs to keep loads in flight.
BLOCKS = {4: (1024, 8), 2: (1024, 4)}
VARIANTS = {
    "": Variant(build_with(square_kernel, BLOCKS), "a block of 1024 elements a program"),
    "plain": Variant(plain_with(plain_kernel), "kernel[grid](...), a masked block of 1024 elements a program"),
}


def specimens(arch: str) -> dict[str, Specimen]:
    return {**specimens_of(square_kernel, BLOCKS), **plain_specimens(plain_kernel)}
