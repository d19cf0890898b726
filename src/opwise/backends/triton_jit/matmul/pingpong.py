"""16-bit products on sm_90 in Gluon by ping-pong: two consumer warpgroups have a tile each, and one multiplies while the other stores.

    copies      the producer's warps fill a pipeline of STAGES steps, in the order of the program's tiles: 64 UNITS x 64 of a, 64 x 128 of b
    products    a consumer warpgroup takes every other tile. When the last step's products alone are left, it lets the other begin;
                what it then waits for, rounds and stores passes under the other's products

A tensor's sides are powers of two, so a tile's rows are UNITS tensors of 64, each a wgmma of 64 x 128 x 16: tiles of 192 rows are three.
Results leave in parts of 64 x 64, 8 KiB, through EPILOGUE_STAGES stages of shared memory of a consumer's own, in turn.

The consumers' order also keeps the pipeline correct: a phase is known only by its parity, so no wait may be two rounds of the ring behind.
Before an arrival or a copy Gluon inserts a barrier, but only of the four warps of that warpgroup, while a step is in flight.
tf32.py explains how registers are moved between warpgroups, and why the producer has four warps.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import processors
from opwise.backends.triton_jit.common.ptx import BARRIER
from opwise.backends.triton_jit.matmul import descriptors
from opwise.backends.triton_jit.matmul.configurations import Config
from opwise.backends.triton_jit.matmul.descriptors import Product, dtype_of
from opwise.backends.triton_jit.matmul.pipeline import REGISTERS, before, following, tile_at, turned


@gluon.jit
def copies(a, b, a_smem, b_smem, full, empty, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
           A_T: gl.constexpr, B_T: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The producer's part: each step of each of the program's tiles, once its stage is free."""
    stage = 0
    phase = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, 64 * UNITS) * gl.cdiv(N, 128), gl.num_programs(0)):
        row, column = tile_at(program, M, N, 64 * UNITS, 128, GROUP)
        for step in range(gl.cdiv(K, 64)):
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(arrived, (UNITS * 64 + 128) * 64 * 2)
            for unit in gl.static_range(UNITS):
                at = [step * 64, row + 64 * unit] if A_T else [row + 64 * unit, step * 64]
                tma.async_copy_global_to_shared(a, at, arrived, a_smem.index(stage * UNITS + unit))
            tma.async_copy_global_to_shared(b, [column, step * 64] if B_T else [step * 64, column], arrived, b_smem.index(stage))
            stage, phase = following(stage, phase, STAGES)


@gluon.jit
def start_step(total, a_smem, b_smem, full, stage, phase, more, UNITS: gl.constexpr, A_T: gl.constexpr,
               B_T: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Starts a step's products once it has come. more: are the sums of the steps before to be added to?"""
    mbarrier.wait(full.index(stage), phase)
    sums = ()
    for unit in gl.static_range(UNITS):
        left = turned(a_smem.index(stage * UNITS + unit), A_T)
        each = warpgroup_mma(left, turned(b_smem.index(stage), B_T), total[unit], use_acc=more, is_async=True)
        sums += (each,)  # type: ignore[assignment]
    return warpgroup_mma_wait(UNITS, deps=sums)


@gluon.jit
def store_part(out, epilogue, part, row, column, EPILOGUE_STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Stores a part of the results by way of this epilogue, once what lay there has been read."""
    tma.store_wait(EPILOGUE_STAGES - 1)
    BARRIER()
    epilogue.store(part.to(out.dtype))
    fence_async_shared()
    BARRIER()
    tma.async_copy_shared_to_global(out, [row, column], epilogue)


@gluon.jit
def products(me: gl.constexpr, a_smem, b_smem, epilogue, full, empty, order, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr,
             STAGES: gl.constexpr, EPILOGUE_STAGES: gl.constexpr, A_T: gl.constexpr,
             B_T: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A consumer's part: every other tile of the program's."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    steps = gl.cdiv(K, 64)
    index = me + 0 * K  # of the tile among the program's
    for program in range(gl.program_id(0) + me * gl.num_programs(0), gl.cdiv(M, 64 * UNITS) * gl.cdiv(N, 128), 2 * gl.num_programs(0)):
        row, column = tile_at(program, M, N, 64 * UNITS, 128, GROUP)
        stage = index * steps % STAGES  # the other's tiles' steps are in the ring too
        phase = index * steps // STAGES & 1
        total = ()
        for _ in gl.static_range(UNITS):
            total += (gl.zeros([64, 128], gl.float32, layout),)  # type: ignore[assignment]
        mbarrier.wait(order.index(me), index // 2 & 1 ^ 1 - me)  # the first of all has nobody to wait for
        total = start_step(total, a_smem, b_smem, full, stage, phase, False, UNITS, A_T, B_T)
        stage, phase = following(stage, phase, STAGES)
        for _ in range(1, steps):
            total = start_step(total, a_smem, b_smem, full, stage, phase, True, UNITS, A_T, B_T)
            mbarrier.arrive(empty.index(before(stage, STAGES)), count=1)
            stage, phase = following(stage, phase, STAGES)
        mbarrier.arrive(order.index(1 - me), count=1)  # a step is still being multiplied: time enough to begin
        total = warpgroup_mma_wait(0, deps=total)
        mbarrier.arrive(empty.index(before(stage, STAGES)), count=1)
        index += 2
        for unit in gl.static_range(UNITS):
            halves = total[unit].reshape([64, 2, 64]).permute((0, 2, 1)).split()
            for half in gl.static_range(2):
                place = epilogue.index(me * EPILOGUE_STAGES + (unit * 2 + half) % EPILOGUE_STAGES)
                store_part(out, place, halves[half], row + 64 * unit, column + 64 * half, EPILOGUE_STAGES)
    tma.store_wait(0)  # shared memory must outlive its stores


@gluon.jit
def pingpong_kernel(a, b, out, M, N, K, UNITS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, EPILOGUE_STAGES: gl.constexpr,
                    MANY: gl.constexpr, FEW: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: descriptors of 16-bit elements with blocks 64 x 64, 64 x 128, 64 x 64; A_T, B_T: of (K, M), of (N, K), 128 x 64."""
    gl.static_assert(UNITS * 2 % EPILOGUE_STAGES == 0)  # or two stores from one epilogue would follow each other
    a_smem = gl.allocate_shared_memory(a.dtype, [STAGES * UNITS, 64, 64], a.layout)
    b_smem = gl.allocate_shared_memory(a.dtype, [STAGES, 128, 64] if B_T else [STAGES, 64, 128], b.layout)
    epilogue = gl.allocate_shared_memory(a.dtype, [2 * EPILOGUE_STAGES, 64, 64], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    order = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(order.index(i), count=1)
    gl.warp_specialize([
        (products, (gl.constexpr(0), a_smem, b_smem, epilogue, full, empty, order, out, M, N, K, UNITS, GROUP, STAGES, EPILOGUE_STAGES, A_T,
                    B_T)),
        (products, (gl.constexpr(1), a_smem, b_smem, epilogue, full, empty, order, out, M, N, K, UNITS, GROUP, STAGES, EPILOGUE_STAGES, A_T,
                    B_T)),
        (copies, (a, b, a_smem, b_smem, full, empty, M, N, K, UNITS, GROUP, STAGES, A_T, B_T)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


def epilogue_stages(config: Config) -> int:
    """As many as fit, where a tile's parts come round to the first."""
    most = (226 * 1024 - config.shared_bytes(2)) // (2 * 8 * 1024)
    return max(count for count in range(1, most + 1) if config.BM // 32 % count == 0)


def product(config: Config, dtype: str) -> Product:
    blocks = {**config.blocks(64, 64, 128), "out": [64, 64]}
    maps = {x: (x, block, gl.NVMMASharedLayout.get_default_for(block, getattr(gl, dtype))) for x, block in blocks.items()}
    sizes = {"UNITS": config.BM // 64, "GROUP": 16 if config.BM == 128 else 8, "STAGES": config.stages}
    constants = {**sizes, "EPILOGUE_STAGES": epilogue_stages(config), "MANY": REGISTERS[0], "FEW": REGISTERS[1], **config.transposed}
    return Product(pingpong_kernel, maps, constants, {"num_warps": 4})


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    programs = min(config.tiles(a.shape[0], b.shape[1]), processors(a.device))
    return descriptors.build(product(config, dtype_of(a)), (programs, 1, 1), a, b, out)
