"""The split_k kernel's PTX on sm_90: copies and barriers of its pipeline, and partial sums by st.async. Gluon cannot express the latter,
and puts a barrier of the whole program before a copy or an arrival; to PTX it adds none.

Pipeline: shared memory holds, from its beginning (`global_smem`, Triton's own name), the first factor's part of all stages, the second's,
and at `full` two mbarriers a stage, 8 bytes each. `full` is arrived at by the copies, `empty` by each warp once. A parity is that of the
phase waited for; the phase before a barrier's first counts as complete, so `empty` is first waited for by parity 1.

Partial sums: a thread's sums are in units, of 8 columns, in rows g and g + 8, or of one of these rows. Unit u is owned by block u % S, as
its u / S-th. A block stores by `st.async` what others own in their partials, where an mbarrier counts the bytes: no handshake is needed.
All blocks have the same threads, and a thread gets from others what it has itself. A block's partials have a room for each other block, by
how many ranks that is further on than the owner; in that order they are added to the owner's own, so that a sum is the same in every run.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

OPERANDS = gl.constexpr("=r,r,r,r,r,r,r,r,r,r,r,~{memory}")


@gluon.constexpr_function
def copying(bm: int, bn: int, bk: int, a_t: bool, b_t: bool) -> str:
    """PTX of one step's copies to one stage, once it is free: boxes of 64 columns or all, of a and of b as they lie in memory.

    The tensor maps are parameters 0 and 5 of split_kernel. Operands: 1 not 0 in the warp that copies, if there is such a step; 2, 3 empty
    and its parity; 4, 5 full and all bytes; 6, 7 the factors' parts; 8, 9, 10 the tile's k, row and column.
    """
    box = "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [at], [map, {x, y}], [$4];"

    def boxes(part: str, y: str, rows: int, x: str, columns: int) -> list[str]:
        return [f"add.u32 at, {part}, {rows * 2 * to}; add.u32 x, {x}, {to}; add.u32 y, {y}, 0; {box}" for to in range(0, columns, 64)]

    k, row, column = ("$8", bk), ("$9", bm), ("$10", bn)
    lines = [
        "{ .reg .pred other, free, one; .reg .b64 map; .reg .b32 at, x, y; setp.eq.b32 other, $1, 0; setp.eq.b32 free, $1, 0;",
        "again: @!free mbarrier.try_wait.parity.shared::cta.b64 free, [$2], $3; @!free bra.uni again;",
        "elect.sync _|one, 0xffffffff; not.pred other, other; and.pred one, one, other;",
        "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$4], $5;",
        "mov.b64 map, split_kernel_param_0; cvta.param.u64 map, map;",
        *(boxes("$6", *k, *row) if a_t else boxes("$6", *row, *k)),
        "mov.b64 map, split_kernel_param_5; cvta.param.u64 map, map;",
        *(boxes("$7", *column, *k) if b_t else boxes("$7", *k, *column)),
    ]
    return " ".join([*lines, "mov.b32 $0, 0; }"])


@gluon.constexpr_function
def beginning(stages: int, warps: int) -> str:
    """PTX that makes the barriers at operand 1, in the threads whose operand 2 is not 0.

    The others jump: each is then one instruction, where under a predicate it is fourteen, and by a thread of its own a turn of a loop,
    since the address is to be uniform.
    """
    each = [f"mbarrier.init.shared::cta.b64 [$1+{8 * i}], {warps if stages <= i < 2 * stages else 1};" for i in range(2 * stages + 1)]
    lines = ["{ .reg .pred other; setp.eq.b32 other, $2, 0; @other bra made;", *each, "fence.mbarrier_init.release.cluster;"]
    return " ".join([*lines, "made: mov.b32 $0, 0; }"])


@gluon.jit
def first_lane(x):  # type: ignore[no-untyped-def]
    """1 in a warp's first thread, else 0."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred first; mov.u32 $0, %tid.x; and.b32 $0, $0, 31; setp.eq.b32 first, $0, 0; selp.b32 $0, 1, 0, first; }",
        "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def begin(full, mine, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Makes the stages' barriers and that of the partials; a barrier of the program follows, or of the first warp for what that alone does.
    mine: not 0 in one thread."""
    BEGINNING: gl.constexpr = beginning(STAGES, gl.num_warps())
    gl.inline_asm_elementwise(BEGINNING, "=r,r,r,~{memory}", [full, mine], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def release(at, mine):  # type: ignore[no-untyped-def]
    """The threads whose `mine` is not 0 arrive at the barrier at this shared address."""
    gl.inline_asm_elementwise(
        "{ .reg .pred mine; setp.ne.b32 mine, $2, 0; @mine mbarrier.arrive.shared::cta.b64 _, [$1]; mov.b32 $0, 0; }",
        "=r,r,r,~{memory}", [at, mine], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def fill(COPIES: gl.constexpr, first, second, full, mine, stage, parity, row, column, k, FIRST: gl.constexpr, SECOND: gl.constexpr,
         STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """In the warp whose `mine` is not 0: waits until `stage` is free and has it filled. first, second: where the factors' parts begin,
    of FIRST and SECOND bytes a stage."""
    gl.inline_asm_elementwise(
        COPIES, OPERANDS, [mine, full + 8 * (STAGES + stage), parity, full + 8 * stage, FIRST + SECOND, first + FIRST * stage,
                           second + SECOND * stage, k, row, column], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def words_of(across: int, split: int) -> int:
    """Sums that a thread has of a unit: 4, or 2 where there would be fewer units than blocks."""
    return 4 if across // 8 >= split else 2


@gluon.constexpr_function
def units_of(across: int, split: int) -> int:
    """Units that a block owns, at most."""
    return int(-(-across // 2 // words_of(across, split) // split))


@gluon.constexpr_function
def sending(across: int, split: int, threads: int) -> str:
    """PTX that leaves a thread's own units at operand 2 and pushes the others to their owners.

    Operands: across / 2 results that nobody uses, as many sums, and each as often the block's rank, where its own units go, the inbox and
    its barrier.
    """
    count, words = across // 2, words_of(across, split)
    unit, room = threads * words * 4, units_of(across, split) * threads * words * 4
    lines = [
        "{ .reg .pred own, low; .reg .b32 mine, box, there, bell; mov.u32 box, %tid.x; "
        f"mad.lo.u32 mine, box, {words * 4}, ${3 * count}; mad.lo.u32 box, box, {words * 4}, ${4 * count};"
    ]
    for owner in range(split):
        if split > 1:
            lines.append(
                f"setp.eq.s32 own, ${2 * count}, {owner}; sub.s32 there, ${2 * count}, {owner + 1}; setp.lt.s32 low, there, 0; "
                f"@low add.s32 there, there, {split}; mad.lo.u32 there, there, {room}, box; "
                f"mapa.shared::cluster.u32 there, there, {owner}; mapa.shared::cluster.u32 bell, ${5 * count}, {owner};"
            )
        for place, u in enumerate(range(owner, count // words, split)):
            sums = ", ".join(f"${count + u * words + i}" for i in range(words))
            lines.append(f"{'@own ' if split > 1 else ''}st.shared.v{words}.b32 [mine+{place * unit}], {{{sums}}};")
            if split > 1:
                push = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v{words}.b32"
                lines.append(f"@!own {push} [there+{place * unit}], {{{sums}}}, [bell];")
    return " ".join([*lines, "}"])


@gluon.constexpr_function
def send_operands(across: int) -> str:
    return ",".join(["=r"] * (across // 2) + ["r"] * (across // 2 * 5) + ["~{memory}"])


@gluon.constexpr_function
def reducing(across: int, split: int, threads: int) -> str:
    """PTX: a unit's sums, the block's own at operand 4, and what the others pushed, the first of it at operand 5."""
    words = words_of(across, split)
    room = units_of(across, split) * threads * words * 4
    those, more = (", ".join(f"{at}{i}" for i in range(words)) for at in ("$", "m"))
    lines = [f"{{ .reg .f32 m<{words}>; ld.shared.v{words}.f32 {{{those}}}, [$4];"]
    for i in range(split - 1):
        lines.append(f"ld.shared.v{words}.f32 {{{more}}}, [$5+{i * room}];")
        lines.append(" ".join(f"add.f32 ${w}, ${w}, m{w};" for w in range(words)))
    return " ".join([*lines, *(f"mov.f32 ${w}, 0f00000000;" for w in range(words, 4)), "}"])


@gluon.jit
def expect_partials(bell, size, mine):  # type: ignore[no-untyped-def]
    """The one phase of the inbox's barrier is over when `size` bytes have come: said by the thread that made it, whose `mine` is not 0."""
    gl.inline_asm_elementwise(
        "{ .reg .pred mine; setp.ne.b32 mine, $3, 0; @mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; mov.b32 $0, 0; }",
        "=r,r,r,r,~{memory}", [bell, size, mine], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def cluster_arrive(x, S: gl.constexpr):  # type: ignore[no-untyped-def]
    """Tells the cluster that this block's barriers are there, and the warp."""
    SAID: gl.constexpr = "barrier.cluster.arrive.relaxed.aligned;" if S > 1 else ""
    TEXT: gl.constexpr = "{ bar.warp.sync 0xffffffff; " + SAID + " mov.b32 $0, $1; }"
    return gl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_wait(x):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(
        "{ barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }", "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1
    )
