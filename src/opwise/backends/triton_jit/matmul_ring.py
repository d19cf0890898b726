"""A ring of stages in shared memory on sm_90, in PTX: one warp has it filled by TMA, every warp gives a stage back when it has used it.

Gluon puts a barrier of the whole program before each copy that it asks for and each arrival, so that all warpgroups stand still together,
four or five times a step. Said in PTX, copies and barriers are nothing that it knows of, and it adds none: a warpgroup waits for copies,
and the copying warp for the stage that it has filled next, until all warps have given it back.

Shared memory holds, from its beginning (`global_smem`, Triton's own name): the first factor's part of all stages, the second's, and at
`full` two barriers a stage, 16 bytes. `full` is arrived at by the copies, `empty` by each warp once. The kernel reserves that room through
Gluon, and keeps it until the last copy has been used; tests/test_gluon_matmul.py looks where Triton has put what else there is.

A parity is that of the phase waited for. The phase before a barrier's first counts as complete, so `empty` is first waited for by parity 1.
"""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SLACK = 2  # stages that are not on their way: of the step that is multiplied, and of that which the slower warpgroup may still be at
OPERANDS = gl.constexpr("=r,r,r,r,r,r,r,r,r,r,r,~{memory}")


@gluon.constexpr_function
def copying(kernel: str, first: Any, second: Any) -> str:
    """PTX of one step's copies to one stage, once it is free. `kernel`: whose parameters hold the tensor maps.

    first, second: of either factor its copies, each (which parameter the map is, how many bytes into the factor's part it goes, how much
    of K and how many rows of the first factor, columns of the second, it begins after the tile's).
    Operands: 1 not 0 in the warp that copies, if there is such a step; 2, 3 empty and its parity; 4, 5 full and all bytes; 6, 7 the
    factors' parts; 8, 9, 10 the tile's k, row and column.
    """
    box = "@one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [at], [map, {x, y}], [$4];"
    lines = [
        "{ .reg .pred other, free, one; .reg .b64 map; .reg .b32 at, x, y; setp.eq.b32 other, $1, 0; setp.eq.b32 free, $1, 0;",
        "again: @!free mbarrier.try_wait.parity.shared::cta.b64 free, [$2], $3; @!free bra.uni again;",
        "elect.sync _|one, 0xffffffff; not.pred other, other; and.pred one, one, other;",
        "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$4], $5;",
    ]
    for copies, part, along, across in ((first, 6, "x", "add.u32 y, $9"), (second, 7, "y", "add.u32 x, $10")):
        of = None
        for parameter, offset, k, shift in copies:
            if parameter != of:  # not once a box: what is asked for before the first copy is cold code
                lines.append(f"mov.b64 map, {kernel}_param_{parameter}; cvta.param.u64 map, map;")
            of = parameter
            lines.append(f"add.u32 at, ${part}, {offset}; add.u32 {along}, $8, {k}; {across}, {shift}; {box}")
    return " ".join([*lines, "mov.b32 $0, 0; }"])


@gluon.constexpr_function
def beginning(stages: int, warps: int, more: int) -> str:
    """PTX that makes the barriers at operand 1, in the threads whose operand 2 is not 0.

    The others jump: each is then one instruction, where under a predicate it is fourteen, and by a thread of its own a turn of a loop,
    since the address is to be uniform.
    """
    each = [f"mbarrier.init.shared::cta.b64 [$1+{8 * i}], {warps if stages <= i < 2 * stages else 1};" for i in range(2 * stages + more)]
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
def begin(full, mine, STAGES: gl.constexpr, MORE: gl.constexpr = 0):  # type: ignore[no-untyped-def]
    """Makes the barriers, and MORE behind them for one arrival each; behind it goes a barrier of the program, or of the first warp for
    what that alone does. mine: not 0 in one thread."""
    BEGINNING: gl.constexpr = beginning(STAGES, gl.num_warps(), MORE)
    gl.inline_asm_elementwise(BEGINNING, "=r,r,r,~{memory}", [full, mine], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def give_back(at, mine):  # type: ignore[no-untyped-def]
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


@gluon.jit
def following(stage, turn, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The next stage, and the parity of its phase."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, turn ^ 1, turn)


@gluon.jit
def before(stage, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The stage before. A variable set by `last = stage` before a loop and again in it Triton takes for one the loop never changes."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)
