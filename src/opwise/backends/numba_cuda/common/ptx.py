"""PTX instructions that Numba does not expose, as intrinsics: one instruction each, or one with a conversion.

Numba does not merge adjacent scalar accesses, so the 16-byte ones are written as PTX. Addresses are int64. A load spreads its
elements, as float32, over a local array from `at` on; a store gathers and rounds to nearest even. With constant indices after
unrolling the local arrays become registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opwise.backends.numba_cuda.common.compiler import data_of, intrinsic, ir, types

I16, I32, I64, HALF, FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.HalfType(), ir.FloatType()
ELEMENTS = {"float32": 4, "float16": 8, "bfloat16": 8}  # in 16 bytes
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def assembly(builder: Any, result: Any, text: str, constraints: str, values: Sequence[Any], effect: bool, together: bool = False) -> Any:
    """Emits inline PTX. effect: volatile with a memory clobber, so it is not reordered with other memory accesses.

    together: marked convergent, since all lanes must execute it together; LLVM must not duplicate it into divergent branches.
    """
    kind = ir.FunctionType(result, [value.type for value in values])
    if effect:
        constraints = ",".join(filter(None, (constraints, "~{memory}")))
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=effect), values, attrs=("convergent",) if together else ())


def element(context: Any, builder: Any, kind: Any, array: Any, at: Any, k: int) -> Any:
    """The address of array[at + k]."""
    data = data_of(context, builder, kind, array)
    return builder.gep(data, [builder.add(at, ir.Constant(at.type, k))], inbounds=True)


# --- the elements in a 32-bit word ---------------------------------------------------------------------------------------------------


def _floats_of_f32(builder: Any, word: Any) -> list[Any]:
    return [builder.bitcast(word, FLOAT)]


def _floats_of_f16(builder: Any, word: Any) -> list[Any]:
    halves = [builder.trunc(word, I16), builder.trunc(builder.lshr(word, ir.Constant(I32, 16)), I16)]
    return [builder.fpext(builder.bitcast(half, HALF), FLOAT) for half in halves]


def _floats_of_bf16(builder: Any, word: Any) -> list[Any]:
    """bfloat16 is the upper half of a float32."""
    low, high = builder.shl(word, ir.Constant(I32, 16)), builder.and_(word, ir.Constant(I32, 0xFFFF0000))
    return [builder.bitcast(low, FLOAT), builder.bitcast(high, FLOAT)]


def _word_of_f32(builder: Any, floats: Sequence[Any]) -> Any:
    return builder.bitcast(floats[0], I32)


def _word_of_f16(builder: Any, floats: Sequence[Any]) -> Any:
    return assembly(builder, I32, "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [floats[1], floats[0]], effect=False)


def _word_of_bf16(builder: Any, floats: Sequence[Any]) -> Any:
    return assembly(builder, I32, "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [floats[1], floats[0]], effect=False)


UNPACK = {"float32": _floats_of_f32, "float16": _floats_of_f16, "bfloat16": _floats_of_bf16}
PACK = {"float32": _word_of_f32, "float16": _word_of_f16, "bfloat16": _word_of_bf16}


_CODES: dict[Any, tuple[str, Any]] = {
    types.float32: ("f", FLOAT),
    types.uint32: ("r", I32),
    types.int32: ("r", I32),
    types.int64: ("l", I64),
    types.void: ("", ir.VoidType()),
}

# --- memory -----------------------------------------------------------------------------------------------------------------


def _wide_load(dtype: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """16 bytes at `address` (a multiple of 16; memory that stays read-only during the kernel) to buffer[at:]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # Not L1::no_allocate: on an H200 that costs a copy 2.5 % of its bandwidth.
            text = "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];"
            quad = ir.LiteralStructType([I32] * 4)
            words = assembly(builder, quad, text, "=r,=r,=r,=r,l", [args[0]], effect=True)
            k = 0
            for i in range(4):
                for value in UNPACK[dtype](builder, builder.extract_value(words, i)):
                    builder.store(value, element(context, builder, signature.args[1], args[1], args[2], k))
                    k += 1
            return context.get_dummy_value()

        return types.void(types.int64, buffer, types.int64), codegen

    return load


def _wide_store(dtype: str) -> Any:
    each = ELEMENTS[dtype] // 4

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """buffer[at:], rounded, to the 16 bytes at `address` (a multiple of 16)."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, array, at = signature.args[1], args[1], args[2]
            floats = [builder.load(element(context, builder, kind, array, at, k)) for k in range(4 * each)]
            words = [PACK[dtype](builder, floats[i * each : (i + 1) * each]) for i in range(4)]
            assembly(builder, ir.VoidType(), "st.global.v4.b32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r", [args[0], *words], effect=True)
            return context.get_dummy_value()

        return types.void(types.int64, buffer, types.int64), codegen

    return store


def _narrow_load(dtype: str, space: str = "global.nc", place: Any = types.int64) -> Any:
    code = _CODES[place][0]

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """One element at `address`, in memory that stays read-only during the kernel, to buffer[at]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if dtype == "float32":
                value = assembly(builder, FLOAT, f"ld.{space}.f32 $0, [$1];", f"=f,{code}", [args[0]], effect=True)
            else:
                bits = assembly(builder, I16, f"ld.{space}.b16 $0, [$1];", f"=h,{code}", [args[0]], effect=True)
                value = UNPACK[dtype](builder, builder.zext(bits, I32))[0]
            builder.store(value, element(context, builder, signature.args[1], args[1], args[2], 0))
            return context.get_dummy_value()

        return types.void(place, buffer, types.int64), codegen

    return load


def _narrow_store(dtype: str, space: str = "global", place: Any = types.int64) -> Any:
    code = _CODES[place][0]

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, address: Any, buffer: Any, at: Any) -> Any:
        """buffer[at], rounded, to the one element at `address`."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(element(context, builder, signature.args[1], args[1], args[2], 0))
            if dtype == "float32":
                assembly(builder, ir.VoidType(), f"st.{space}.f32 [$0], $1;", f"{code},f", [args[0], value], effect=True)
            else:
                bits = builder.trunc(PACK[dtype](builder, [value, ir.Constant(FLOAT, 0.0)]), I16)
                assembly(builder, ir.VoidType(), f"st.{space}.b16 [$0], $1;", f"{code},h", [args[0], bits], effect=True)
            return context.get_dummy_value()

        return types.void(place, buffer, types.int64), codegen

    return store


LOAD: dict[tuple[str, bool], Any] = {}
STORE: dict[tuple[str, bool], Any] = {}
for _dtype in ELEMENTS:
    LOAD[_dtype, True], LOAD[_dtype, False] = _wide_load(_dtype), _narrow_load(_dtype)
    STORE[_dtype, True], STORE[_dtype, False] = _wide_store(_dtype), _narrow_store(_dtype)
# One element of shared memory; its addresses are uint32.
LOAD_SHARED = {_dtype: _narrow_load(_dtype, "shared", types.uint32) for _dtype in ELEMENTS}
STORE_SHARED = {_dtype: _narrow_store(_dtype, "shared", types.uint32) for _dtype in ELEMENTS}


# --- single instructions -----------------------------------------------------------------------------------------------------------


def instruction(text: str, result: Any, *arguments: Any, effect: bool = False, together: bool = False) -> Any:
    """An intrinsic that is exactly this PTX text: $0 the result, where there is one, then the arguments in order.

    `effect` and `together` as `assembly` takes them.
    """
    codes = [] if result == types.void else ["=" + _CODES[result][0]]
    constraints = ",".join(codes + [_CODES[kind][0] for kind in arguments])

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = assembly(builder, _CODES[result][1], text, constraints, args, effect, together)
        return context.get_dummy_value() if result == types.void else value

    return intrinsic(_TYPING[len(arguments)](result(*arguments), codegen))


_TYPING: dict[int, Callable[..., Any]] = {  # Numba reads the number of parameters off the function
    0: lambda signature, codegen: lambda typing: (signature, codegen),
    1: lambda signature, codegen: lambda typing, a: (signature, codegen),
    2: lambda signature, codegen: lambda typing, a, b: (signature, codegen),
    3: lambda signature, codegen: lambda typing, a, b, c: (signature, codegen),
    4: lambda signature, codegen: lambda typing, a, b, c, d: (signature, codegen),
    5: lambda signature, codegen: lambda typing, a, b, c, d, e: (signature, codegen),
}

exp2 = instruction("ex2.approx.f32 $0, $1;", types.float32, types.float32)  # 2 ulp; subnormals kept, since .ftz is absent
reciprocal = instruction("rcp.approx.f32 $0, $1;", types.float32, types.float32)  # 1 ulp; subnormals kept
float_of = instruction("mov.b32 $0, $1;", types.float32, types.uint32)
bits_of = instruction("mov.b32 $0, $1;", types.uint32, types.float32)
greater = instruction("max.f32 $0, $1, $2;", types.float32, types.float32, types.float32)  # of a number and NaN: the number
# Returns the old value and adds 1, or wraps to 0 at the limit. Releases this thread's writes, and acquires those of the threads before it.
ticket = instruction("atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;", types.uint32, types.int64, types.uint32, effect=True)
# Words that other blocks access concurrently.
load_word = instruction("ld.relaxed.gpu.global.u32 $0, [$1];", types.uint32, types.int64, effect=True)
store_word = instruction("st.relaxed.gpu.global.u32 [$0], $1;", types.void, types.int64, types.uint32, effect=True)
