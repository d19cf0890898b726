"""Shared by the matmul kernels in Gluon: a tile's origin, and the pipeline's state (stage index and parity of the mbarriers' phase)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

REGISTERS = 232, 40  # per thread of a consumer and of the producer: 2 x 232 + 40 = 3 x 168, the registers at launch


@gluon.jit
def tile_at(program, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """First row and column of a tile: down a group of GROUP tile rows first, then along."""
    a_group = GROUP * gl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = gl.minimum(gl.cdiv(M, BM) - first, GROUP)
    return (first + program % a_group % height) * BM, program % a_group // height * BN


@gluon.jit
def following(stage, turn, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The next stage, and the parity of its phase."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, turn ^ 1, turn)


@gluon.jit
def before(stage, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The previous stage. A variable set by `last = stage` before a loop and in it does not work: Triton takes it as loop-invariant."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def turned(part, TRANSPOSED: gl.constexpr):  # type: ignore[no-untyped-def]
    """The operand of wgmma in shared memory, transposed if stored so; for 16 bits wgmma takes both major orders."""
    return part.permute((1, 0)) if TRANSPOSED else part
