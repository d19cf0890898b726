"""16-bit products on sm_90 in Gluon, where Triton's own pipeline falls short: no warp waits for the products it has just begun.

A step's wgmma are begun before those of the step before are waited for, and copies are asked for as soon as a stage of shared memory is
free, STAGES - 1 steps ahead. Two kernels:

    ahead_kernel     tiles of 128 x 128 by as many programs as run at once; copies run ahead into the program's next tile, so that they are
                     under way while its results are stored, which TMA does from a place of their own
    narrow_kernel    tiles of 128 x 144, one a program, for products of which that makes just one wave (1536 cubed: 132 tiles of it, 144 of
                     128 x 128). A tensor's sides are powers of two: the sums are two tensors, of 128 and of 16 columns

ptxas may wait for each wgmma where it takes the sums for a hazard: tests/test_triton_gluon.py reads the SASS for that. What it puts between
those of a step is worth a tenth by itself (docs/lab.md), so a change that looks idle here is to be measured.

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
from opwise.backends.triton_jit.matmul_roles import tile_at
from opwise.backends.triton_jit.matmul_warpgroup import BARRIER, fetch
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


@gluon.jit
def ahead_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                 STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: descriptors of 16-bit elements with blocks BM x BK, BK x BN, BM x BN."""
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, 16])
    a_room = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, BN], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    BARRIER()
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, BN)
    steps = gl.cdiv(K, BK)
    # What is fetched next, f_: it runs ahead of the products, into the program's next tile.
    f_program = gl.program_id(0)
    f_row, f_column = tile_at(f_program, M, N, BM, BN, GROUP)
    f_step = 0
    for i in gl.static_range(STAGES - 1):
        fetch(a, b, a_room, b_room, full, f_row, f_column, f_step, i, f_program < tiles, BK)
        f_step += 1
        if f_step == steps:
            f_step = 0
            f_program += gl.num_programs(0)
            f_row, f_column = tile_at(gl.minimum(f_program, tiles - 1), M, N, BM, BN, GROUP)
    f_stage = STAGES - 1
    stage = 0
    turn = 0
    out_room = gl.allocate_shared_memory(a.dtype, [BM, BN], out.layout)
    for program in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        total = gl.zeros([BM, BN], gl.float32, sums)
        for step in range(steps):
            mbarrier.wait(full.index(stage), turn)
            total = warpgroup_mma(a_room.index(stage), b_room.index(stage), total, use_acc=step > 0, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            BARRIER()  # all warps' products of the step before are done: its stage is free
            fetch(a, b, a_room, b_room, full, f_row, f_column, f_step, f_stage, f_program < tiles, BK)
            f_step += 1
            if f_step == steps:
                f_step = 0
                f_program += gl.num_programs(0)
                f_row, f_column = tile_at(gl.minimum(f_program, tiles - 1), M, N, BM, BN, GROUP)
            f_stage = gl.where(f_stage == STAGES - 1, 0, f_stage + 1)
            turn = gl.where(stage == STAGES - 1, turn ^ 1, turn)
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        total = warpgroup_mma_wait(0, deps=[total])
        tma.store_wait(0)  # the last tile's results have left their place
        BARRIER()
        out_room.store(total.to(a.dtype))
        fence_async_shared()
        BARRIER()
        tma.async_copy_shared_to_global(out, [row, column], out_room)
    tma.store_wait(0)


@gluon.jit
def narrow_kernel(a, b, b_more, out, out_more, M, N, K, BM: gl.constexpr, BK: gl.constexpr, WIDE: gl.constexpr, NARROW: gl.constexpr,
                  GROUP: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b, out: as above, b and out with blocks of WIDE columns; b_more, out_more: the tile's other NARROW columns."""
    BN: gl.constexpr = WIDE + NARROW
    MORE: gl.constexpr = b_more.block_type.nbytes
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, WIDE, 16])
    more_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, NARROW, 16])
    a_room = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, WIDE], b.layout)
    more_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, NARROW], b_more.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    BARRIER()
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, BN)
    steps = gl.cdiv(K, BK)
    # As above, though there is no next tile: this form was measured, and a shorter one compiles to another order of instructions.
    f_program = gl.program_id(0)
    f_row, f_column = tile_at(f_program, M, N, BM, BN, GROUP)
    f_step = 0
    for i in gl.static_range(STAGES - 1):
        there = f_program < tiles
        fetch(a, b, a_room, b_room, full, f_row, f_column, f_step, i, there, BK, MORE)
        tma.async_copy_global_to_shared(b_more, [f_step * BK, f_column + WIDE], full.index(i), more_room.index(i), pred=there)
        f_step += 1
        if f_step == steps:
            f_step = 0
            f_program += gl.num_programs(0)
            f_row, f_column = tile_at(gl.minimum(f_program, tiles - 1), M, N, BM, BN, GROUP)
    f_stage = STAGES - 1
    stage = 0
    turn = 0
    row, column = tile_at(gl.program_id(0), M, N, BM, BN, GROUP)
    total = gl.zeros([BM, WIDE], gl.float32, sums)
    more = gl.zeros([BM, NARROW], gl.float32, more_sums)
    for step in range(steps):
        mbarrier.wait(full.index(stage), turn)
        total = warpgroup_mma(a_room.index(stage), b_room.index(stage), total, use_acc=step > 0, is_async=True)
        more = warpgroup_mma(a_room.index(stage), more_room.index(stage), more, use_acc=step > 0, is_async=True)
        total, more = warpgroup_mma_wait(2, deps=[total, more])
        BARRIER()
        f_step = step + STAGES - 1
        there = f_step < steps
        fetch(a, b, a_room, b_room, full, row, column, f_step, f_stage, there, BK, MORE)
        tma.async_copy_global_to_shared(b_more, [f_step * BK, column + WIDE], full.index(f_stage), more_room.index(f_stage), pred=there)
        f_stage = gl.where(f_stage == STAGES - 1, 0, f_stage + 1)
        turn = gl.where(stage == STAGES - 1, turn ^ 1, turn)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
    total, more = warpgroup_mma_wait(0, deps=[total, more])
    BARRIER()
    # All copies have arrived and all products are done: allocated here, these may lie where the factors did.
    out_room = gl.allocate_shared_memory(a.dtype, [BM, WIDE], out.layout)
    out_room.store(total.to(a.dtype))
    out_more_room = gl.allocate_shared_memory(a.dtype, [BM, NARROW], out_more.layout)
    out_more_room.store(more.to(a.dtype))
    fence_async_shared()
    BARRIER()
    tma.async_copy_shared_to_global(out, [row, column], out_room)
    tma.async_copy_shared_to_global(out_more, [row, column + WIDE], out_more_room)
    tma.store_wait(0)


def wide(config: Config) -> int:
    """Columns of a tile that the first of its tensors holds: the largest power of two."""
    return 1 << (config.BN.bit_length() - 1)


def blocks(config: Config) -> dict[str, list[int]]:
    """Of what each descriptor copies at once, rows x columns."""
    first = wide(config)
    found = {"a": [config.BM, config.BK], "b": [config.BK, first], "out": [config.BM, first]}
    if more := config.BN - first:
        found |= {"b_more": [config.BK, more], "out_more": [config.BM, more]}
    return {name: found[name] for name in ("a", "b", "b_more", "out", "out_more") if name in found}


def constants(config: Config) -> dict[str, Any]:
    shared = {"BM": config.BM, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages}
    return {**shared, "BN": config.BN} if config.resident else {**shared, "WIDE": wide(config), "NARROW": config.BN - wide(config)}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    kind = getattr(gl, str(a.dtype).removeprefix("torch."))

    def described(a: Tensor, b: Tensor, out: Tensor) -> tuple[TensorDescriptor, ...]:
        of = {"a": a, "b": b, "b_more": b, "out": out, "out_more": out}
        each = ((of[name], block, gl.NVMMASharedLayout.get_default_for(block, kind)) for name, block in blocks(config).items())
        return tuple(TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout) for x, block, layout in each)

    tiles = config.tiles(m, n)
    grid = (min(tiles, processors(a.device)) if config.resident else tiles, 1, 1)
    ready = built(_kernel(config), grid, *described(a, b, out), m, n, k, **constants(config), num_warps=config.warps)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b, out), m, n, k)

    return bind


def _kernel(config: Config) -> Any:
    return ahead_kernel if config.resident else narrow_kernel


def specimen(config: Config, dtype: str) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    element, kind = POINTERS[dtype].removeprefix("*"), getattr(gl, dtype)
    types = {
        name: f"tensordesc<{element}{block},{gl.NVMMASharedLayout.get_default_for(block, kind)}>" for name, block in blocks(config).items()
    }
    return Specimen(_kernel(config), {**types, "M": "i32", "N": "i32", "K": "i32"}, constants(config), {"num_warps": config.warps})
