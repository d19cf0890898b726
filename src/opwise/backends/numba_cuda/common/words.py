"""16-byte pieces of a row as the four 32-bit words they came in, and a block's part in a thread block cluster (sm_90), as intrinsics.

As words, 16-bit elements need half the registers of float32 values. `again` hides from the compiler that words were unpacked before:
otherwise it would keep the float32 values in registers.
"""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common.compiler import intrinsic, ir, types
from opwise.backends.numba_cuda.common.ptx import I32, I64, PACK, UNPACK, assembly, element, instruction

VOID, QUAD = ir.VoidType(), ir.LiteralStructType([I32] * 4)
u32, i64, f32, void = types.uint32, types.int64, types.float32, types.void

# 2^x, with results below 2^-126 flushed to 0: half the instructions of ptx.exp2.
exp2_flushed = instruction("ex2.approx.ftz.f32 $0, $1;", f32, f32)
fma = instruction("fma.rn.f32 $0, $1, $2, $3;", f32, f32, f32, f32)
copies_done = instruction("cp.async.wait_all;", void, effect=True)  # those that this thread asked for

# ---- clusters -----------------------------------------------------------------------------------------------------------------------

rank_in_cluster = instruction("mov.u32 $0, %cluster_ctarank;", u32)
# Relaxed: a thread that wrote for other blocks fences that itself. A release is a MEMBAR of every warp, which waits for the loads that
# ptxas puts ahead of it.
cluster_arrive = instruction("barrier.cluster.arrive.relaxed.aligned;", void, effect=True, together=True)
cluster_fence = instruction("fence.acq_rel.cluster;", void, effect=True)
of_block = instruction("mapa.shared::cluster.u32 $0, $1, $2;", u32, u32, u32)  # where that block has what is there in this one
cluster_wait = instruction("barrier.cluster.wait.acquire.aligned;", void, effect=True, together=True)
# Writes to the place that the shared address $0 has in block $1 of the cluster.
store_pair_in_block = instruction(
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; st.shared::cluster.v2.f32 [there], {$2, $3}; }",
    void, u32, u32, f32, f32, effect=True,
)  # fmt: skip
# The same, and the mbarrier at the place that $4 has there counts its 8 bytes.
send_pair_to_block = instruction(
    "{ .reg .b32 there, bell; mapa.shared::cluster.u32 there, $0, $1; mapa.shared::cluster.u32 bell, $4, $1; "
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {$2, $3}, [bell]; }",
    void, u32, u32, f32, f32, u32, effect=True,
)  # fmt: skip
clock = instruction("mov.u64 $0, %clock64;", i64, effect=True)
nap = instruction("nanosleep.u32 64;", void, effect=True)
pairs_arrived = instruction(  # waits a while for the mbarrier's first phase; 0 where it must be asked again
    "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [$1], 0; selp.u32 $0, 1, 0, p; }", u32, u32, effect=True
)

# ---- a stream of rows (softmax/stream.py) -----------------------------------------------------------------------------------------------

bulk_load = instruction(  # to, from, bytes (all multiples of 16), barrier: asked for by one thread
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", void, u32, i64, u32, u32, effect=True
)
store_floats = instruction("st.shared.v2.f32 [$0], {$1, $2};", void, u32, f32, f32, effect=True)
load_float = instruction("ld.shared.f32 $0, [$1];", f32, u32, effect=True)
# A maximum and a sum, each in 64 bits with the tag: either half is written at once, so whoever reads the tag with it has all of it.
publish = instruction(
    "{ .reg .b64 a, b; mov.b64 a, {$1, $3}; mov.b64 b, {$2, $3}; st.relaxed.gpu.global.v2.b64 [$0], {a, b}; }",
    void, i64, f32, f32, u32, effect=True,
)  # fmt: skip
clear_pair = instruction("{ .reg .b64 z; mov.b64 z, 0; st.relaxed.gpu.global.v2.b64 [$0], {z, z}; }", void, i64, effect=True)


# ---- words: `at` is the first of a piece's four in a local array of uint32 -----------------------------------------------------------


def _load(text: str, address_kind: Any, code: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, address: Any, words: Any, at: Any) -> Any:
        """The 16 bytes at `address` to words[at:at + 4]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            loaded = assembly(builder, QUAD, text, f"=r,=r,=r,=r,{code}", [args[0]], effect=True)
            for k in range(4):
                builder.store(builder.extract_value(loaded, k), element(context, builder, signature.args[1], args[1], args[2], k))
            return context.get_dummy_value()

        return void(address_kind, words, i64), codegen

    return load


load_words = _load("ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", i64, "l")
load_shared_words = _load("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", u32, "r")
load_pair = _load(  # what `publish` wrote: maximum, tag, sum, tag
    "{ .reg .b64 a, b; ld.relaxed.gpu.global.v2.b64 {a, b}, [$4]; mov.b64 {$0, $1}, a; mov.b64 {$2, $3}, b; }", i64, "l"
)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def store_words(typing: Any, address: Any, words: Any, at: Any) -> Any:
    """words[at:at + 4] to the 16 bytes at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [builder.load(element(context, builder, signature.args[1], args[1], args[2], k)) for k in range(4)]
        assembly(builder, VOID, "st.global.v4.b32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r", [args[0], *values], effect=True)
        return context.get_dummy_value()

    return void(i64, words, i64), codegen


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def again(typing: Any, words: Any, at: Any) -> Any:
    """words[at:at + 4] stay what they are, and the compiler does not know it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = [element(context, builder, signature.args[0], args[0], args[1], k) for k in range(4)]
        same = assembly(builder, QUAD, "", "=r,=r,=r,=r,0,1,2,3", [builder.load(place) for place in places], effect=True)
        for k, place in enumerate(places):
            builder.store(builder.extract_value(same, k), place)
        return context.get_dummy_value()

    return void(words, i64), codegen


def _unpack(dtype: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def unpack(typing: Any, words: Any, at: Any, values: Any) -> Any:
        """The elements of words[at:at + 4], as float32, to values[0:]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            count = 0
            for i in range(4):
                word = builder.load(element(context, builder, signature.args[0], args[0], args[1], i))
                for value in UNPACK[dtype](builder, word):
                    builder.store(value, element(context, builder, signature.args[2], args[2], ir.Constant(I64, 0), count))
                    count += 1
            return context.get_dummy_value()

        return void(words, i64, values), codegen

    return unpack


def _pack(dtype: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def pack(typing: Any, values: Any, words: Any, at: Any) -> Any:
        """values[0:], rounded, to words[at:at + 4]."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            each = 1 if dtype == "float32" else 2
            floats = [builder.load(element(context, builder, signature.args[0], args[0], ir.Constant(I64, 0), k)) for k in range(4 * each)]
            for i in range(4):
                word = PACK[dtype](builder, floats[i * each : (i + 1) * each])
                builder.store(word, element(context, builder, signature.args[1], args[1], args[2], i))
            return context.get_dummy_value()

        return void(values, words, i64), codegen

    return pack


def _keep_greater(dtype: str) -> Any:
    kind = {"float32": "f32", "float16": "f16x2", "bfloat16": "bf16x2"}[dtype]

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def keep_greater(typing: Any, greatest: Any, words: Any, at: Any) -> Any:
        """greatest[0:4] become the greater, element by element, of themselves and words[at:at + 4]; of a number and a nan, the number."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for i in range(4):
                kept = element(context, builder, signature.args[0], args[0], ir.Constant(I64, 0), i)
                word = builder.load(element(context, builder, signature.args[1], args[1], args[2], i))
                both = [builder.load(kept), word]
                builder.store(assembly(builder, I32, f"max.{kind} $0, $1, $2;", "=r,r,r", both, effect=False), kept)
            return context.get_dummy_value()

        return void(greatest, words, i64), codegen

    return keep_greater


KEEP_GREATER = {dtype: _keep_greater(dtype) for dtype in UNPACK}
UNPACK_WORDS = {dtype: _unpack(dtype) for dtype in UNPACK}
PACK_WORDS = {dtype: _pack(dtype) for dtype in PACK}
LEAST_WORD = {"float32": 0xFF800000, "float16": 0xFC00FC00, "bfloat16": 0xFF80FF80}  # -inf, as often as a word holds it
