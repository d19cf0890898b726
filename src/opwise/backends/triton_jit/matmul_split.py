"""16-bit products of few tiles and a long K on sm_90, in Gluon: a tile's K is shared by the S blocks of a thread block cluster, S from 1.

Each block multiplies its part of K. Then each lays its sums into its own shared memory, and behind a barrier of the cluster every block
adds up one S-th of the tile, read from all S in a fixed order, and stores it: nothing is written but the product, and it is the same in
every run.

few     C' = B' A', so that rows of C, 16 or 32, are wgmma's columns, and columns of C its rows, of which it has 64 at the least. For few
        rows of A: of a box of 64 rows, most outside of A, the zeros take longer than rows do.

Triton has no words for a cluster whose blocks work on different data, so three things are said in PTX: the barrier, where a block's shared
memory begins (`global_smem`, Triton's own name), and reading another block's. The kernel is compiled for one block; that its blocks are
clusters is told to the launcher alone (clusters.py).

Shared memory is written from its beginning, whatever Triton keeps there: by then all copies have arrived and all products are done, and no
operation after it uses any. tests/test_gluon_matmul.py holds a compiled kernel to that.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.clusters import in_clusters
from opwise.backends.triton_jit.launch import built
from opwise.backends.triton_jit.matmul_config import Config
from opwise.backends.triton_jit.matmul_warpgroup import BARRIER, fetch
from opwise.backends.triton_jit.ptx import shared_base
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


@gluon.jit
def meet(x):  # type: ignore[no-untyped-def]
    """All threads of the cluster, and what they wrote to shared memory. x: any int, given back."""
    return gl.inline_asm_elementwise(
        "{ barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }",
        "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def lay_down(total, at):  # type: ignore[no-untyped-def]
    """Stores four sums that a thread has in a row, 16 bytes, at the shared address of the first."""
    return gl.inline_asm_elementwise(
        "{ st.shared.v4.b32 [$8], {$4, $5, $6, $7}; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; }",
        "=r,=r,=r,=r,r,r,r,r,r,r,r,r,~{memory}", [total, at], dtype=gl.int32, is_pure=False, pack=4,
    )  # fmt: skip


@gluon.jit
def pick_up(at, block):  # type: ignore[no-untyped-def]
    """Four sums at this shared address of a block of the cluster."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $4, $5; ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [there]; }",
        "=f,=f,=f,=f,r,r,~{memory}", [at, block], dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def pair(low, high, kind: gl.constexpr):  # type: ignore[no-untyped-def]
    """Two neighbours of a row in 32 bits."""
    return low.to(kind).to(gl.uint16, bitcast=True).to(gl.uint32) | high.to(kind).to(gl.uint16, bitcast=True).to(gl.uint32) << 16


@gluon.jit
def split_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr, S: gl.constexpr,
                 FEW_ROWS: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: descriptors of 16-bit elements with blocks BM x BK and BK x BN. out: M x N of theirs, N even. S programs a tile."""
    DOWN: gl.constexpr = BN if FEW_ROWS else BM  # the sums' rows and columns: C's, or C''s
    ACROSS: gl.constexpr = BM if FEW_ROWS else BN
    WARPS: gl.constexpr = gl.num_warps()
    program = gl.program_id(0)
    block = program % S
    tiles_m = gl.cdiv(M, BM)
    row = program // S % tiles_m * BM
    column = program // S // tiles_m * BN
    steps = gl.cdiv(K, BK)
    first = steps * block // S
    last = steps * (block + 1) // S

    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, ACROSS, 16])
    a_room = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_room = gl.allocate_shared_memory(a.dtype, [STAGES, BK, BN], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    for i in gl.static_range(STAGES - 1):
        fetch(a, b, a_room, b_room, arrived, row, column, first + i, i, first + i < last, BK)
    total = gl.zeros([DOWN, ACROSS], gl.float32, sums)
    for step in range(first, last):
        stage = (step - first) % STAGES
        mbarrier.wait(arrived.index(stage), (step - first) // STAGES & 1)
        left = b_room.index(stage).permute((1, 0)) if FEW_ROWS else a_room.index(stage)
        right = a_room.index(stage).permute((1, 0)) if FEW_ROWS else b_room.index(stage)
        total = warpgroup_mma(left, right, total, use_acc=step > first, is_async=True)
        total = warpgroup_mma_wait(1, deps=[total])
        BARRIER()  # all warps' products of the step before are done: its room is free
        following = step - 1 + STAGES
        fetch(a, b, a_room, b_room, arrived, row, column, following, (following - first) % STAGES, following < last, BK)
    total = warpgroup_mma_wait(0, deps=[total])
    BARRIER()

    # A thread's four sums in a row are those of columns 8 j + 2 t, 8 j + 2 t + 1 in rows 16 w + g and 16 w + g + 8; it is thread
    # 32 w + 4 g + t, and lays them down as number j * THREADS + 32 w + 4 g + t of the tile's quads.
    THREADS: gl.constexpr = WARPS * 32
    gl.static_assert(DOWN == WARPS * 16)
    base = shared_base(program)
    r = gl.arange(0, DOWN, gl.SliceLayout(1, sums))[:, None]
    c = gl.arange(0, ACROSS, gl.SliceLayout(0, sums))[None, :]
    lay_down(total, base + (c // 8 * THREADS + r // 16 * 32 + r % 8 * 4 + c % 8 // 2) * 16)
    base = meet(base)
    # Round by round, a quad a thread: all of a block's share at once is up to 3 % slower. What lies past it or past the tile is not stored.
    QUADS: gl.constexpr = BM * BN // 4
    SHARE: gl.constexpr = (QUADS + S - 1) // S
    for part in gl.static_range((SHARE + THREADS - 1) // THREADS):
        mine = part * THREADS + gl.arange(0, THREADS, gl.BlockedLayout([1], [32], [WARPS], [0]))
        quad = block * SHARE + mine
        at = base + quad * 16
        w, x, y, z = pick_up(at, at * 0)
        for i in gl.static_range(1, S):
            w_more, x_more, y_more, z_more = pick_up(at, at * 0 + i)
            w += w_more
            x += x_more
            y += y_more
            z += z_more
        thread = quad % THREADS
        if FEW_ROWS:
            n = column + thread // 32 * 16 + thread % 32 // 4
            m = row + quad // THREADS * 8 + thread % 4 * 2
            to = out + m.to(gl.int64) * N + n
            there = (mine < SHARE) & (quad < QUADS)
            gl.store(to, w.to(a.dtype), mask=there & (m < M) & (n < N))
            gl.store(to + N, x.to(a.dtype), mask=there & (m + 1 < M) & (n < N))
            gl.store(to + 8, y.to(a.dtype), mask=there & (m < M) & (n + 8 < N))
            gl.store(to + N + 8, z.to(a.dtype), mask=there & (m + 1 < M) & (n + 8 < N))
        else:
            m = row + thread // 32 * 16 + thread % 32 // 4
            n = column + quad // THREADS * 8 + thread % 4 * 2
            to = (out + m.to(gl.int64) * N + n).to(gl.pointer_type(gl.uint32))
            there = (mine < SHARE) & (quad < QUADS) & (n < N)
            gl.store(to, pair(w, x, a.dtype), mask=there & (m < M))
            gl.store(to + N * 4, pair(y, z, a.dtype), mask=there & (m + 8 < M))
    meet(base)  # nobody leaves while another reads from it


def layouts(config: Config, kind: Any) -> tuple[Any, Any]:
    """Of a's and b's tiles in shared memory."""
    return tuple(gl.NVMMASharedLayout.get_default_for(block, kind) for block in ([config.BM, config.BK], [config.BK, config.BN]))


def constants(config: Config) -> dict[str, Any]:
    return {"BM": config.BM, "BN": config.BN, "BK": config.BK, "STAGES": config.stages, "S": config.split, "FEW_ROWS": config.few}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    kind = getattr(gl, str(a.dtype).removeprefix("torch."))

    def described(*factors: Tensor) -> tuple[TensorDescriptor, ...]:
        return tuple(
            TensorDescriptor(x, list(x.shape), [x.shape[1], 1], block, layout)
            for x, block, layout in zip(factors, ([config.BM, config.BK], [config.BK, config.BN]), layouts(config, kind), strict=True)
        )

    grid, samples = (config.tiles(m, n), 1, 1), (*described(a, b), out, m, n, k)
    fixed: dict[str, Any] = {**constants(config), "num_warps": config.warps}
    in_clusters(split_kernel.warmup(*samples, grid=grid, **fixed), config.split)  # the very kernel that `built` then finds compiled
    ready = built(split_kernel, grid, *samples, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(*described(a, b), out, m, n, k)

    return bind


def specimen(config: Config, dtype: str) -> Specimen:
    """What `matmul_tma.specimens` lists."""
    element = POINTERS[dtype].removeprefix("*")
    blocks = ([config.BM, config.BK], [config.BK, config.BN])
    kinds = [f"tensordesc<{element}{block},{layout}>" for block, layout in zip(blocks, layouts(config, getattr(gl, dtype)), strict=True)]
    types = {"a": kinds[0], "b": kinds[1], "out": POINTERS[dtype], "M": "i32", "N": "i32", "K": "i32"}
    return Specimen(split_kernel, types, constants(config), {"num_warps": config.warps})
