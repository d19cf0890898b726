"""TF32 products on sm_90 in Gluon, Triton's lower-level language: pipelines that Triton does not generate from `tl.dot`.

    persistent_kernel   warp-specialized: a producer warpgroup copies by TMA, two consumer warpgroups multiply, 64 columns of a tile each.
                        Persistent: the producer loads the next tile while the consumers store the last one
    pipelined_kernel    one tile a program, all warps copy and multiply: for products too small for the larger tiles

wgmma needs TF32 operands in shared memory to be K-major, and b is row-major (N-major). Its first operand may also come from registers, from
any layout in memory. So the kernels compute the transposed product, out' = b' a', with b' in registers and a' in shared memory. The tensor
maps round both to TF32. While the tensor cores multiply one step, the next step's b is loaded into other registers.

ptxas considers a wgmma's operand registers free as soon as it is issued, but a wgmma in flight still reads them. If they are reused too
early, the product is wrong. The source prevents that:

    two variables      `left` holds the b of the step in flight, `fresh` receives the next step's
    `kept(left)`       uses `left` after the wait for the products and a barrier, so that its registers stay allocated until then. It is
                       volatile, as the wait is, so the compiler keeps their order
    pairs of steps     if a step's `fresh` became the next iteration's `left`, ptxas would copy registers, and `kept` would protect the
                       copy only. With two steps an iteration each variable returns to its own registers, and nothing is copied

ptxas does not guarantee the last point: tests/test_gluon_matmul.py checks the SASS.

Tiles of 192 rows have two accumulators, of 128 and of 64 rows, since a tensor's dimensions are powers of two. All four warps of a warpgroup
must execute the same `setmaxnreg` instruction. One producer warp would suffice, but Triton pads its warpgroup with three warps that execute
another one. So the producer has four warps.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import processors
from opwise.backends.triton_jit.common.ptx import BARRIER
from opwise.backends.triton_jit.matmul import descriptors
from opwise.backends.triton_jit.matmul.configurations import GROUP, Config
from opwise.backends.triton_jit.matmul.descriptors import Product
from opwise.backends.triton_jit.matmul.pipeline import REGISTERS, tile_at


@gluon.jit
def kept(x, size):  # type: ignore[no-untyped-def]
    """Keeps x in its registers up to here, by stores predicated on size < 0, which is never true. The deps of `warpgroup_mma_wait` do not
    reach ptxas. A volatile store after a barrier does: ptxas can neither remove nor hoist it."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.lt.s32 never, $8, 0; @never st.volatile.shared.v4.b32 [$8], {$4, $5, $6, $7}; } "
        "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r", [x, size], dtype=gl.int32, is_pure=False, pack=4,
    )  # fmt: skip


@gluon.jit
def copies(b, a, a_more, b_smem, a_smem, more_smem, full, empty, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
           GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The producer warps: copy each step of each of the program's tiles, once the stage is free."""
    both: gl.constexpr = (BM * BK + BK * BN) * 4
    stage = 0
    phase = 1  # the parity of the phase before the first counts as complete
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        for step in range(gl.cdiv(K, BK) | 1):  # odd; zeros past K
            arrived = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(arrived, both)
            tma.async_copy_global_to_shared(b, [step * BK, column], arrived, b_smem.index(stage * 2))
            tma.async_copy_global_to_shared(b, [step * BK, column + 64], arrived, b_smem.index(stage * 2 + 1))
            tma.async_copy_global_to_shared(a, [row, step * BK], arrived, a_smem.index(stage))
            if WIDE < BM:
                tma.async_copy_global_to_shared(a_more, [row + WIDE, step * BK], arrived, more_smem.index(stage))
            stage += 1
            phase = gl.where(stage == STAGES, phase ^ 1, phase)
            stage = gl.where(stage == STAGES, 0, stage)


@gluon.jit
def next_step(part: gl.constexpr, total, more, left, b_smem, a_smem, more_smem, full, empty, stage, phase, last, size, BM: gl.constexpr,
            STAGES: gl.constexpr, WIDE: gl.constexpr, factor: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Issues a step's wgmmas, then waits for those of the step before, whose b is `left`, and releases its stage, `last`."""
    mbarrier.wait(full.index(stage), phase)
    fresh = b_smem.index(stage * 2 + part).permute((1, 0)).load(factor)
    total = warpgroup_mma(fresh, a_smem.index(stage).permute((1, 0)), total, is_async=True)
    if WIDE < BM:
        more = warpgroup_mma(fresh, more_smem.index(stage).permute((1, 0)), more, is_async=True)
        total, more = warpgroup_mma_wait(2, deps=[total, more])
    else:
        total = warpgroup_mma_wait(1, deps=[total])
    BARRIER()  # all four warps' products of the step before are done
    kept(left, size)
    mbarrier.arrive(empty.index(last), count=1)
    last = stage
    stage += 1
    phase = gl.where(stage == STAGES, phase ^ 1, phase)
    stage = gl.where(stage == STAGES, 0, stage)
    return total, more, fresh, stage, phase, last


@gluon.jit
def products(part: gl.constexpr, b_smem, a_smem, more_smem, full, empty, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr,
             BK: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A consumer warpgroup: columns 64 part to 64 part + 63 of each of the program's tiles."""
    NARROW: gl.constexpr = BM - WIDE if WIDE < BM else 8
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 8])
    more_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, NARROW, 8])
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 1)
    stage = 0
    phase = 0
    for program in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
        row, column = tile_at(program, M, N, BM, BN, GROUP)
        mbarrier.wait(full.index(stage), phase)
        left = b_smem.index(stage * 2 + part).permute((1, 0)).load(factor)
        total = warpgroup_mma(left, a_smem.index(stage).permute((1, 0)), gl.full((64, WIDE), 0.0, gl.float32, sums), is_async=True)
        more = gl.full((64, NARROW), 0.0, gl.float32, more_sums)
        if WIDE < BM:
            more = warpgroup_mma(left, more_smem.index(stage).permute((1, 0)), more, is_async=True)
            total, more = warpgroup_mma_wait(2, deps=[total, more])  # returns at once; for the types
        else:
            total = warpgroup_mma_wait(1, deps=[total])
        last = stage
        stage += 1
        phase = gl.where(stage == STAGES, phase ^ 1, phase)
        stage = gl.where(stage == STAGES, 0, stage)
        for _ in range(1, gl.cdiv(K, BK) | 1, 2):
            total, more, other, stage, phase, last = next_step(part, total, more, left, b_smem, a_smem, more_smem, full, empty, stage,
                                                              phase, last, M, BM, STAGES, WIDE, factor)  # fmt: skip
            total, more, left, stage, phase, last = next_step(part, total, more, other, b_smem, a_smem, more_smem, full, empty, stage,
                                                             phase, last, M, BM, STAGES, WIDE, factor)  # fmt: skip
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
def persistent_kernel(b, a, a_more, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                   STAGES: gl.constexpr, WIDE: gl.constexpr, MANY: gl.constexpr, FEW: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """b, a: float32 descriptors with blocks BK x 64 and WIDE x BK, which round to TF32. a_more: one for the tile's other BM - WIDE rows,
    or a second one like a if BM = WIDE. out: float32, M x N."""
    gl.static_assert(BN == 128)
    b_smem = gl.allocate_shared_memory(gl.float32, [STAGES * 2, BK, 64], b.layout)
    a_smem = gl.allocate_shared_memory(gl.float32, [STAGES, WIDE, BK], a.layout)
    more_smem = a_smem
    if WIDE < BM:
        more_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BM - WIDE, BK], a_more.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (products, (gl.constexpr(0), b_smem, a_smem, more_smem, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
        (products, (gl.constexpr(1), b_smem, a_smem, more_smem, full, empty, out, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
        (copies, (b, a, a_more, b_smem, a_smem, more_smem, full, empty, M, N, K, BM, BN, BK, GROUP, STAGES, WIDE)),
    ], [4, 4], [MANY, FEW])  # fmt: skip


@gluon.jit
def fetch(a, b, a_smem, b_smem, arrived, row, column, step, stage, there, BK: gl.constexpr, MORE: gl.constexpr = 0):  # type: ignore[no-untyped-def]
    """Starts the copies of a step's tiles of a and b to this stage of shared memory, if `there`.

    MORE: bytes of the caller's own copies that signal the same mbarrier.
    """
    full = arrived.index(stage)
    mbarrier.expect(full, a.block_type.nbytes + b.block_type.nbytes + MORE, pred=there)
    tma.async_copy_global_to_shared(a, [row, step * BK], full, a_smem.index(stage), pred=there)
    tma.async_copy_global_to_shared(b, [step * BK, column], full, b_smem.index(stage), pred=there)


@gluon.jit
def pipelined_step(total, left, a, b, a_smem, b_smem, arrived, row, column, step, steps, size, BK: gl.constexpr, STAGES: gl.constexpr,
            factor: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Waits for the step before, whose b is `left`, and starts this one. Returns the sums, in flight, and this step's b.

    The loop calls this twice an iteration: see the module's docstring, "pairs of steps".
    """
    stage = step % STAGES
    mbarrier.wait(arrived.index(stage), step // STAGES & 1)
    fresh = b_smem.index(stage).permute((1, 0)).load(factor)
    total = warpgroup_mma_wait(0, deps=[total])
    BARRIER()  # all warps have finished the step before: its stage is free
    kept(left, size)
    total = warpgroup_mma(fresh, a_smem.index(stage).permute((1, 0)), total, is_async=True)
    following = step - 1 + STAGES
    fetch(a, b, a_smem, b_smem, arrived, row, column, following, following % STAGES, following < steps, BK)
    return total, fresh


@gluon.jit
def pipelined_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
                     STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: float32 descriptors with blocks BM x BK and BK x BN, which round to TF32. out: float32, M x N. One tile a program."""
    row, column = tile_at(gl.program_id(0), M, N, BM, BN, GROUP)
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 8])
    factor: gl.constexpr = gl.DotOperandLayout(0, sums, 1)
    a_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BM, BK], a.layout)
    b_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BK, BN], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    steps = gl.cdiv(K, BK) | 1  # the first, then pairs; TMA fills with zeros past K
    for i in gl.static_range(STAGES):
        fetch(a, b, a_smem, b_smem, arrived, row, column, i, i, i < steps, BK)
    mbarrier.wait(arrived.index(0), 0)
    left = b_smem.index(0).permute((1, 0)).load(factor)
    # The first step is peeled: in the loop the compiler would see a hazard in zeroing the accumulator, and wait after each wgmma.
    total = warpgroup_mma(left, a_smem.index(0).permute((1, 0)), gl.full((BN, BM), 0.0, gl.float32, sums), is_async=True)
    for step in range(1, steps, 2):
        total, other = pipelined_step(total, left, a, b, a_smem, b_smem, arrived, row, column, step, steps, M, BK, STAGES, factor)
        total, left = pipelined_step(total, other, a, b, a_smem, b_smem, arrived, row, column, step + 1, steps, M, BK, STAGES, factor)
    total = warpgroup_mma_wait(0, deps=[total])
    kept(left, M)
    n = column + gl.arange(0, BN, gl.SliceLayout(1, sums))
    m = row + gl.arange(0, BM, gl.SliceLayout(0, sums))
    at = m.to(gl.int64)[None, :] * N + n[:, None]
    gl.store(out + at, total, mask=(n < N)[:, None] & (m < M)[None, :])


def product(config: Config, dtype: str = "float32") -> Product:
    sizes = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages}
    wide = 1 << (config.BM.bit_length() - 1)  # rows of the tile's first accumulator: the largest power of two in BM
    if config.persistent:
        blocks = {"b": [config.BK, 64], "a": [wide, config.BK], "a_more": [config.BM - wide or wide, config.BK]}
        constants, warps, kernel = {**sizes, "WIDE": wide, "MANY": REGISTERS[0], "FEW": REGISTERS[1]}, 4, persistent_kernel
    else:
        blocks = {"a": [config.BM, config.BK], "b": [config.BK, config.BN]}
        constants, warps, kernel = sizes, config.warps, pipelined_kernel
    maps = {x: (x[0], block, gl.NVMMASharedLayout.get_default_for(block, gl.float32)) for x, block in blocks.items()}
    return Product(kernel, maps, constants, {"num_warps": warps, "default_dot_input_precision": "tf32"}, rounds=True)


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    tiles = config.tiles(a.shape[0], b.shape[1])
    return descriptors.build(product(config), (min(tiles, processors(a.device)) if config.persistent else tiles, 1, 1), a, b, out)
