"""float32 products by multiply-adds on sm_90 in Gluon, in an order that is written down. Triton's `dot` is a fifth slower.

The limit is register bank conflicts: an FMA reads three registers. A clock reads one of the even bank and one of the odd bank; an operand
that the FMA before had in the same position is free (`.reuse`). So

    a row at a time    a thread has ROWS x COLUMNS elements. A row's multiply-adds follow one another and keep the element of a; the next
                       row's go back the way, and keep that of b
    words of a         are read one by one: neighbouring k in one load would get registers of k's parity
    sums apart         from what is stored, which is fours of registers in order: ptxas would give the sums those
    few barriers       Triton puts one of the program wherever it sees shared memory written and read, five a step, each of which costs
                       a per cent. So what is read from it, and what waits for it, is said in PTX (ffma_ptx.py); one a step is left
    short turns        of the inner loop: 32 k written out are 84 KB of instructions, and 50 us until they have been fetched

A thread reads columns by fours. A warp has 8 rows and 4 fours beside one another, so that its lanes meet in no bank: 16 of them read 8 rows
of a and 2 fours of b. The factors of the next k are read while this one's are multiplied, across steps, too.

ptxas compiles this in one of two ways, depending on details such as where an address is computed. The version with 194 registers and early
loads is 6 % faster; docs/lab/matmul.md, section ffma, has both.

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from opwise.backends.protocol import Bind
from opwise.backends.triton_jit.common.ptx import BARRIER, arrived, shared_base
from opwise.backends.triton_jit.matmul import descriptors
from opwise.backends.triton_jit.matmul.configurations import GROUP, Config
from opwise.backends.triton_jit.matmul.descriptors import Product
from opwise.backends.triton_jit.matmul.ffma_ptx import apart, columns_at, expect, row_product, word_at
from opwise.backends.triton_jit.matmul.pipeline import tile_at

ROWS = gl.constexpr(8)  # of a thread


@gluon.constexpr_function
def bases(warps):  # type: ignore[no-untyped-def]
    """Of threads' numbers."""
    return [[[1 << i, 0] for i in range(5)], [[32 << i, 0] for i in range(warps.bit_length() - 1)]]


@gluon.jit
def ffma_kernel(a, b, out, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
               STAGES: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """a, b: descriptors of float32 with blocks BM x BK, 32 k, swizzled by 128 bytes, and BK x BN, as it is. out: float32."""
    gl.static_assert(BK == 32)
    gl.static_assert(BM >= BN)  # b's stages lie behind a's, which Triton does with the smaller ones
    THREADS: gl.constexpr = gl.num_warps() * 32
    COLUMNS: gl.constexpr = BM * BN // (ROWS * THREADS)
    TURN: gl.constexpr = 1024 // (ROWS * COLUMNS)  # k of the inner loop: 1024 multiply-adds a thread
    ACROSS: gl.constexpr = BN // COLUMNS
    DOWN: gl.constexpr = BM // ROWS
    A_BYTES: gl.constexpr = BM * BK * 4
    B_BYTES: gl.constexpr = BK * BN * 4
    A_FULL: gl.constexpr = STAGES * (A_BYTES + B_BYTES)
    B_FULL: gl.constexpr = A_FULL + (STAGES * 8 + 15) // 16 * 16
    line: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    # In this order they lie in shared memory, at addresses that are computed here: tests/test_gluon_matmul.py finds the barriers there.
    a_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BM, BK], a.layout)
    b_smem = gl.allocate_shared_memory(gl.float32, [STAGES, BK, BN], b.layout)
    a_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    b_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(a_full.index(i), count=1)
        mbarrier.init(b_full.index(i), count=1)
    BARRIER()
    row, column = tile_at(gl.program_id(0), M, N, BM, BN, GROUP)
    steps = gl.cdiv(K, BK)
    base = shared_base(M)
    t = gl.arange(0, THREADS, line)
    warp = t // 32
    lane = t % 32
    x = warp % (ACROSS // 4) * 4 + (lane & 1) + (lane >> 4) * 2  # the first of the thread's columns is 4 x
    y = warp // (ACROSS // 4) * 8 + (lane >> 1 & 7)  # its rows are y and those DOWN apart
    a_at = y * (BK * 4) + (y & 7) * 16 + base
    b_at = x * 16 + base + STAGES * A_BYTES
    from_a = a_at
    from_b = b_at
    for i in range(gl.minimum(STAGES, steps)):
        expect(base + A_FULL + 8 * i + 0 * t, A_BYTES, (t == 0).to(gl.int32))
        expect(base + B_FULL + 8 * i + 0 * t, B_BYTES, (t == 0).to(gl.int32))
        tma.async_copy_global_to_shared(a, [row, i * BK], a_full.index(i), a_smem.index(i))
        tma.async_copy_global_to_shared(b, [i * BK, column], b_full.index(i), b_smem.index(i))
    arrived(base + A_FULL + 0 * t, 0)
    arrived(base + B_FULL + 0 * t, 0)
    sums = ()
    of_a = ()
    for r in gl.static_range(ROWS):
        zeros = ()
        for _ in gl.static_range(COLUMNS):
            zeros += (gl.full([THREADS], 0.0, gl.float32, line),)  # type: ignore[assignment]
        sums += (zeros,)  # type: ignore[assignment]
        of_a += (word_at(from_a, r * DOWN * BK * 4),)  # type: ignore[assignment]
    of_b = columns_at(from_b, 0, ACROSS * 16, COLUMNS)
    stage = 0
    phase = 0
    for step in range(steps):
        last = stage
        phase = gl.where(stage == STAGES - 1, phase ^ 1, phase)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        parity = gl.where(step + 1 < steps, phase, phase ^ 1)  # behind the last step, the phase that is complete
        arrived(base + A_FULL + 8 * stage + 0 * t, parity)
        arrived(base + B_FULL + 8 * stage + 0 * t, parity)
        for depth in range(TURN, BK + TURN, TURN):
            for k in gl.static_range(TURN):
                if k + 1 == TURN:  # behind the last step something is read, and not used
                    from_a = gl.where(depth < BK, a_at + last * A_BYTES ^ depth * 4, a_at + stage * A_BYTES)  # the swizzle
                    from_b = gl.where(depth < BK, from_b + TURN * BN * 4, b_at + stage * B_BYTES)
                next_of_b = columns_at(from_b, (k + 1) % TURN * BN * 4, ACROSS * 16, COLUMNS)
                next_of_a = ()
                added = ()
                for r in gl.static_range(ROWS):
                    found = row_product(sums[r], of_a[r], of_b, from_a ^ (k + 1) % TURN * 4, r % 2, r * DOWN * BK * 4, COLUMNS)
                    added += (found[:COLUMNS],)  # type: ignore[assignment]
                    next_of_a += (found[COLUMNS],)  # type: ignore[assignment]
                sums = added
                of_a = next_of_a
                of_b = next_of_b
        there = step + STAGES < steps
        first = ((t == 0) & there).to(gl.int32)
        expect(base + A_FULL + 8 * last + 0 * t, A_BYTES, first)
        expect(base + B_FULL + 8 * last + 0 * t, B_BYTES, first)
        BARRIER()  # everybody has left the stage
        tma.async_copy_global_to_shared(a, [row, (step + STAGES) * BK], a_full.index(last), a_smem.index(last), pred=there)
        tma.async_copy_global_to_shared(b, [(step + STAGES) * BK, column], b_full.index(last), b_smem.index(last), pred=there)

    as_it_is = gl.where(M < 0, 0, 0x3210)
    lanes_and_warps: gl.constexpr = bases(gl.num_warps())
    quad: gl.constexpr = gl.DistributedLinearLayout([[0, 1], [0, 2]], lanes_and_warps[0], lanes_and_warps[1], [], [THREADS, 4])
    m = row + gl.convert_layout(y, gl.SliceLayout(1, quad))
    n = column + (4 * gl.convert_layout(x, gl.SliceLayout(1, quad)))[:, None] + gl.arange(0, 4, gl.SliceLayout(0, quad))[None, :]
    at = out + (m.to(gl.int64)[:, None] * N + n)
    for r in gl.static_range(ROWS):
        for q in gl.static_range(COLUMNS // 4):
            s = sums[r][4 * q : 4 * q + 4]  # type: ignore[var-annotated]
            even = gl.join(apart(s[0], as_it_is), apart(s[2], as_it_is))
            four = gl.join(even, gl.join(apart(s[1], as_it_is), apart(s[3], as_it_is))).reshape([THREADS, 4])
            inside = (m + r * DOWN < M)[:, None] & (n + q * ACROSS * 4 < N)
            gl.store(at + (r * DOWN * N.to(gl.int64) + q * ACROSS * 4), gl.convert_layout(four, quad, assert_trivial=True), mask=inside)


def product(config: Config, dtype: str = "float32") -> Product:
    a, b = (gl.NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=32, rank=2) for width in (128, 0))
    maps = {"a": ("a", [config.BM, config.BK], a), "b": ("b", [config.BK, config.BN], b)}
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, "STAGES": config.stages}
    return Product(ffma_kernel, maps, constants, {"num_warps": config.warps})


def build(a: Tensor, b: Tensor, out: Tensor, config: Config) -> Bind:
    return descriptors.build(product(config), (config.tiles(a.shape[0], b.shape[1]), 1, 1), a, b, out)
