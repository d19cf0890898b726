"""What a product through pointers gives to tl.dot: factors in the precision that was asked for."""

from __future__ import annotations

import triton.language as tl

from opwise.backends.triton_jit.common.portable import INTERPRETING, device_function, widen


@device_function
def factor(x, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x as tl.dot may have it, of the same shape; PRECISION: "tf32" or "ieee".

    Triton hands tf32 dots raw float32 bits and the tensor core drops the low 13: an error of up to 2^-10 a factor, where rounding leaves
    2^-11. So round here. The interpreter's dot multiplies a bfloat16's bits, and float32 exactly.
    """
    if INTERPRETING:
        return widen(x)
    if PRECISION == "tf32":
        return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x
