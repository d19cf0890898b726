"""sm_90a instructions as intrinsics: TMA copies of boxes, and wgmma.

Tiles in shared memory have rows of 128 bytes with TMA's 128-byte swizzle: the 16-byte chunk index is XORed with the row number modulo 8.
The swizzle depends on address bits, so tiles are 1024-byte aligned; wgmma reads the same swizzle. Warp-collective instructions are marked
convergent, so that LLVM does not duplicate them into branches. Encodings: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opwise.backends.numba_cuda.common.compiler import intrinsic, ir, making, types
from opwise.backends.numba_cuda.common.ptx import FLOAT, I32, I64, PACK, assembly, element, instruction

u32, i64, void = types.uint32, types.int64, types.void
BOX = 64 * 128  # bytes of 64 rows of 64 elements of 16 bits
DEPTH = 64  # elements of k in a stage


# ---- TMA: a box of a matrix, first element at (row, column). Out of bounds, loads give zeros and stores write nothing --------------------

box_load = instruction(  # to, map, column, row, barrier
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], [$4];",
    void, u32, i64, u32, u32, u32, effect=True,
)  # fmt: skip
box_store = instruction(  # map, column, row, from; committed as a bulk group of its own
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3]; cp.async.bulk.commit_group;",
    void, i64, u32, u32, u32, effect=True,
)  # fmt: skip
boxes_wait_all = instruction("cp.async.bulk.wait_group.read 0;", void, effect=True)  # the source may be reused
boxes_wait_but_one = instruction("cp.async.bulk.wait_group.read 1;", void, effect=True)
publish_to_copies = instruction("fence.proxy.async.shared::cta;", void, effect=True)  # of this thread; a barrier follows

# ---- warpgroups ------------------------------------------------------------------------------------------------------------------------

warpgroup_barrier = instruction("bar.sync $0, 128;", void, u32, effect=True, together=True)  # named barrier; 0 is syncthreads's


def _high(apart: int) -> int:
    """Upper 32 bits of a shared-memory matrix descriptor: the stride offset (`apart` bytes between groups of 8 rows), 128-byte swizzle."""
    return apart // 16 | 1 << 30


def step(dtype: str, columns: int, depth: int = DEPTH, rows: int = 64, b_by_k: bool = False) -> Any:
    """The intrinsic (sums, a, b, add): sums (64 x columns, float32) += a (64 x depth) b (depth x columns); without `add` it is =.

    a, b: shared addresses of tiles made of boxes. a's are `rows` rows of 64 k; b's are `depth` rows of 64 columns, or with `b_by_k`
    `columns` rows of 64 k. All 128 threads of a warpgroup call it. Lane t of warp w holds, for j in 0 .. columns / 8 - 1, row 16w + t / 4,
    columns 8j + 2 (t % 4) and the next in sums[4j], sums[4j + 1], and the same columns of the row 8 below in sums[4j + 2], sums[4j + 3].
    It returns with at most this step's wgmma in flight; the previous step's are complete. Call `finish` before reading sums.
    """

    def along_k(rows: int) -> list[int]:  # 16 elements of k are 32 bytes of a row
        return [i // 4 * rows * 128 + i % 4 * 32 for i in range(depth // 16)]

    if b_by_k:
        return _products(dtype, columns, along_k(rows), along_k(columns), None)
    return _products(dtype, columns, along_k(rows), [2048 * i for i in range(depth // 16)], depth * 128)  # or 16 rows of b


@making
def _products(dtype: str, columns: int, left: Sequence[int], right: Sequence[int], apart: int | None) -> Any:
    """The intrinsic (sums, a, b, add): a wgmma for each pair of byte offsets into a and b. apart: b's leading-dimension offset, bytes from
    64 columns to the next 64, where b is MN-major; None where b is K-major, like a."""
    count = columns // 2
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    registers = ", ".join(f"${j}" for j in range(count))
    a, b, add = (f"${2 * count + i}" for i in range(3))  # operands after the sums, which are outputs and inputs
    lines = [
        "{ .reg .pred add, always; .reg .b32 low, a_high, b_high; .reg .b64 a, b;",
        f"setp.ne.b32 add, {add}, 0; setp.eq.b32 always, 0, 0;",
        f"mov.b32 a_high, {_high(1024)}; mov.b32 b_high, {_high(1024)};",
        "wgmma.fence.sync.aligned;",
    ]
    for i, (of_a, of_b) in enumerate(zip(left, right, strict=True)):  # descriptor addresses are in units of 16 bytes
        lines += [
            f"add.u32 low, {b}, {of_b // 16}; mov.b64 b, {{low, b_high}};",
            f"add.u32 low, {a}, {of_a // 16}; mov.b64 a, {{low, a_high}};",
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{registers}}},",
            f"a, b, {'always' if i else 'add'}, 1, 1, 0, {0 if apart is None else 1};",  # scale-a, scale-b: 1; tnspA: 0 (K-major); tnspB
        ]
    text = "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1; }"])

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, sums: Any, a: Any, b: Any, add: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            sixteenth = ir.Constant(I32, 4)
            left = builder.lshr(args[1], sixteenth)
            right = builder.or_(builder.lshr(args[2], sixteenth), ir.Constant(I32, (apart or 0) // 16 << 16))
            in_place(context, builder, signature, args, count, text, [left, right, args[3]])
            return context.get_dummy_value()

        return void(sums, u32, u32, u32), codegen

    return multiply


@making
def finish(columns: int) -> Any:
    """The intrinsic (sums): waits for all wgmma. The sums are its operands, so that the compiler moves no read of them above it."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def wait(typing: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            in_place(context, builder, signature, args, columns // 2, "wgmma.wait_group.sync.aligned 0;", [])
            return context.get_dummy_value()

        return void(sums), codegen

    return wait


def in_place(context: Any, builder: Any, signature: Any, args: Any, count: int, text: str, more: Sequence[Any]) -> None:
    """Emits PTX that updates the first argument's `count` floats, operands $0 on; the 32-bit words `more` are operands $(2 count) on."""
    places = []
    for i in range(count):
        places.append(element(context, builder, signature.args[0], args[0], ir.Constant(I64, 0), i))
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r"] * len(more))
    values = [*(builder.load(place) for place in places), *more]
    sums = assembly(builder, ir.LiteralStructType([FLOAT] * count), text, constraints, values, effect=True, together=True)
    for i, place in enumerate(places):
        builder.store(builder.extract_value(sums, i), place)


@making
def store_matrices(dtype: str) -> Any:
    """The intrinsic (address, sums, at): stmatrix.x4 of sums[at:at + 8], rounded to dtype; lane l gives a row's address in matrix l / 8."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, address: Any, sums: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            floats = [builder.load(element(context, builder, signature.args[1], args[1], args[2], i)) for i in range(8)]
            words = [PACK[dtype](builder, floats[i : i + 2]) for i in range(0, 8, 2)]
            text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
            assembly(builder, ir.VoidType(), text, "r,r,r,r,r", [args[0], *words], effect=True, together=True)
            return context.get_dummy_value()

        return void(u32, sums, i64), codegen

    return store
