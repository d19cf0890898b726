"""16-bit products on sm_90 in Gluon with warps of different roles: one warpgroup copies, two multiply, 64 rows of a tile each.

What `tl.dot` cannot be given: tiles of 192 columns, whose sums are two tensors of 128 and 64, since a tensor's sides are powers of two;
and warpgroups that do not wait for each other at each step, so that one's pause is filled by the other's products.

A stage of shared memory goes round: the copying warps wait until both warpgroups have arrived at `empty`, and have the copies arrive at
`full`. A warpgroup arrives where all its warps are done with the step before. Programs are resident: the copies of the next tile
are under way while the last one's result is converted and stored.

Registers are moved from one warpgroup to another by an instruction that all four warps of a warpgroup are to execute, the very same one.
One copying warp would do, but the three that Triton adds to it, to fill up its warpgroup, have theirs elsewhere: so there are four.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.launch import built, processors
from opwise.backends.triton_jit.matmul_config import GROUP, Config
from opwise.backends.triton_jit.specimen import POINTERS, Specimen

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # its name before and from Triton 3.7 on
REGISTERS = 232, 40  # a thread, of the warpgroups that multiply and of that which copies: 2 x 232 + 40 = 3 x 168, what a launch has


@gluon.jit
def tile_at(program, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):  # type: ignore[no-untyped-def]
    """First row and column of a tile: down a group of GROUP tile rows first, then along."""
    a_group = GROUP * gl.cdiv(N, BN)
    first = program // a_group * GROUP
    height = gl.minimum(gl.cdiv(M, BM) - first, GROUP)
    return (first + program % a_group % height) * BM, program % a_group // height * BN


@gluon.jit
def copies(a, b, b_more, a_room, b_room, more_room, full, empty, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
           GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The copying warps' part: for each step of each of the program's tiles, once its stage is free."""
    both: gl.constexpr = (BM * BK + BK * BN) * 2
    stage = 0
    turn = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        for k in range(0, K, BK):
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), turn)
            mbarrier.expect(arrived, both)
            tma.async_copy_global_to_shared(a, [row, k], arrived, a_room.index(stage * 2))
            tma.async_copy_global_to_shared(a, [row + 64, k], arrived, a_room.index(stage * 2 + 1))
            tma.async_copy_global_to_shared(b, [k, column], arrived, b_room.index(stage))
            if WIDE < BN:
                tma.async_copy_global_to_shared(b_more, [k, column + WIDE], arrived, more_room.index(stage))
            stage += 1
            turn = gl.where(stage == STAGES, turn ^ 1, turn)
            stage = gl.where(stage == STAGES, 0, stage)


@gluon.jit
def products(part: gl.constexpr, a_room, b_room, more_room, full, empty, out, out_more, out_room, out_more_room, M, N, K, BM: gl.constexpr,
             BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
             WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A warpgroup's part: rows 64 part to 64 part + 63 of each of the program's tiles. One step's products are in flight while the next is
    waited for."""
    NARROW: gl.constexpr = BN - WIDE if WIDE < BN else 8
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
    more_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NARROW, 16])
    FLYING: gl.constexpr = 2 if WIDE < BN else 1
    stage = 0
    turn = 0
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        total = gl.zeros([64, WIDE], gl.float32, sums)
        more = gl.zeros([64, NARROW], gl.float32, more_sums)
        last = stage
        for k in range(0, K, BK):
            mbarrier.wait(full.index(stage), turn)
            left = a_room.index(stage * 2 + part)
            total = warpgroup_mma(left, b_room.index(stage), total, use_acc=k > 0, is_async=True)
            if WIDE < BN:
                more = warpgroup_mma(left, more_room.index(stage), more, use_acc=k > 0, is_async=True)
                total, more = warpgroup_mma_wait(FLYING, deps=[total, more])
            else:
                total = warpgroup_mma_wait(FLYING, deps=[total])
            BARRIER()  # all four warps' products of the step before are done
            mbarrier.arrive(empty.index(last), count=1, pred=k > 0)
            last = stage
            stage += 1
            turn = gl.where(stage == STAGES, turn ^ 1, turn)
            stage = gl.where(stage == STAGES, 0, stage)
        if WIDE < BN:
            total, more = warpgroup_mma_wait(0, deps=[total, more])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        tma.store_wait(0)  # the tile before has been read from the room of results
        BARRIER()
        mbarrier.arrive(empty.index(last), count=1)
        out_room.store(total.to(out.dtype))
        if WIDE < BN:
            out_more_room.store(more.to(out.dtype))
        fence_async_shared()
        BARRIER()
        tma.async_copy_shared_to_global(out, [row + 64 * part, column], out_room)
        if WIDE < BN:
            tma.async_copy_shared_to_global(out_more, [row + 64 * part, column + WIDE], out_more_room)
    tma.store_wait(0)


@gluon.jit
def first_part(a_room, b_room, more_room, full, empty, out, out_more, out_room, out_more_room, M, N, K, BM: gl.constexpr,
               BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
               WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(0, a_room, b_room, more_room, full, empty, out, out_more, out_room, out_more_room, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)


@gluon.jit
def second_part(a_room, b_room, more_room, full, empty, out, out_more, out_room, out_more_room, M, N, K, BM: gl.constexpr,
                BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
                WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(1, a_room, b_room, more_room, full, empty, out, out_more, out_room, out_more_room, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)


@gluon.jit
def roles_kernel(a, b, b_more, out, out_more, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                 STAGES: gl.constexpr, WIDE: gl.constexpr, MANY: gl.constexpr, FEW: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: descriptors of 16-bit elements with blocks 64 x BK, BK x WIDE and 64 x WIDE; b_more, out_more: of the tile's
    other BN - WIDE columns, or the same again where there are none."""
    a_room = gl.allocate_shared_memory(a.dtype, [STAGES * 2, 64, BK], a.layout)
    b_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, WIDE], b.layout)
    room = gl.allocate_shared_memory(a.dtype, [2, 64, WIDE], out.layout)
    if WIDE < BN:
        more_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, BN - WIDE], b_more.layout)
        out_more_room = gl.allocate_shared_memory(a.dtype, [2, 64, BN - WIDE], out_more.layout)
    else:
        more_room = b_room
        out_more_room = room
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (first_part, (a_room, b_room, more_room, full, empty, out, out_more, room.index(0), out_more_room.index(0), M, N, K, BM, BN, BK,
                      GROUP, STAGES, WIDE)),
        (second_part, (a_room, b_room, more_room, full, empty, out, out_more, room.index(1), out_more_room.index(1), M, N, K, BM, BN, BK,
                       GROUP, STAGES, WIDE)),
        (copies, (a, b, b_more, a_room, b_room, more_room, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


def wide(config: Config) -> int:
    """Columns of a tile that the first of its tensors holds: the largest power of two."""
    return 1 << (config.BN.bit_length() - 1)


def blocks(config: Config) -> tuple[list[int], ...]:
    """Of what the five descriptors copy at once, rows x columns."""
    first = wide(config)
    more = config.BN - first or first
    return [64, config.BK], [config.BK, first], [config.BK, more], [64, first], [64, more]


def build(a: Tensor, b: Tensor, out: Tensor, config: Config, registers: tuple[int, int] = REGISTERS) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    kind = getattr(gl, str(a.dtype).removeprefix("torch."))
    shapes = blocks(config)
    layouts = [gl.NVMMASharedLayout.get_default_for(block, kind) for block in shapes]

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        return tuple(
            TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout)
            for x, block, layout in zip((a, b, b, out, out), shapes, layouts, strict=True)
        )

    programs = min(config.tiles(m, n), processors(a.device))
    ready = built(roles_kernel, (programs, 1, 1), *described(a, b, out), m, n, k, **constants(config, registers), num_warps=4)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def constants(config: Config, registers: tuple[int, int] = REGISTERS) -> dict[str, Any]:
    sizes = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages, "WIDE": wide(config)}
    return {**sizes, "MANY": registers[0], "FEW": registers[1]}


def specimen(config: Config, dtype: str) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    element = POINTERS[dtype].removeprefix("*")
    kind = getattr(gl, dtype)
    kinds = [f"tensordesc<{element}{block},{gl.NVMMASharedLayout.get_default_for(block, kind)}>" for block in blocks(config)]
    types = dict(zip(("a", "b", "b_more", "out", "out_more"), kinds, strict=True))
    return Specimen(roles_kernel, {**types, "M": "i32", "N": "i32", "K": "i32"}, constants(config), {"num_warps": 4})
