"""Operations that Gluon lacks, as inline PTX, for kernels that manage shared memory and synchronisation themselves."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # thread_barrier before Triton 3.7, barrier from 3.7 on


@gluon.jit
def shared_base(x):  # type: ignore[no-untyped-def]
    """The address of the program's shared memory, by Triton's symbol for it, which exists only if Gluon itself allocates shared memory."""
    return gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def warp_of(x):  # type: ignore[no-untyped-def]
    """This thread's warp index. The shuffle shows ptxas that it is uniform over the warp."""
    return gl.inline_asm_elementwise(
        "{ mov.u32 $0, %tid.x; shr.u32 $0, $0, 5; shfl.sync.idx.b32 $0, $0, 0, 31, -1; }",
        "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def arrived(at, parity):  # type: ignore[no-untyped-def]
    """Waits until the phase of this parity is complete, of the mbarrier at shared address `at`."""
    gl.inline_asm_elementwise(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2; @!done bra.uni again; mov.b32 $0, 0; }",
        "=r,r,r,~{memory}", [at, parity], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
