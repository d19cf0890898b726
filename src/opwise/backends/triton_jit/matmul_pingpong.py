"""16-bit products on sm_90 in Gluon by two warpgroups that take turns: each has a whole tile, and one multiplies while the other stores.

    copies      a producer's warps fill one ring of STAGES steps, in the order of the program's tiles: 64 UNITS x 64 of a, 64 x 128 of b
    products    a consumer warpgroup takes every other tile. When the last step's products alone are left, it lets the other begin;
                what it then waits for, rounds and stores passes under the other's products

A tensor's sides are powers of two, so a tile's rows are UNITS tensors of 64, each a wgmma of 64 x 128 x 16: tiles of 192 rows are three.
Results leave in parts of 64 x 64, 8 KiB, through OUTBOXES outboxes of a consumer's own, which it uses in turn.

The turns are also what keeps the ring's account: a phase is known by its parity, so nobody may wait for a stage that is two rounds behind.

Gluon puts a barrier before what it arrives at or copies, of the warps of one part alone: a warpgroup's own four, with a step in flight.
Registers are moved as in matmul_roles.py, whose copying part has four warps for the reason that is said there.

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
from opwise.backends.triton_jit.common.launch import built, processors
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul_config import Config
from opwise.backends.triton_jit.matmul_ring import before, following
from opwise.backends.triton_jit.matmul_roles import REGISTERS, tile_at
from opwise.backends.triton_jit.matmul_warpgroup import BARRIER


@gluon.jit
def copies(a, b, a_room, b_room, full, empty, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr,
           STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The producer's part: each step of each of the program's tiles, once its stage is free."""
    stage = 0
    turn = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, 64 * UNITS) * gl.cdiv(N, 128), gl.num_programs(0)):
        row, column = tile_at(program, M, N, 64 * UNITS, 128, GROUP)
        for step in range(gl.cdiv(K, 64)):
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), turn)
            mbarrier.expect(arrived, (UNITS * 64 + 128) * 64 * 2)
            for unit in gl.static_range(UNITS):
                tma.async_copy_global_to_shared(a, [row + 64 * unit, step * 64], arrived, a_room.index(stage * UNITS + unit))
            tma.async_copy_global_to_shared(b, [step * 64, column], arrived, b_room.index(stage))
            stage, turn = following(stage, turn, STAGES)


@gluon.jit
def begun(total, a_room, b_room, full, stage, turn, more, UNITS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Starts a step's products once it has come. more: are the sums of the steps before to be added to?"""
    mbarrier.wait(full.index(stage), turn)
    sums = ()
    for unit in gl.static_range(UNITS):
        each = warpgroup_mma(a_room.index(stage * UNITS + unit), b_room.index(stage), total[unit], use_acc=more, is_async=True)
        sums += (each,)  # type: ignore[assignment]
    return warpgroup_mma_wait(UNITS, deps=sums)


@gluon.jit
def leave(out, outbox, part, row, column, OUTBOXES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Stores a part of the results by way of this outbox, once what lay there has been read."""
    tma.store_wait(OUTBOXES - 1)
    BARRIER()
    outbox.store(part.to(out.dtype))
    fence_async_shared()
    BARRIER()
    tma.async_copy_shared_to_global(out, [row, column], outbox)


@gluon.jit
def products(me: gl.constexpr, a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr,
             STAGES: gl.constexpr, OUTBOXES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A consumer's part: every other tile of the program's."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    steps = gl.cdiv(K, 64)
    index = me + 0 * K  # of the tile among the program's
    for program in range(gl.program_id(0) + me * gl.num_programs(0), gl.cdiv(M, 64 * UNITS) * gl.cdiv(N, 128), 2 * gl.num_programs(0)):
        row, column = tile_at(program, M, N, 64 * UNITS, 128, GROUP)
        stage = index * steps % STAGES  # the other's tiles' steps are in the ring too
        turn = index * steps // STAGES & 1
        total = ()
        for _ in gl.static_range(UNITS):
            total += (gl.zeros([64, 128], gl.float32, layout),)  # type: ignore[assignment]
        mbarrier.wait(turns.index(me), index // 2 & 1 ^ 1 - me)  # the first of all has nobody to wait for
        total = begun(total, a_room, b_room, full, stage, turn, False, UNITS)
        stage, turn = following(stage, turn, STAGES)
        for _ in range(1, steps):
            total = begun(total, a_room, b_room, full, stage, turn, True, UNITS)
            mbarrier.arrive(empty.index(before(stage, STAGES)), count=1)
            stage, turn = following(stage, turn, STAGES)
        mbarrier.arrive(turns.index(1 - me), count=1)  # a step is still being multiplied: time enough to begin
        total = warpgroup_mma_wait(0, deps=total)
        mbarrier.arrive(empty.index(before(stage, STAGES)), count=1)
        index += 2
        for unit in gl.static_range(UNITS):
            halves = total[unit].reshape([64, 2, 64]).permute((0, 2, 1)).split()
            for half in gl.static_range(2):
                place = outbox.index(me * OUTBOXES + (unit * 2 + half) % OUTBOXES)
                leave(out, place, halves[half], row + 64 * unit, column + 64 * half, OUTBOXES)
    tma.store_wait(0)  # shared memory must outlive its stores


@gluon.jit
def first(a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
          OUTBOXES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(0, a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS, GROUP, STAGES, OUTBOXES)


@gluon.jit
def second(a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
           OUTBOXES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(1, a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS, GROUP, STAGES, OUTBOXES)


@gluon.jit
def pingpong_kernel(a, b, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, OUTBOXES: gl.constexpr,
                    MANY: gl.constexpr, FEW: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: descriptors of 16-bit elements with blocks 64 x 64, 64 x 128, 64 x 64."""
    gl.static_assert(UNITS * 2 % OUTBOXES == 0)  # or two stores from one outbox would follow each other
    a_room = gl.allocate_shared_memory(a.dtype, [STAGES * UNITS, 64, 64], a.layout)
    b_room = gl.allocate_shared_memory(a.dtype, [STAGES, 64, 128], b.layout)
    outbox = gl.allocate_shared_memory(a.dtype, [2 * OUTBOXES, 64, 64], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    gl.warp_specialize([
        (first, (a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS, GROUP, STAGES, OUTBOXES)),
        (second, (a_room, b_room, outbox, full, empty, turns, out, M, N, K, UNITS, GROUP, STAGES, OUTBOXES)),
        (copies, (a, b, a_room, b_room, full, empty, M, N, K, UNITS, GROUP, STAGES)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


BLOCKS = {"a": [64, 64], "b": [64, 128], "out": [64, 64]}  # what each descriptor copies at once, rows x columns


def outboxes(config: Config) -> int:
    """As many as fit, where a tile's parts come round to the first."""
    most = (226 * 1024 - config.shared_bytes(2)) // (2 * 8 * 1024)
    return max(count for count in range(1, most + 1) if config.BM // 32 % count == 0)


def constants(config: Config) -> dict[str, Any]:
    sizes = {"UNITS": config.BM // 64, "GROUP": 16 if config.BM == 128 else 8, "STAGES": config.stages}
    return {**sizes, "OUTBOXES": outboxes(config), "MANY": REGISTERS[0], "FEW": REGISTERS[1]}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    kind = getattr(gl, str(a.dtype).removeprefix("torch."))

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        of = {"a": a, "b": b, "out": out}
        each = ((of[name], block, gl.NVMMASharedLayout.get_default_for(block, kind)) for name, block in BLOCKS.items())
        return tuple(TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout) for x, block, layout in each)

    grid = (min(config.tiles(m, n), processors(a.device)), 1, 1)
    ready = built(pingpong_kernel, grid, *described(a, b, out), m, n, k, **constants(config), num_warps=4)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def specimen(config: Config, dtype: str) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    element, kind = POINTERS[dtype].removeprefix("*"), getattr(gl, dtype)
    types = {name: f"tensordesc<{element}{block},{gl.NVMMASharedLayout.get_default_for(block, kind)}>" for name, block in BLOCKS.items()}
    return Specimen(pingpong_kernel, {**types, "M": "i32", "N": "i32", "K": "i32"}, constants(config), {"num_warps": 4})
