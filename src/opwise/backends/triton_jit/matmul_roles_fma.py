"""float32 products by FMA on sm_90 in Gluon with warps of different roles: four warps copy, two groups of four multiply, half of a
tile's columns each.

A thread has 8 rows of 16 columns, which takes three quarters of the reads of shared memory that 8 x 8 take. Its rows are 16 apart, so that
the four rows of a warp lie in different banks; its columns are groups of four, 16 bytes. A step's factors would fill the registers three
times over: PIECE of its BK are read at once, from rooms of PIECE columns of a each.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.launch import built, processors
from opwise.backends.triton_jit.matmul_config import GROUP, Config
from opwise.backends.triton_jit.matmul_roles import BARRIER, REGISTERS, tile_at
from opwise.backends.triton_jit.specimen import Specimen

PIECE = 16


@gluon.jit
def copies(a, b, a_room, b_room, full, empty, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
           STAGES: gl.constexpr, PIECE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The copying warps' part: for each step of each of the program's tiles, once its stage is free."""
    PIECES: gl.constexpr = BK // PIECE
    both: gl.constexpr = (BM + BN) * BK * 4
    stage = 0
    turn = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        for k in range(0, K, BK):
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), turn)
            mbarrier.expect(arrived, both)
            for i in gl.static_range(PIECES):
                tma.async_copy_global_to_shared(a, [row, k + i * PIECE], arrived, a_room.index(stage * PIECES + i))
                for part in gl.static_range(2):
                    room = b_room.index((stage * PIECES + i) * 2 + part)
                    # Always so; but ptxas drops `elect` where all four warps copy and nothing else is asked, as in no kernel known to run.
                    tma.async_copy_global_to_shared(b, [k + i * PIECE, column + part * (BN // 2)], arrived, room, pred=N > 0)
            stage += 1
            turn = gl.where(stage == STAGES, turn ^ 1, turn)
            stage = gl.where(stage == STAGES, 0, stage)


@gluon.jit
def products(part: gl.constexpr, a_room, b_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
             GROUP: gl.constexpr, STAGES: gl.constexpr, PIECE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    PIECES: gl.constexpr = BK // PIECE
    HALF: gl.constexpr = BN // 2
    sums: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 0)
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 0)
    stage = 0
    turn = 0
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        total = gl.zeros([BM, HALF], gl.float32, sums)
        for _ in range(0, K, BK):
            mbarrier.wait(full.index(stage), turn)
            for i in gl.static_range(PIECES):
                x = a_room.index(stage * PIECES + i).load(left)
                y = b_room.index((stage * PIECES + i) * 2 + part).load(right)
                total = gl.dot_fma(x, y, total)
            BARRIER()  # all four warps have read the stage
            mbarrier.arrive(empty.index(stage), count=1)
            stage += 1
            turn = gl.where(stage == STAGES, turn ^ 1, turn)
            stage = gl.where(stage == STAGES, 0, stage)
        m = row + gl.arange(0, BM, gl.SliceLayout(1, sums))
        n = column + part * HALF + gl.arange(0, HALF, gl.SliceLayout(0, sums))
        gl.store(out + (m.to(gl.int64)[:, None] * N + n[None, :]), total, mask=(m < M)[:, None] & (n < N)[None, :])


@gluon.jit
def first_part(a_room, b_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
               STAGES: gl.constexpr, PIECE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(0, a_room, b_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, PIECE)


@gluon.jit
def second_part(a_room, b_room, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                STAGES: gl.constexpr, PIECE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    products(1, a_room, b_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, PIECE)


@gluon.jit
def roles_fma_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
                     PIECE: gl.constexpr, MANY: gl.constexpr, FEW: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: descriptors of float32 with blocks BM x PIECE and PIECE x BN / 2. out: float32."""
    PIECES: gl.constexpr = BK // PIECE
    a_room = gl.allocate_shared_memory(gl.float32, [STAGES * PIECES, BM, PIECE], a.layout)
    b_room = gl.allocate_shared_memory(gl.float32, [STAGES * PIECES * 2, PIECE, BN // 2], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (first_part, (a_room, b_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, PIECE)),
        (second_part, (a_room, b_room, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, PIECE)),
        (copies, (a, b, a_room, b_room, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES, PIECE)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


def blocks(config: Config) -> tuple[list[int], list[int]]:
    return [config.BM, PIECE], [PIECE, config.BN // 2]


def layouts(config: Config) -> tuple[Any, Any]:
    return tuple(gl.NVMMASharedLayout.get_default_for(block, gl.float32) for block in blocks(config))


def constants(config: Config) -> dict[str, Any]:
    sizes = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages, "PIECE": PIECE}
    return {**sizes, "MANY": REGISTERS[0], "FEW": REGISTERS[1]}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]

    def described(*factors: Tensor) -> tuple[TensorDescriptor, ...]:
        return tuple(
            TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout)
            for x, block, layout in zip(factors, blocks(config), layouts(config), strict=True)
        )

    programs = min(config.tiles(m, n), processors(a.device))
    options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
    ready = built(roles_fma_kernel, (programs, 1, 1), *described(a, b), out, m, n, k, **constants(config), **options)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b), out, m, n, k)

    return bind


def specimen(config: Config) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    kinds = [f"tensordesc<fp32{block},{layout}>" for block, layout in zip(blocks(config), layouts(config), strict=True)]
    types = {"a": kinds[0], "b": kinds[1], "out": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    return Specimen(roles_fma_kernel, types, constants(config), {"num_warps": 4, "enable_fp_fusion": True})
