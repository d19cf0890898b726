"""Tensor-core and asynchronous-copy instructions of sm_80 and later, as intrinsics over local arrays and shared addresses.

Shared addresses are 32-bit, as the instructions take them. Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16" and
"... mma.m16n8k8".
"""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common.compiler import data_of, intrinsic, ir, making, types
from opwise.backends.numba_cuda.common.ptx import FLOAT, I32, PACK, assembly, element, instruction

VOID = ir.VoidType()
u32, i64, f32, void = types.uint32, types.int64, types.float32, types.void

# Asynchronous copies of 16 or 4 bytes, global to shared memory; the last argument is the bytes to read, the rest are zero-filled.
copy16 = instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", void, u32, i64, u32, effect=True)
copy4 = instruction("cp.async.ca.shared.global [$0], [$1], 4, $2;", void, u32, i64, u32, effect=True)
commit = instruction("cp.async.commit_group;", void, effect=True)
store_words = instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", void, u32, u32, u32, u32, u32, effect=True)
load_word = instruction("ld.shared.b32 $0, [$1];", u32, u32, effect=True)
round_tf32 = instruction("cvt.rna.tf32.f32 $0, $1;", u32, u32)  # to nearest, ties away; a plain mma would truncate
read32 = instruction(  # 4 bytes if the condition is nonzero; else 0, without a read
    "{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.b32 $0, 0; @p ld.global.nc.b32 $0, [$1]; }", u32, i64, u32, effect=True
)
read16 = instruction(
    "{ .reg .pred p; .reg .b16 h; setp.ne.u32 p, $2, 0; mov.b16 h, 0; @p ld.global.nc.b16 h, [$1]; cvt.u32.u16 $0, h; }",
    u32, i64, u32, effect=True,
)  # fmt: skip


@making
def wait_for_all_but(groups: int) -> Any:
    """Intrinsic: waits until at most `groups` of the thread's committed cp.async groups are pending."""
    return instruction(f"cp.async.wait_group {groups};", void, effect=True)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def shared_address(typing: Any, array: Any) -> Any:
    """The address of a shared array's first element, in the shared window."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = data_of(context, builder, signature.args[0], args[0])
        text = "{ .reg .u64 a; cvta.to.shared.u64 a, $1; cvt.u32.u64 $0, a; }"
        return assembly(builder, I32, text, "=r,l", [builder.ptrtoint(data, ir.IntType(64))], effect=False)

    return u32(array), codegen


def _matrices(transposed: bool) -> Any:
    modifier = ".trans" if transposed else ""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """Four 8x8 matrices of 16-bit elements to buffer[at:at + 4]: lane l gives the address of row l % 8 of matrix l // 8."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
            words = assembly(builder, ir.LiteralStructType([I32] * 4), text, "=r,=r,=r,=r,r", [args[0]], effect=True)
            for k in range(4):
                builder.store(builder.extract_value(words, k), element(context, builder, signature.args[1], args[1], args[2], k))
            return context.get_dummy_value()

        return void(u32, buffer, i64), codegen

    return load


def _mma(shape_and_types: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, c: Any, c_at: Any, a: Any, a_at: Any, b: Any, b_at: Any) -> Any:
        """c[c_at:+4] += a[a_at:+4] b[b_at:+2], a product of 16 rows and 8 columns spread over the warp."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args
            to = [element(context, builder, kinds[0], args[0], args[1], k) for k in range(4)]
            left = [builder.load(element(context, builder, kinds[2], args[2], args[3], k)) for k in range(4)]
            right = [builder.load(element(context, builder, kinds[4], args[4], args[5], k)) for k in range(2)]
            text = f"mma.sync.aligned.{shape_and_types} {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
            result = ir.LiteralStructType([FLOAT] * 4)
            values = [*left, *right, *(builder.load(pointer) for pointer in to)]
            # Convergent by nature: every lane takes part. `effect` keeps the compiler from moving it into a branch.
            sums = assembly(builder, result, text, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", values, effect=True)
            for k in range(4):
                builder.store(builder.extract_value(sums, k), to[k])
            return context.get_dummy_value()

        return void(c, i64, a, i64, b, i64), codegen

    return multiply


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def load_floats(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
    """Four float32 at a shared address (a multiple of 16) to buffer[at:at + 4]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        text = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];"
        values = assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, "=f,=f,=f,=f,r", [args[0]], effect=True)
        for k in range(4):
            builder.store(builder.extract_value(values, k), element(context, builder, signature.args[1], args[1], args[2], k))
        return context.get_dummy_value()

    return void(u32, buffer, i64), codegen


def _pair(dtype: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """buffer[at] and buffer[at + 1], rounded, to two neighbours at `address` (a multiple of their size)."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            low, high = (builder.load(element(context, builder, signature.args[1], args[1], args[2], k)) for k in range(2))
            if dtype == "float32":
                assembly(builder, VOID, "st.global.v2.f32 [$0], {$1, $2};", "l,f,f", [args[0], low, high], effect=True)
            else:
                assembly(builder, VOID, "st.global.b32 [$0], $1;", "l,r", [args[0], PACK[dtype](builder, [low, high])], effect=True)
            return context.get_dummy_value()

        return void(i64, buffer, i64), codegen

    return store


load_matrices, load_transposed = _matrices(False), _matrices(True)
STORE_PAIR = {dtype: _pair(dtype) for dtype in ("float32", "float16", "bfloat16")}
MULTIPLY = {
    "float16": _mma("m16n8k16.row.col.f32.f16.f16.f32"),
    "bfloat16": _mma("m16n8k16.row.col.f32.bf16.bf16.f32"),
    "tfloat32": _mma("m16n8k8.row.col.f32.tf32.tf32.f32"),
}
