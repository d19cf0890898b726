"""Words that Gluon has not, in PTX, for kernels that keep their own accounts of shared memory and of who waits for whom."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # its name before and from Triton 3.7 on


@gluon.jit
def shared_base(x):  # type: ignore[no-untyped-def]
    """Where the program's shared memory begins, by Triton's own name for it: there is none where Gluon itself uses no shared memory."""
    return gl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def warp_of(x):  # type: ignore[no-untyped-def]
    """This thread's warp, in a way that tells ptxas that it is that of all of its threads."""
    return gl.inline_asm_elementwise(
        "{ mov.u32 $0, %tid.x; shr.u32 $0, $0, 5; shfl.sync.idx.b32 $0, $0, 0, 31, -1; }",
        "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def arrived(at, parity):  # type: ignore[no-untyped-def]
    """Waits for a phase of the barrier at this shared address."""
    gl.inline_asm_elementwise(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2; @!done bra.uni again; mov.b32 $0, 0; }",
        "=r,r,r,~{memory}", [at, parity], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
