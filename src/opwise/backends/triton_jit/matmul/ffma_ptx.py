"""PTX of ffma.py alone: shared loads, a row's multiply-adds, an mbarrier's expected bytes, at computed addresses.

All but `apart` is volatile. An operand is a tensor of one element a thread, and a tuple of such tensors where a thread has several. Triton
does not support starred tuples, so tuples are concatenated by +.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def floats(count):  # type: ignore[no-untyped-def]
    return (gl.float32,) * count


@gluon.constexpr_function
def load_text(COLUMNS, start, apart):  # type: ignore[no-untyped-def]
    """Results: COLUMNS floats, in fours that begin `apart` bytes from each other, the first at the address operand + `start` bytes."""
    fours = [", ".join(f"${i + j}" for j in range(4)) for i in range(0, COLUMNS, 4)]
    return " ".join(f"ld.shared.v4.f32 {{{four}}}, [${COLUMNS}+{start + i * apart}];" for i, four in enumerate(fours))


@gluon.constexpr_function
def load_operands(COLUMNS):  # type: ignore[no-untyped-def]
    return ",".join(["=f"] * COLUMNS + ["r", "~{memory}"])


@gluon.constexpr_function
def row_text(COLUMNS, back, offset):  # type: ignore[no-untyped-def]
    """Results: a row's sums, and the word at the address + `offset` bytes. Operands: the sums before, in the same registers, an element of
    a, the row of b, the address. back: the columns in descending order."""
    a, b, at = 2 * COLUMNS + 1, 2 * COLUMNS + 2, 3 * COLUMNS + 2
    order = range(COLUMNS - 1, -1, -1) if back else range(COLUMNS)
    return " ".join(f"fma.rn.f32 ${i}, ${a}, ${b + i}, ${i};" for i in order) + f" ld.shared.f32 ${COLUMNS}, [${at}+{offset}];"


@gluon.constexpr_function
def row_operands(COLUMNS):  # type: ignore[no-untyped-def]
    return ",".join(["=f"] * (COLUMNS + 1) + [str(i) for i in range(COLUMNS)] + ["f"] * (COLUMNS + 1) + ["r", "~{memory}"])


@gluon.constexpr_function
def word_text(offset):  # type: ignore[no-untyped-def]
    return f"ld.shared.f32 $0, [$1+{offset}];"


@gluon.jit
def columns_at(at, START: gl.constexpr, APART: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    """A thread's COLUMNS elements of a row of b: a tuple of float32 tensors. at: shared address."""
    text: gl.constexpr = load_text(COLUMNS, START, APART)
    return gl.inline_asm_elementwise(text, load_operands(COLUMNS), [at], dtype=floats(COLUMNS), is_pure=False, pack=1)


@gluon.jit
def word_at(at, OFFSET: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(word_text(OFFSET), "=f,r,~{memory}", [at], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def row_product(sums, of_a, of_b, at, BACK: gl.constexpr, OFFSET: gl.constexpr, COLUMNS: gl.constexpr):  # type: ignore[no-untyped-def]
    """A tuple: a row's sums plus this k's products, and last its element of a for the next k."""
    text: gl.constexpr = row_text(COLUMNS, BACK, OFFSET)
    operands = sums + (of_a,) + of_b + (at,)  # noqa: RUF005
    return gl.inline_asm_elementwise(text, row_operands(COLUMNS), operands, dtype=floats(COLUMNS + 1), is_pure=False, pack=1)


@gluon.jit
def apart(x, as_it_is):  # type: ignore[no-untyped-def]
    """A copy of x, so that ptxas may choose another register. as_it_is: 0x3210, given at run time, or ptxas would remove the copy."""
    return gl.inline_asm_elementwise("prmt.b32 $0, $1, $1, $2;", "=r,r,r", [x, as_it_is], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def expect(at, size, this):  # type: ignore[no-untyped-def]
    """The mbarrier at shared address `at` expects `size` bytes; executed by the thread where `this` is not 0."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred one; setp.ne.b32 one, $3, 0; @one mbarrier.arrive.expect_tx.shared.b64 _, [$1], $2; mov.b32 $0, 0; }",
        "=r,r,r,r,~{memory}", [at, size, this], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
