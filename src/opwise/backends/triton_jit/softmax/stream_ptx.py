"""Inline PTX that the warps of stream_kernel.py execute separately. $0 and on are the results; $0 is 0 if there is none."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Makes the mbarriers from $1 on, one a thread, $2: those from $3 on and before $4 count $6 arrivals, all others before $5 one.
BEGIN = gl.constexpr("""{ .reg .pred there, many, few; .reg .b32 at, count; setp.lt.u32 there, $2, $5; setp.ge.u32 many, $2, $3;
    setp.lt.u32 few, $2, $4; and.pred many, many, few; selp.b32 count, $6, 1, many; mad.lo.u32 at, $2, 8, $1;
    @there mbarrier.init.shared::cta.b64 [at], count;
    fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; mov.b32 $0, 0; }""")
# By threads whose $1, bytes, is not 0: to $2 in shared memory, from $3; mbarrier $4 knows when all has come.
ASK = gl.constexpr("""{ .reg .pred one; setp.ne.b32 one, $1, 0; @one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$4], $1;
    @one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$2], [$3], $1, [$4]; mov.b32 $0, 0; }""")
GET = gl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
GET_SOME = gl.constexpr("""{ .reg .pred there; .reg .b32 a, b, c, d; setp.ne.b32 there, $5, 0;
    mov.b32 a, $6; mov.b32 b, $6; mov.b32 c, $6; mov.b32 d, $6; @there ld.shared.v4.b32 {a, b, c, d}, [$4];
    mov.b32 $0, a; mov.b32 $1, b; mov.b32 $2, c; mov.b32 $3, d; }""")
PUT = gl.constexpr("st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;")
PUT_SOME = gl.constexpr("{ .reg .pred there; setp.ne.b32 there, $6, 0; @there st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }")
# Lanes' maxima $2, and sums $3 beside them, as the warp's.
ACROSS = "".join(
    f"mov.b32 i, {{0}}; shfl.sync.bfly.b32 i, i, {lanes}, 31, 0xffffffff; mov.b32 o, i; {{1}}.f32 {{0}}, {{0}}, o; "
    for lanes in (16, 8, 4, 2, 1)
)
OVER_WARP = gl.constexpr(
    "{ .reg .pred none; .reg .b32 i; .reg .f32 o, z, w, s; mov.f32 s, $3; mov.f32 w, $2; mov.f32 z, w; "
    + ACROSS.format("z", "max")
    + "mov.f32 o, z; setp.eq.f32 none, z, 0fFF800000; @none mov.f32 o, 0f00000000; sub.f32 w, w, o;"
    "mul.f32 w, w, 0f3FB8AA3B; ex2.approx.ftz.f32 w, w; mul.f32 s, s, w; " + ACROSS.format("s", "add") + "mov.f32 $0, z; mov.f32 $1, s; }"
)
# Two floats, $2 and $3, to $1, and mbarrier $4 is told; by the lane whose $5 is 0.
LAY = gl.constexpr("""{ .reg .pred one; setp.eq.b32 one, $5, 0; @one st.shared.v2.f32 [$1], {$2, $3};
    @one mbarrier.arrive.shared::cta.b64 _, [$4]; mov.b32 $0, 0; }""")
# Two floats from $2; no maximum and no sum in lanes $3 from $4 on.
PICK = gl.constexpr("""{ .reg .pred there; .reg .f32 m, s; setp.lt.u32 there, $3, $4; mov.f32 m, 0fFF800000; mov.f32 s, 0f00000000;
    @there ld.shared.v2.f32 {m, s}, [$2]; mov.f32 $0, m; mov.f32 $1, s; }""")
# A pair is two words of 64 bits, (maximum, tag) and (sum, tag): each is written and read at once, so no fence orders one after the other.
TELL = gl.constexpr("""{ .reg .pred first; .reg .b64 maximum, sum; setp.eq.s32 first, $1, 0;
    mov.b64 maximum, {$3, $5}; mov.b64 sum, {$4, $5};
    @first st.relaxed.gpu.global.v2.b64 [$2], {maximum, sum}; mov.b32 $0, 0; }""")
# How many left before, in all lanes. $1: the lane, $2: their counter.
LEAVE = gl.constexpr("""{ .reg .pred first; .reg .b32 old; setp.eq.b32 first, $1, 0; mov.b32 old, 0; bar.warp.sync 0xffffffff;
    @first atom.acq_rel.gpu.global.add.u32 old, [$2], 1; shfl.sync.idx.b32 old, old, 0, 31, 0xffffffff; mov.b32 $0, old; }""")
CLEAR = gl.constexpr("{ .reg .pred there; setp.lt.s32 there, $2, $3; @there st.global.v4.b32 [$1], {0, 0, 0, 0}; mov.b32 $0, 0; }")


@gluon.constexpr_function
def hearing(pairs: int) -> str:
    """A thread's pairs, of which $2 pairs and what follows say where they lie, once the tags of all have reached the last operand.

    Each time all are looked at anew: where one waits for one after the other, the last has gone out of date, and its round trip more, while
    memory is busy, takes longer than a turn.
    """
    every = range(pairs)
    lines = ["{ .reg .pred there; .reg .b32 least; .reg .b64 " + ", ".join(f"p{k}, q{k}" for k in every) + ";"]
    lines.append(".reg .b32 " + ", ".join(f"m{k}, s{k}, t{k}, u{k}" for k in every) + "; again:")
    lines += [f"ld.relaxed.gpu.global.v2.b64 {{p{k}, q{k}}}, [${2 * pairs + k}];" for k in every]
    lines += [f"mov.b64 {{m{k}, t{k}}}, p{k}; mov.b64 {{s{k}, u{k}}}, q{k}; min.s32 t{k}, t{k}, u{k};" for k in every]
    lines.append("mov.b32 least, t0; " + " ".join(f"min.s32 least, least, t{k};" for k in every if k))
    lines.append(f"setp.ge.s32 there, least, ${3 * pairs}; @!there bra again;")
    return " ".join([*lines, *(f"mov.b32 ${2 * k}, m{k}; mov.b32 ${2 * k + 1}, s{k};" for k in every), "}"])


@gluon.constexpr_function
def hearing_operands(pairs: int) -> str:
    return ",".join(["=r"] * (2 * pairs) + ["l"] * pairs + ["r", "~{memory}"])


@gluon.constexpr_function
def ints(count: int) -> tuple[Any, ...]:
    return (gl.int32,) * count
