"""Sums that the blocks of a cluster push to each other on sm_90, in PTX: how blocks that share a tile's K add up what each of them has.

A thread's sums are in units: of 8 columns, in rows g and g + 8, or of one of these rows. Unit u is owned by block u % S, as its u / S-th.
What others own a block stores, by `st.async`, in their inboxes, where a barrier counts the bytes: nobody is asked whether it is ready, nor
waits for what it has sent. All blocks have the same threads, and a thread gets from others what it has itself.

An inbox has a room for each other block, by how many ranks that is further on than the owner. In that order they are added, to the owner's
own: a sum is the same in every run.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def words_of(across: int, split: int) -> int:
    """Sums that a thread has of a unit: 4, or 2 where there would be fewer units than blocks."""
    return 4 if across // 8 >= split else 2


@gluon.constexpr_function
def places_of(across: int, split: int) -> int:
    """Units that a block owns, at most."""
    return int(-(-across // 2 // words_of(across, split) // split))


@gluon.constexpr_function
def pushing(across: int, split: int, threads: int) -> str:
    """PTX that leaves a thread's own units at operand 2 and pushes the others to their owners.

    Operands: across / 2 results that nobody uses, as many sums, and each as often the block's rank, where its own units go, the inbox and
    its barrier.
    """
    count, words = across // 2, words_of(across, split)
    unit, room = threads * words * 4, places_of(across, split) * threads * words * 4
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
def pushed(across: int) -> str:
    return ",".join(["=r"] * (across // 2) + ["r"] * (across // 2 * 5) + ["~{memory}"])


@gluon.constexpr_function
def gathering(across: int, split: int, threads: int) -> str:
    """PTX: a unit's sums, the block's own at operand 4, and what the others pushed, the first of it at operand 5."""
    words = words_of(across, split)
    room = places_of(across, split) * threads * words * 4
    those, more = (", ".join(f"{at}{i}" for i in range(words)) for at in ("$", "m"))
    lines = [f"{{ .reg .f32 m<{words}>; ld.shared.v{words}.f32 {{{those}}}, [$4];"]
    for i in range(split - 1):
        lines.append(f"ld.shared.v{words}.f32 {{{more}}}, [$5+{i * room}];")
        lines.append(" ".join(f"add.f32 ${w}, ${w}, m{w};" for w in range(words)))
    return " ".join([*lines, *(f"mov.f32 ${w}, 0f00000000;" for w in range(words, 4)), "}"])


@gluon.jit
def expect_pushed(bell, size, mine):  # type: ignore[no-untyped-def]
    """The one phase of the inbox's barrier is over when `size` bytes have come: said by the thread that made it, whose `mine` is not 0."""
    gl.inline_asm_elementwise(
        "{ .reg .pred mine; setp.ne.b32 mine, $3, 0; @mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; mov.b32 $0, 0; }",
        "=r,r,r,r,~{memory}", [bell, size, mine], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def say_begun(x, S: gl.constexpr):  # type: ignore[no-untyped-def]
    """Tells the cluster that this block's barriers are there, and the warp."""
    SAID: gl.constexpr = "barrier.cluster.arrive.relaxed.aligned;" if S > 1 else ""
    TEXT: gl.constexpr = "{ bar.warp.sync 0xffffffff; " + SAID + " mov.b32 $0, $1; }"
    return gl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def all_begun(x):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(
        "{ barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }", "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1
    )
