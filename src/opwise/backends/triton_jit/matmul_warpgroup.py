"""TF32 products on sm_90 in Gluon, Triton's own lower level: a pipeline that Triton does not make of `tl.dot`.

wgmma wants TF32 factors in shared memory along k, and b is row-major. But it also takes its first factor from registers, in any order:
so the transposed product is computed, out' = b' a', with b' through registers and a' where it lies. Both are rounded to TF32 by their
tensor maps. While the tensor cores multiply one step, the next step's b is read into other registers.

A wgmma in flight reads registers that ptxas takes for free as soon as it is issued: whoever writes to them changes the product. What the
source does, so that nobody does:

    two variables      the step in flight has its b in `left`, the next one's is read into `fresh`
    `kept(left)`       uses `left` behind the wait for the products and a barrier, so that it has registers of its own until then; it is
                       volatile, as the wait is, and the compiler may change the order of neither
    pairs of steps     where a step's `fresh` would become the next turn's `left`, ptxas would copy registers, and it is the copy that
                       `kept` would keep; with two steps a turn both variables come round to where they were, and nothing is copied

The last is ptxas's to honour, not the language's: tests/test_gluon_matmul.py reads the SASS for it, also of matmul_roles.py, which takes
the larger tiles; this kernel's are those of products too small for them.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.backends.triton_jit.matmul_config import GROUP, Config
from opwise.backends.triton_jit.matmul_maps import ROUNDS, round_maps

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # its name before and from Triton 3.7 on


@gluon.jit
def fetch(a, b, a_room, b_room, arrived, row, column, step, stage, there, BK: gl.constexpr, MORE: gl.constexpr = 0):  # type: ignore[no-untyped-def]
    """Starts the copies of a step's two tiles to this stage of shared memory, where there is such a step.

    MORE: bytes that the caller copies to the same barrier.
    """
    full = arrived.index(stage)
    mbarrier.expect(full, a.block_type.nbytes + b.block_type.nbytes + MORE, pred=there)
    tma.async_copy_global_to_shared(a, [row, step * BK], full, a_room.index(stage), pred=there)
    tma.async_copy_global_to_shared(b, [step * BK, column], full, b_room.index(stage), pred=there)


@gluon.jit
def kept(x, size):  # type: ignore[no-untyped-def]
    """Needs x, by stores that never happen, since no size is negative. What a wgmma reads from, ptxas takes for free once it is issued
    (deps of `warpgroup_mma_wait` end with the PTX); a store behind a barrier it can neither leave out nor bring forward."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.lt.s32 never, $8, 0; @never st.volatile.shared.v4.b32 [$8], {$4, $5, $6, $7}; } "
        "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r", [x, size], dtype=gl.int32, is_pure=False, pack=4,
    )  # fmt: skip


@gluon.jit
def another(total, left, a, b, a_room, b_room, arrived, row, column, step, steps, size, BK: gl.constexpr, STAGES: gl.constexpr,
            factor: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Ends the step before, whose b is `left`, and starts this one: the sums, in flight, and this step's b.

    Steps come in pairs, since ptxas would copy this step's b to where the last one's was, and protect the copy alone.
    """
    stage = step % STAGES
    mbarrier.wait(arrived.index(stage), step // STAGES & 1)
    fresh = b_room.index(stage).permute((1, 0)).load(factor)
    total = warpgroup_mma_wait(0, deps=[total])
    BARRIER()  # all warps' products of the step before are done: its room is free
    kept(left, size)
    total = warpgroup_mma(fresh, a_room.index(stage).permute((1, 0)), total, is_async=True)
    following = step - 1 + STAGES
    fetch(a, b, a_room, b_room, arrived, row, column, following, following % STAGES, following < steps, BK)
    return total, fresh


@gluon.jit
def warpgroup_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                     STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: descriptors of float32 with blocks BM x BK and BK x BN, which round to TF32. out: float32. One tile a program."""
    program = gl.program_id(0)
    a_group = GROUP * gl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = gl.minimum(gl.cdiv(M, BM) - first, GROUP)
    row = (first + program % a_group % height) * BM
    column = program % a_group // height * BN

    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 8])
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 1)
    a_room = gl.allocate_shared_memory(gl.float32, [STAGES, BM, BK], a.layout)
    b_room = gl.allocate_shared_memory(gl.float32, [STAGES, BK, BN], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    steps = gl.cdiv(K, BK) | 1  # one, and pairs: what lies past K arrives as zeros
    for i in gl.static_range(STAGES):
        fetch(a, b, a_room, b_room, arrived, row, column, i, i, i < steps, BK)
    mbarrier.wait(arrived.index(0), 0)
    left = b_room.index(0).permute((1, 0)).load(factor)
    # The first step by itself: in the loop the compiler would take the zeroed sums for a hazard, and wait for each wgmma.
    total = warpgroup_mma(left, a_room.index(0).permute((1, 0)), gl.full((BN, BM), 0.0, gl.float32, sums), is_async=True)
    for step in range(1, steps, 2):
        total, other = another(total, left, a, b, a_room, b_room, arrived, row, column, step, steps, M, BK, STAGES, factor)
        total, left = another(total, other, a, b, a_room, b_room, arrived, row, column, step + 1, steps, M, BK, STAGES, factor)
    total = warpgroup_mma_wait(0, deps=[total])
    kept(left, M)
    n = column + gl.arange(0, BN, gl.SliceLayout(1, sums))
    m = row + gl.arange(0, BM, gl.SliceLayout(0, sums))
    at = m.to(gl.int64)[None, :] * N + n[:, None]
    gl.store(out + at, total, mask=(n < N)[:, None] & (m < M)[None, :])


OPTIONS = {"default_dot_input_precision": "tf32"}


def layouts(config: Config) -> tuple[Any, Any]:
    """Of a's and b's tiles in shared memory."""
    return tuple(gl.NVMMASharedLayout.get_default_for(block, gl.float32) for block in ([config.BM, config.BK], [config.BK, config.BN]))


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    blocks = ([config.BM, config.BK], [config.BK, config.BN])
    more: dict[str, Any] = {"round_f32_to_tf32": True} if ROUNDS else {}

    def described(*factors: Tensor) -> tuple[TensorDescriptor, ...]:
        return tuple(
            TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout, **more)
            for x, block, layout in zip(factors, blocks, layouts(config), strict=True)
        )

    grid, samples = (config.tiles(m, n), 1, 1), (*described(a, b), out, m, n, k)
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages}
    fixed: dict[str, Any] = {**constants, "num_warps": config.warps, **OPTIONS}
    if not ROUNDS:
        round_maps(warpgroup_kernel.warmup(*samples, grid=grid, **fixed), 2)  # the very kernel that `built` then finds compiled
    ready = built(warpgroup_kernel, grid, *samples, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b), out, m, n, k)

    return bind


def specimen(config: Config) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    kinds = [
        f"tensordesc<fp32{list(block)},{layout}>"
        for block, layout in zip(((config.BM, config.BK), (config.BK, config.BN)), layouts(config), strict=True)
    ]
    types = {"a": kinds[0], "b": kinds[1], "out": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages}
    return Specimen(warpgroup_kernel, types, constants, {"num_warps": config.warps, **OPTIONS})
