"""The split_k kernel's PTX on sm_90: its pipeline's copies and mbarriers, and the exchange of partial sums by st.async. Gluon has no
st.async, and puts a block-wide barrier before each copy and each arrival; it adds none to PTX.

Pipeline: shared memory holds, from its base (Triton's symbol `global_smem`), the larger factor's stages, the other's, and at `full` the
mbarriers, 8 bytes each: one `full` a stage, then one `empty` a stage. The copies arrive at `full`, each warp once at `empty`. A parity is
that of the phase waited for. The phase before the first counts as complete, so the first wait for `empty` has parity 1.

Partial sums: a thread's sums form units, of 8 columns in rows g and g + 8, or in one of these rows. Block u % S owns unit u, as its
u / S-th. A block sends other owners' units by `st.async` to their inboxes, where an mbarrier counts the bytes: no handshake is needed.
A thread receives sums of its own positions only, since all blocks have the same threads. An inbox has a slot for each other block, numbered
(sender's rank - owner's rank - 1) mod S. The owner adds them to its own in this order, so that a sum is the same in every run.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

OPERANDS = gl.constexpr("=r,r,r,r,r,r,r,r,r,r,r,~{memory}")


@gluon.constexpr_function
def copying(bm: int, bn: int, bk: int, a_t: bool, b_t: bool) -> str:
    """PTX that waits for a free stage and copies one step to it: boxes of a and b as stored (transposed or not), at most 64 columns wide.

    The tensor maps are parameters 0 and 5 of split_kernel. Operands: 1, not 0 in the warp that copies if there is such a step; 2, 3, empty
    and its parity; 4, 5, full and the bytes of all boxes; 6, 7, addresses of the stage of a and of b; 8, 9, 10, the tile's k, row, column.
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
    """PTX that initializes the mbarriers at operand 1, in the thread whose operand 2 is not 0.

    The others branch around it: each init is then one instruction. Predicated, it takes fourteen. With one thread per mbarrier it takes an
    iteration of a loop, since the address must be uniform.
    """
    each = [f"mbarrier.init.shared::cta.b64 [$1+{8 * i}], {warps if stages <= i < 2 * stages else 1};" for i in range(2 * stages + 1)]
    lines = ["{ .reg .pred other; setp.eq.b32 other, $2, 0; @other bra made;", *each, "fence.mbarrier_init.release.cluster;"]
    return " ".join([*lines, "made: mov.b32 $0, 0; }"])


@gluon.jit
def first_lane(x):  # type: ignore[no-untyped-def]
    """1 in lane 0 of each warp, else 0. x: any int, for the shape."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred first; mov.u32 $0, %tid.x; and.b32 $0, $0, 31; setp.eq.b32 first, $0, 0; selp.b32 $0, 1, 0, first; }",
        "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def begin(full, mine, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Initializes the stages' mbarriers and the inbox's. Before others use them the caller needs a block-wide barrier; within the
    initializing thread's warp, `bar.warp.sync` suffices. mine: not 0 in one thread."""
    BEGINNING: gl.constexpr = beginning(STAGES, gl.num_warps())
    gl.inline_asm_elementwise(BEGINNING, "=r,r,r,~{memory}", [full, mine], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def release(at, mine):  # type: ignore[no-untyped-def]
    """The threads whose `mine` is not 0 arrive at the mbarrier at shared address `at`."""
    gl.inline_asm_elementwise(
        "{ .reg .pred mine; setp.ne.b32 mine, $2, 0; @mine mbarrier.arrive.shared::cta.b64 _, [$1]; mov.b32 $0, 0; }",
        "=r,r,r,~{memory}", [at, mine], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def fill(COPIES: gl.constexpr, first, second, full, mine, stage, parity, row, column, k, FIRST: gl.constexpr, SECOND: gl.constexpr,
         STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """In the warp whose `mine` is not 0: waits until `stage` is free and starts its copies. first, second: shared addresses of the factors'
    stages, of FIRST and SECOND bytes each."""
    gl.inline_asm_elementwise(
        COPIES, OPERANDS, [mine, full + 8 * (STAGES + stage), parity, full + 8 * stage, FIRST + SECOND, first + FIRST * stage,
                           second + SECOND * stage, k, row, column], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def words_of(across: int, split: int) -> int:
    """A thread's sums in a unit: 4, or 2 where 4 would make fewer units than blocks. across: the accumulator's columns."""
    return 4 if across // 8 >= split else 2


@gluon.constexpr_function
def units_of(across: int, split: int) -> int:
    """The most units that a block owns."""
    return int(-(-across // 2 // words_of(across, split) // split))


@gluon.constexpr_function
def sending(across: int, split: int, threads: int) -> str:
    """PTX that stores a thread's units that its block owns to shared memory, and sends the others to their owners.

    Operands, across / 2 of each: unused results, sums, copies of the block's rank, of its own units' address, of the inbox's, of its
    mbarrier's.
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
    """PTX: a unit's sums, of the block's own at address operand 4, and of the inbox, whose first slot is at address operand 5."""
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
    """Has the inbox's mbarrier expect `size` bytes in its only phase. mine: not 0 in the thread that initialized it."""
    gl.inline_asm_elementwise(
        "{ .reg .pred mine; setp.ne.b32 mine, $3, 0; @mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; mov.b32 $0, 0; }",
        "=r,r,r,r,~{memory}", [bell, size, mine], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def cluster_arrive(x, S: gl.constexpr):  # type: ignore[no-untyped-def]
    """Tells the cluster's other blocks (S > 1), and the rest of the warp, that this block's mbarriers are initialized. Returns x."""
    SAID: gl.constexpr = "barrier.cluster.arrive.relaxed.aligned;" if S > 1 else ""
    TEXT: gl.constexpr = "{ bar.warp.sync 0xffffffff; " + SAID + " mov.b32 $0, $1; }"
    return gl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_wait(x):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(
        "{ barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }", "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1
    )
