"""16-bit products of few tiles and a long K on sm_90, in Gluon: the S blocks of a thread block cluster share a tile's K, S from 1.

Each block multiplies its part of K, and pushes its partial sums to the blocks that own them (split_k_ptx.py), each of which adds its share
of the tile up in a fixed order and stores it: nothing is written but the product, and it is the same in every run.

swap_ab     C' = B' A', so that rows of C, 16 or 32, are wgmma's columns, and columns of C its rows, of which it has 64 at the least. For
            few rows of A: TMA fills rows of a box outside of A with zeros, which takes longer than copying rows.

Instructions are fetched from memory too, so code before the first copy delays it. Hence copies are PTX in loops that are not unrolled, and
the tile's position comes from the grid instead of a division.

Triton cannot express a cluster whose blocks work on different data, so PTX addresses the others. The kernel is compiled for one block; the
launcher alone is told of clusters (common/clusters.py).

Shared memory, whose beginning is `global_smem`, Triton's own name: the stages of the larger factor, of the other, barriers, the partials.
A block's own sums wait where the first stages were. tests/test_gluon_matmul.py holds a compiled kernel to that.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.launch import Grid
from opwise.backends.triton_jit.common.ptx import BARRIER, arrived, shared_base, warp_of
from opwise.backends.triton_jit.matmul import descriptors
from opwise.backends.triton_jit.matmul.configurations import Config
from opwise.backends.triton_jit.matmul.descriptors import Product, dtype_of
from opwise.backends.triton_jit.matmul.pipeline import before, following, turned
from opwise.backends.triton_jit.matmul.split_k_ptx import (
    begin,
    cluster_arrive,
    cluster_wait,
    copying,
    expect_partials,
    fill,
    first_lane,
    reducing,
    release,
    send_operands,
    sending,
    units_of,
    words_of,
)

BARRIERS = gl.constexpr(1024)  # bytes for all mbarriers
SLACK = 1  # stages without a copy in flight. With 2 no warpgroup waits for the other, but it is slower: there are too few stages


@gluon.jit
def pair(low, high, kind: gl.constexpr):  # type: ignore[no-untyped-def]
    """Two neighbours of a row in 32 bits."""
    return low.to(kind).to(gl.uint16, bitcast=True).to(gl.uint32) | high.to(kind).to(gl.uint16, bitcast=True).to(gl.uint32) << 16


@gluon.jit
def store(out, w, x, m, n, M, N, there, kind: gl.constexpr, SWAP_AB: gl.constexpr):  # type: ignore[no-untyped-def]
    """Two neighbours in a row of the sums: in a row of C, or in a column of it."""
    to = out + m.to(gl.int64) * N + n
    if SWAP_AB:
        gl.store(to, w.to(kind), mask=there & (m < M) & (n < N))
        gl.store(to + N, x.to(kind), mask=there & (m + 1 < M) & (n < N))
    else:
        gl.store(to.to(gl.pointer_type(gl.uint32)), pair(w, x, kind), mask=there & (m < M) & (n < N))


@gluon.jit
def split_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
                 S: gl.constexpr, SWAP_AB: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: descriptors of 16-bit elements with blocks BM x BK and BK x BN; A_T, B_T: of (K, M), of (N, K), the other way round. out: M x N
    of theirs, N even. S programs a tile, one after the other along x, and behind them the tiles of a column along x, columns along y; of
    few rows, one tile high, all along x. AHEAD: steps that copies are ahead, less than STAGES."""
    DOWN: gl.constexpr = BN if SWAP_AB else BM  # the sums' rows and columns: C's, or C''s
    ACROSS: gl.constexpr = BM if SWAP_AB else BN
    WARPS: gl.constexpr = gl.num_warps()
    THREADS: gl.constexpr = WARPS * 32
    gl.static_assert(DOWN == WARPS * 16)
    WORDS: gl.constexpr = words_of(ACROSS, S)
    UNITS_OWNED: gl.constexpr = units_of(ACROSS, S)
    UNITS: gl.constexpr = ACROSS // 2 // WORDS
    UNIT: gl.constexpr = THREADS * WORDS * 4
    OF_A: gl.constexpr = BM * BK * 2
    OF_B: gl.constexpr = BK * BN * 2
    A_AT: gl.constexpr = OF_B * STAGES if BN > BM else 0  # the larger lies first
    B_AT: gl.constexpr = 0 if BN > BM else OF_A * STAGES
    COPIES: gl.constexpr = copying(BM, BN, BK, A_T, B_T)
    program = gl.program_id(0)
    block = program % S
    row = 0
    column = gl.program_id(1) * BN
    if SWAP_AB:
        column = program // S * BN
    else:
        row = program // S * BM
    steps = gl.cdiv(K, BK)
    first = steps * block // S
    last = steps * (block + 1) // S

    a_smem = gl.allocate_shared_memory(a.dtype, [STAGES, BK, BM] if A_T else [STAGES, BM, BK], a.layout)
    b_smem = gl.allocate_shared_memory(a.dtype, [STAGES, BN, BK] if B_T else [STAGES, BK, BN], b.layout)
    partials_smem = gl.allocate_shared_memory(
        gl.int32, [(BARRIERS + (S - 1) * UNITS_OWNED * UNIT) // 1024, 256], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    base = shared_base(M)
    full = base + (OF_A + OF_B) * STAGES
    partials_full = full + 16 * STAGES
    partials = full + BARRIERS
    producer = gl.where(warp_of(M) == 0, 1, 0)
    lane0 = first_lane(M)
    begin(full, producer * lane0, STAGES)
    if S > 1:
        expect_partials(partials_full, (UNITS - 1 - block + S) // S * ((S - 1) * UNIT), producer * lane0)
    cluster_arrive(M, S)
    f_stage = 0
    f_phase = 1
    ahead = gl.minimum(AHEAD, last - first)
    for step in range(first, first + ahead):
        fill(COPIES, base + A_AT, base + B_AT, full, producer, f_stage, f_phase, row, column, step * BK, OF_A, OF_B, STAGES)
        f_stage, f_phase = following(f_stage, f_phase, STAGES)
    BARRIER()  # the ring's barriers are there

    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ACROSS, 16])
    total = gl.zeros([DOWN, ACROSS], gl.float32, sums)
    stage = 0
    phase = 0
    for step in range(first, last):
        arrived(full + 8 * stage, phase)
        left = turned(b_smem.index(stage), not B_T) if SWAP_AB else turned(a_smem.index(stage), A_T)
        right = turned(a_smem.index(stage), not A_T) if SWAP_AB else turned(b_smem.index(stage), B_T)
        total = warpgroup_mma(left, right, total, use_acc=step > first, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        release(full + 8 * (STAGES + before(stage, STAGES)), gl.where(step > first, lane0, 0))  # the step before is done
        further = step + AHEAD
        fill(COPIES, base + A_AT, base + B_AT, full, gl.where(further < last, producer, 0), f_stage, f_phase, row, column, further * BK,
             OF_A, OF_B, STAGES)  # fmt: skip
        f_stage, f_phase = following(f_stage, f_phase, STAGES)
        stage, phase = following(stage, phase, STAGES)
    total = warpgroup_mma_wait(0, deps=[total])
    BARRIER()  # all copies have arrived and all products are done

    # A thread's four sums in a row are those of columns 8 j + 2 t, 8 j + 2 t + 1 in rows 16 w + g and 16 w + g + 8; it is thread
    # 32 w + 4 g + t.
    if S > 1:
        cluster_wait(M)  # long since
    none = gl.full([DOWN, ACROSS], 0, gl.int32, sums)
    SENDING: gl.constexpr = sending(ACROSS, S, THREADS)
    SEND_OPERANDS: gl.constexpr = send_operands(ACROSS)
    gl.inline_asm_elementwise(SENDING, SEND_OPERANDS, [total, none + block, none + base, none + partials, none + partials_full],
                              dtype=gl.int32,                              is_pure=False, pack=ACROSS // 2)  # fmt: skip
    if S > 1:
        arrived(partials_full, 0)
    REDUCING: gl.constexpr = reducing(ACROSS, S, THREADS)
    thread = gl.arange(0, THREADS, gl.BlockedLayout([1], [32], [WARPS], [0]))
    for place in range(gl.minimum(UNITS_OWNED, M + UNITS_OWNED)):  # which is UNITS_OWNED, but not to be unrolled: it is cold code
        at = thread * (WORDS * 4) + place * UNIT
        w, x, y, z = gl.inline_asm_elementwise(REDUCING, "=&f,=&f,=&f,=&f,r,r,~{memory}", [at + base, at + partials],
                                               dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=1)  # fmt: skip
        unit = place * S + block
        down = thread // 32 * 16 + thread % 32 // 4
        along = unit * 8 + thread % 4 * 2
        if WORDS == 2:
            down += unit % 2 * 8
            along = unit // 2 * 8 + thread % 4 * 2
        m = row + (along if SWAP_AB else down)
        n = column + (down if SWAP_AB else along)
        store(out, w, x, m, n, M, N, unit < UNITS, a.dtype, SWAP_AB)
        if WORDS == 4:
            if SWAP_AB:
                n += 8
            else:
                m += 8
            store(out, y, z, m, n, M, N, unit < UNITS, a.dtype, SWAP_AB)
    a_smem._keep_alive()
    b_smem._keep_alive()
    partials_smem._keep_alive()


def product(config: Config, dtype: str) -> Product:
    blocks = config.blocks(config.BM, config.BK, config.BN)
    maps = {x: (x, block, gl.NVMMASharedLayout.get_default_for(block, getattr(gl, dtype))) for x, block in blocks.items()}
    sizes = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "STAGES": config.stages, "AHEAD": config.stages - SLACK}
    constants = {**sizes, "S": config.split_k, "SWAP_AB": config.swap_ab, **config.transposed}
    return Product(split_kernel, maps, constants, {"num_warps": config.warps}, cluster=config.split_k)


def grid_of(config: Config, m: int, n: int) -> Grid:
    """Of clusters, one a tile: the launcher multiplies x by their blocks."""
    down, along = -(-m // config.BM), -(-n // config.BN)
    return (along, 1, 1) if config.swap_ab else (down, along, 1)


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    return descriptors.build(product(config, dtype_of(a)), grid_of(config, a.shape[0], b.shape[1]), a, b, out)
