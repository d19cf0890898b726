"""What a step of matmul_fma.py takes in fewer instructions, for tiles of few multiply-adds a thread and where blocks share K.

There what is not a multiply-add would take more than half of a step: with 4 x 4 values a thread 26 instructions a copy, for rows and
columns that a copy works out anew, and 50 for each 64 multiply-adds, for a loop that is not unrolled whole.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import int64, types, uint32
from numba.cuda.extending import intrinsic

from opwise.backends.numba_cuda import tensor
from opwise.backends.numba_cuda.launch import inlined
from opwise.backends.numba_cuda.ptx import FLOAT, I64, assembly, element


def multiplier(depth: int, rows: int, columns: int, high: int, wide: int) -> Any:
    """The intrinsic (a, b, sums): sums (high x wide) += the thread's part of a step. a, b: shared addresses of its first values of A, a
    transposed tile of depth x (rows + 4), and of B, depth x columns; its fours are rows / (high / 4) apart, columns alike."""
    below, beside, pitch = rows // (high // 4), columns // (wide // 4), rows + 4

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, a: Any, b: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def fours(address: Any, p: int, pitch: int, apart: int, count: int) -> list[Any]:
                found = []
                for g in range(count // 4):
                    text = f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{(p * pitch + g * apart) * 4}];"
                    four = assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, "=f,=f,=f,=f,r", [address], effect=True)
                    found += [builder.extract_value(four, e) for e in range(4)]
                return found

            zero = ir.Constant(I64, 0)
            places = [element(context, builder, signature.args[2], args[2], zero, i) for i in range(high * wide)]
            held = [builder.load(place) for place in places]
            for p in range(depth):
                left, right = fours(args[0], p, pitch, below, high), fours(args[1], p, columns, beside, wide)
                held = [builder.fma(left[i // wide], right[i % wide], total) for i, total in enumerate(held)]
            for place, total in zip(places, held, strict=True):
                builder.store(total, place)
            return context.get_dummy_value()

        return types.void(types.uint32, types.uint32, sums), codegen

    return multiply


def filler(depth: int, rows: int, columns: int, threads: int, aligned: bool) -> Any:
    """fill(stage, a, b, m, n, k, m0, n0, k0, thread), as matmul_fma.py's: copies that differ by a constant follow one another, and what
    lies beyond an edge is a copy of no bytes, wherever it would be from."""
    pitch, of_b = rows + 4, depth * (rows + 4) * 4
    a_rows = threads // depth  # that one copy of all threads brings
    each = 4 if aligned else 1  # columns of B in a copy
    b_row = columns // each
    abreast, b_rows = max(b_row // threads, 1), max(threads // b_row, 1)  # copies for a row of B; rows in one copy
    b_high = depth // b_rows

    @inlined
    def fill(stage: Any, a: Any, b: Any, m: Any, n: Any, k: Any, m0: Any, n0: Any, k0: Any, thread: Any) -> None:
        r, c = thread // depth, thread % depth
        left = m - m0 - r if k0 + c < k else int64(0)
        source, to = a + ((m0 + r) * k + k0 + c) * 4, stage + uint32((c * pitch + r) * 4)
        for j in range(rows // a_rows):
            tensor.copy4(to + uint32(j * a_rows * 4), source, uint32(4 if left > j * a_rows else 0))
            source += k * (4 * a_rows)
        r = thread // b_row
        for beside in range(abreast):
            c = thread % b_row + beside * threads
            left = k - k0 - r if n0 + c * each < n else int64(0)
            source, to = b + ((k0 + r) * n + n0 + c * each) * 4, stage + uint32(of_b + (r * columns + c * each) * 4)
            for j in range(b_high):
                if aligned:
                    tensor.copy16(to + uint32(j * b_rows * columns * 4), source, uint32(16 if left > j * b_rows else 0))
                else:
                    tensor.copy4(to + uint32(j * b_rows * columns * 4), source, uint32(4 if left > j * b_rows else 0))
                source += n * (4 * b_rows)

    return fill
