"""TF32 products on sm_90 in Gluon with warps of different roles: one warpgroup copies, two multiply, 64 columns of a tile each.

The product is computed transposed, out' = b' a', with b' through registers, for the reasons of matmul_warpgroup.py; what `kept`, two
variables and pairs of steps are for is said there. Here a step's products are begun before those of the step before are waited for, so that
each warpgroup always has some in flight, and the copies of a program's next tile are under way while it stores the last one.

Tiles of 192 rows have their sums in two tensors, of 128 and of 64, since a tensor's sides are powers of two.

A stage of shared memory goes round: the copying warps wait until both warpgroups have arrived at `empty`, and have the copies arrive at
`full`. A warpgroup arrives where all its warps are done with the step before.

Registers are moved from one warpgroup to another by an instruction that all four warps of a warpgroup are to execute, the very same one.
One copying warp would do, but the three that Triton adds to it, to fill up its warpgroup, have theirs elsewhere: so there are four.

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
from opwise.backends.triton_jit.common.launch import built, processors
from opwise.backends.triton_jit.common.specimen import Specimen
from opwise.backends.triton_jit.matmul_config import GROUP, Config
from opwise.backends.triton_jit.matmul_maps import ROUNDS, round_maps
from opwise.backends.triton_jit.matmul_warpgroup import BARRIER, OPTIONS, kept

REGISTERS = 232, 40  # a thread, of the warpgroups that multiply and of that which copies: 2 x 232 + 40 = 3 x 168, what a launch has


@gluon.jit
def tile_at(program, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """First row and column of a tile: down a group of GROUP tile rows first, then along."""
    a_group = GROUP * gl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = gl.minimum(gl.cdiv(M, BM) - first, GROUP)
    return (first + program % a_group % height) * BM, program % a_group // height * BN


@gluon.jit
def copies(b, a, a_more, b_room, a_room, more_room, full, empty, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
           GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The copying warps' part: for each step of each of the program's tiles, once its stage is free."""
    both: gl.constexpr = (BM * BK + BK * BN) * 4
    stage = 0
    turn = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        for step in range(gl.cdiv(K, BK) | 1):  # what lies past K arrives as zeros
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), turn)
            mbarrier.expect(arrived, both)
            tma.async_copy_global_to_shared(b, [step * BK, column], arrived, b_room.index(stage * 2))
            tma.async_copy_global_to_shared(b, [step * BK, column + 64], arrived, b_room.index(stage * 2 + 1))
            tma.async_copy_global_to_shared(a, [row, step * BK], arrived, a_room.index(stage))
            if WIDE < BM:
                tma.async_copy_global_to_shared(a_more, [row + WIDE, step * BK], arrived, more_room.index(stage))
            stage += 1
            turn = gl.where(stage == STAGES, turn ^ 1, turn)
            stage = gl.where(stage == STAGES, 0, stage)


@gluon.jit
def another(part: gl.constexpr, total, more, left, b_room, a_room, more_room, full, empty, stage, turn, last, size, BM: gl.constexpr,
            STAGES: gl.constexpr, WIDE: gl.constexpr, factor: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Starts a step's products, and ends those of the step before, whose b is `left` and whose stage is `last`."""
    mbarrier.wait(full.index(stage), turn)
    fresh = b_room.index(stage * 2 + part).permute((1, 0)).load(factor)
    total = warpgroup_mma(fresh, a_room.index(stage).permute((1, 0)), total, is_async=True)
    if WIDE < BM:
        more = warpgroup_mma(fresh, more_room.index(stage).permute((1, 0)), more, is_async=True)
        total, more = warpgroup_mma_wait(2, deps=[total, more])
    else:
        total = warpgroup_mma_wait(1, deps=[total])
    BARRIER()  # all four warps' products of the step before are done
    kept(left, size)
    mbarrier.arrive(empty.index(last), count=1)
    last = stage
    stage += 1
    turn = gl.where(stage == STAGES, turn ^ 1, turn)
    stage = gl.where(stage == STAGES, 0, stage)
    return total, more, fresh, stage, turn, last


@gluon.jit
def products(part: gl.constexpr, b_room, a_room, more_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr,
             BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A warpgroup's part: columns 64 part to 64 part + 63 of each of the program's tiles."""
    NARROW: gl.constexpr = BM - WIDE if WIDE < BM else 8
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 8])
    more_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NARROW, 8])
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 1)
    stage = 0
    turn = 0
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        mbarrier.wait(full.index(stage), turn)
        left = b_room.index(stage * 2 + part).permute((1, 0)).load(factor)
        total = warpgroup_mma(left, a_room.index(stage).permute((1, 0)), gl.full((64, WIDE), 0.0, gl.float32, sums), is_async=True)
        more = gl.full((64, NARROW), 0.0, gl.float32, more_sums)
        if WIDE < BM:
            more = warpgroup_mma(left, more_room.index(stage).permute((1, 0)), more, is_async=True)
            total, more = warpgroup_mma_wait(2, deps=[total, more])  # waits for nothing: what the loop goes on with is of this type
        else:
            total = warpgroup_mma_wait(1, deps=[total])
        last = stage
        stage += 1
        turn = gl.where(stage == STAGES, turn ^ 1, turn)
        stage = gl.where(stage == STAGES, 0, stage)
        for _ in range(1, gl.cdiv(K, BK) | 1, 2):
            total, more, other, stage, turn, last = another(part, total, more, left, b_room, a_room, more_room, full, empty, stage, turn,
                                                            last, M, BM, STAGES, WIDE, factor)  # fmt: skip
            total, more, left, stage, turn, last = another(part, total, more, other, b_room, a_room, more_room, full, empty, stage, turn,
                                                           last, M, BM, STAGES, WIDE, factor)  # fmt: skip
        if WIDE < BM:
            total, more = warpgroup_mma_wait(0, deps=[total, more])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        BARRIER()
        kept(left, M)
        mbarrier.arrive(empty.index(last), count=1)
        n = column + 64 * part + gl.arange(0, 64, gl.SliceLayout(1, sums))
        m = row + gl.arange(0, WIDE, gl.SliceLayout(0, sums))
        gl.store(out + (m.to(gl.int64)[None, :] * N + n[:, None]), total, mask=(n < N)[:, None] & (m < M)[None, :])
        if WIDE < BM:
            n = column + 64 * part + gl.arange(0, 64, gl.SliceLayout(1, more_sums))
            m = row + WIDE + gl.arange(0, NARROW, gl.SliceLayout(0, more_sums))
            gl.store(out + (m.to(gl.int64)[None, :] * N + n[:, None]), more, mask=(n < N)[:, None] & (m < M)[None, :])


@gluon.jit
def first_part(b_room, a_room, more_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
               GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(0, b_room, a_room, more_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)


@gluon.jit
def second_part(b_room, a_room, more_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
                GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(1, b_room, a_room, more_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)


@gluon.jit
def roles_kernel(b, a, a_more, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                   STAGES: gl.constexpr, WIDE: gl.constexpr, MANY: gl.constexpr, FEW: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """b, a: descriptors of float32 with blocks BK x 64 and WIDE x BK, which round to TF32; a_more: of the tile's other BM - WIDE rows,
    or the same again where there are none. out: float32."""
    gl.static_assert(BN == 128)
    b_room = gl.allocate_shared_memory(gl.float32, [STAGES * 2, BK, 64], b.layout)
    a_room = gl.allocate_shared_memory(gl.float32, [STAGES, WIDE, BK], a.layout)
    more_room = a_room
    if WIDE < BM:
        more_room = gl.allocate_shared_memory(gl.float32, [STAGES, BM - WIDE, BK], a_more.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (first_part, (b_room, a_room, more_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
        (second_part, (b_room, a_room, more_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
        (copies, (b, a, a_more, b_room, a_room, more_room, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


def wide(config: Config) -> int:
    """Rows of a tile that the first of its tensors holds: the largest power of two."""
    return 1 << (config.BM.bit_length() - 1)


def described(a: Tensor, b: Tensor, config: Config) -> tuple[TensorDescriptor, ...]:
    more: dict[str, Any] = {"round_f32_to_tf32": True} if ROUNDS else {}
    return tuple(
        TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, gl.NVMMASharedLayout.get_default_for(block, gl.float32), **more)
        for x, block in zip((b, a, a), blocks(config), strict=True)
    )


def blocks(config: Config) -> tuple[list[int], ...]:
    """Of what the three descriptors copy at once, rows x columns."""
    first = wide(config)
    return [config.BK, 64], [first, config.BK], [config.BM - first or first, config.BK]


def constants(config: Config) -> dict[str, Any]:
    sizes = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages, "WIDE": wide(config)}
    return {**sizes, "MANY": REGISTERS[0], "FEW": REGISTERS[1]}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    grid, samples = (min(config.tiles(m, n), processors(a.device)), 1, 1), (*described(a, b, config), out, m, n, k)
    fixed: dict[str, Any] = {**constants(config), "num_warps": 4, **OPTIONS}
    if not ROUNDS:
        round_maps(roles_kernel.warmup(*samples, grid=grid, **fixed), 3, factors=3)  # the very kernel that `built` then finds compiled
    ready = built(roles_kernel, grid, *samples, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, config), out, m, n, k)

    return bind


def specimen(config: Config) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    kinds = [f"tensordesc<fp32{block},{gl.NVMMASharedLayout.get_default_for(block, gl.float32)}>" for block in blocks(config)]
    types = {**dict(zip(("b", "a", "a_more"), kinds, strict=True)), "out": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    return Specimen(roles_kernel, types, constants(config), {"num_warps": 4, **OPTIONS})
