"""The kernel of cluster.py in Gluon; what Triton cannot express is PTX.

Elements are processed as 32-bit words: one float32, or two of 16 bits, kept packed. Arithmetic on words is PTX. `UNPACKED`, for the sum,
and `AGAIN`, for the result, unpack a word by different instructions. With the same ones the compiler would merge them and keep the floats
in between, in twice the registers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from opwise.backends.triton_jit.common.ptx import BARRIER
from opwise.backends.triton_jit.softmax.math import LOG2_E

# {0}: from x - shift to 2^30 e^(x - shift). The factor cancels in the division by the sum. It keeps results that are subnormal in float32
# above 2^-126, below which the fast exponential (ex2.approx.ftz) flushes to 0.
POWER = "fma.rn.f32 {0}, {0}, 0f3FB8AA3B, 0f41F00000; ex2.approx.ftz.f32 {0}, {0};"
NEGATED = POWER.replace("0f3F", "0fBF")
FLOATS = ".reg .b32 u, v; .reg .f32 a, b; .reg .b16 low, high;"
UNPACKED = {
    "bfloat16": "shl.b32 u, $1, 16; and.b32 v, $1, 0xffff0000; mov.b32 a, u; mov.b32 b, v;",
    "float16": "mov.b32 {low, high}, $1; cvt.f32.f16 a, low; cvt.f32.f16 b, high;",
}
AGAIN = {  # powers of a word less shift $2; float16 is negated first, to differ from UNPACKED
    "bfloat16": "prmt.b32 u, $1, 0, 0x1044; prmt.b32 v, $1, 0, 0x3244; mov.b32 a, u; mov.b32 b, v; sub.f32 a, a, $2; sub.f32 b, b, $2;"
    + POWER.format("a") + POWER.format("b"),
    "float16": "neg.f16x2 u, $1; mov.b32 {low, high}, u; cvt.f32.f16 a, low; cvt.f32.f16 b, high; add.f32 a, a, $2; add.f32 b, b, $2;"
    + NEGATED.format("a") + NEGATED.format("b"),
}  # fmt: skip


def steps(dtype: str) -> dict[str, str | int]:
    """PTX constexprs of `cluster_kernel`. ADD: $3 plus the powers of word $1 less shift $2. GREATER: the elementwise maximum of two words.
    MOST: the maximum of a word's elements. WRITE: a word of results from word $1, shift $2, 1 / sum $3. LOWEST: a word of -inf."""
    if dtype == "float32":
        power = f"{FLOATS} mov.b32 a, $1; sub.f32 a, a, $2; {POWER.format('a')}"
        return {
            "ADD": f"{{ {power} add.f32 $0, $3, a; }}",
            "GREATER": "{ .reg .f32 a, b; mov.b32 a, $1; mov.b32 b, $2; max.f32 a, a, b; mov.b32 $0, a; }",
            "MOST": "mov.b32 $0, $1;", "WRITE": f"{{ {power} mul.f32 a, a, $3; mov.b32 $0, a; }}", "LOWEST": 0xFF800000 - 2**32,
        }  # fmt: skip
    kind = {"bfloat16": "bf16x2", "float16": "f16x2"}[dtype]
    powers = f"sub.f32 a, a, $2; sub.f32 b, b, $2; {POWER.format('a')} {POWER.format('b')}"
    return {
        "ADD": f"{{ {FLOATS} {UNPACKED[dtype]} {powers} add.f32 a, a, b; add.f32 $0, $3, a; }}",
        "GREATER": f"max.{kind} $0, $1, $2;", "MOST": f"{{ {FLOATS} {UNPACKED[dtype]} max.f32 $0, a, b; }}",
        "WRITE": f"{{ {FLOATS} {AGAIN[dtype]} mul.f32 a, a, $3; mul.f32 b, b, $3; cvt.rn.{kind}.f32 $0, b, a; }}",
        "LOWEST": (0xFF80FF80 if dtype == "bfloat16" else 0xFC00FC00) - 2**32,
    }  # fmt: skip


# Shared memory that PTX declares and Triton does not know of, at the same address in each block: 16 pairs, then an mbarrier.
PAIRS = gl.constexpr("{ .shared .align 128 .b8 of_blocks[256]; mov.u32 $0, of_blocks; }")
# The mbarrier expects a pair of each block; $2: blocks. A block must have started before others may write to its shared memory.
BEGIN = gl.constexpr("""{ .reg .pred first; .reg .b32 t, bell, bytes; mov.u32 t, %tid.x; setp.eq.u32 first, t, 0;
    add.u32 bell, $1, 128; mul.lo.u32 bytes, $2, 8;
    @first mbarrier.init.shared::cta.b64 [bell], 1;
    @first fence.mbarrier_init.release.cluster;
    @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bell], bytes;
    bar.warp.sync 0xffffffff; barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, $1; }""")
# Thread i sends its block's maximum $2 and sum $3 to block i; then all threads wait for the pairs of all blocks. $1: the pairs' address,
# $4: the block's rank, $5: blocks. No block writes to another's shared memory after that, so each may exit at any time.
EXCHANGE = gl.constexpr("""{ .reg .pred few, there; .reg .b32 t, mine, bell, place, ring; mov.u32 t, %tid.x; setp.lt.u32 few, t, $5;
    mad.lo.u32 mine, $4, 8, $1; add.u32 bell, $1, 128;
    @few mapa.shared::cluster.u32 place, mine, t;
    @few mapa.shared::cluster.u32 ring, bell, t;
    @few st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [place], {$2, $3}, [ring];
    again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [bell], 0; @!there bra again;
    bar.warp.sync 0xffffffff; mov.b32 $0, $1; }""")
# Each warp reduces the pairs of at most 16 blocks to the row's shift and sum. Lanes 0 to 15 do not read lanes 16 to 31; lane 0 broadcasts.
FROM_LANE = "mov.b32 i, {0}; shfl.sync.{1} i, i, {2}, 31, 0xffffffff; mov.b32 o, i; "
OVER_WARP = "".join(FROM_LANE.format("{0}", "bfly.b32", lanes) + "{1}.f32 {0}, {0}, o; " for lanes in (8, 4, 2, 1)) + FROM_LANE.format(
    "{0}", "idx.b32", 0
)
HEAR = gl.constexpr(
    "{ .reg .pred few, none; .reg .b32 t, at, i; .reg .f32 m, s, o, w, z; mov.u32 t, %laneid; setp.lt.u32 few, t, $3;"
    "mad.lo.u32 at, t, 8, $2;"
    "mov.f32 m, 0fFF800000; mov.f32 s, 0f00000000; @few ld.shared.v2.f32 {m, s}, [at]; mov.f32 z, m;"
    + OVER_WARP.format("z", "max")
    + "mov.f32 z, o; setp.eq.f32 none, z, 0fFF800000; @none mov.f32 z, 0f00000000;"
    "sub.f32 w, m, z; mul.f32 w, w, 0f3FB8AA3B; ex2.approx.ftz.f32 w, w; mul.f32 s, s, w;"
    + OVER_WARP.format("s", "add")
    + "mov.f32 $0, z; mov.f32 $1, o; }"
)


@gluon.jit
def finite(maximum):  # type: ignore[no-untyped-def]
    """0 for -inf, else the maximum: a part of -inf only would compute -inf - -inf. A row of -inf still gives 0 / 0 = nan, as required."""
    return gl.where(maximum == float("-inf"), 0.0, maximum)


@gluon.jit
def weight(maximum, shift):  # type: ignore[no-untyped-def]
    """e^(maximum - shift): rescales a sum from `maximum` to `shift`, which is not smaller. Below 2^-126 it is flushed to 0."""
    exponent = (maximum - shift) * LOG2_E
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def said(TEXT: gl.constexpr, x):  # type: ignore[no-untyped-def]
    """All threads execute the PTX in TEXT; it is volatile, so it stays in program order. Returns x, any int."""
    return gl.inline_asm_elementwise(TEXT + " mov.b32 $0, $1;", "=r,r,~{memory}", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pause(cycles):  # type: ignore[no-untyped-def]
    gl.inline_asm_elementwise(
        """{ .reg .b32 began, now; .reg .pred more; mov.u32 began, %clock;
        again: mov.u32 now, %clock; sub.u32 now, now, began; setp.lt.u32 more, now, $1; @!more bra over;
        nanosleep.u32 64; bra again; over: bar.warp.sync 0xffffffff; mov.b32 $0, $1; }""",
        "=r,r", [cycles], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def add(word, shift, total, ADD: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(ADD, "=f,r,f,f", [word, shift, total], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def greater(a, b, GREATER: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(GREATER, "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def greatest_of(words, MOST: gl.constexpr):  # type: ignore[no-untyped-def]
    """Each thread's maximum, float32, of its four words."""
    return gl.max(gl.inline_asm_elementwise(MOST, "=f,r", [words], dtype=gl.float32, is_pure=True, pack=1), axis=1)


@gluon.jit
def result(word, shift, scale, WRITE: gl.constexpr):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(WRITE, "=r,r,f,f", [word, shift, scale], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def piece_of(room, at, left, layout: gl.constexpr, LOWEST: gl.constexpr, WHOLE: gl.constexpr):  # type: ignore[no-untyped-def]
    words = room.load(layout)
    if not WHOLE:
        words = gl.where(at < left, words, gl.full_like(words, LOWEST))
    return words


@gluon.jit
def of_block(maxima, sums, WARPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The block's maximum and sum, from its threads', [threads]. Each warp's pair is packed in 64 bits: one exchange, so one barrier."""
    maxima = maxima.reshape([WARPS, 32])
    of_warp = gl.max(maxima, axis=1)
    sums = gl.sum(sums.reshape([WARPS, 32]) * weight(maxima, gl.expand_dims(finite(of_warp), 1)), axis=1)
    pair = gl.inline_asm_elementwise("mov.b64 $0, {$1, $2};", "=l,f,f", [of_warp, sums], dtype=gl.int64, is_pure=True, pack=1)
    pair = gl.convert_layout(pair, gl.BlockedLayout([1], [32], [WARPS], [0]))
    each, each_sum = gl.inline_asm_elementwise(
        "mov.b64 {$0, $1}, $2;", "=f,=f,l", [pair], dtype=(gl.float32, gl.float32), is_pure=True, pack=1
    )
    highest = gl.max(each, axis=0)
    return highest, gl.sum(each_sum * weight(each, finite(highest)), axis=0)


@gluon.jit(do_not_specialize=["wave", "delay"])
def cluster_kernel(x, out, columns, part, wave, delay, BLOCKS: gl.constexpr, HELD: gl.constexpr, STAGED: gl.constexpr, FULL: gl.constexpr,
                   PHASES: gl.constexpr, RATIO: gl.constexpr, ADD: gl.constexpr, GREATER: gl.constexpr, MOST: gl.constexpr,
                   WRITE: gl.constexpr, LOWEST: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """softmax of rows of 32-bit words of RATIO elements, a cluster of BLOCKS programs a row. A program has `part` words, the last the rest.

    HELD, STAGED: 16-byte pieces of a thread in registers and in shared memory. The first FULL pieces need no mask in any program.
    The first `wave` programs start in PHASES phases: phase i begins i `delay` clock cycles later; of 2 phases, half of `delay`.
    """
    WARPS: gl.constexpr = gl.num_warps()
    PIECE: gl.constexpr = WARPS * 128
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    pairs = part
    if BLOCKS > 1:
        pairs = gl.inline_asm_elementwise(PAIRS, "=r,r", [part], dtype=gl.int32, is_pure=False, pack=1)
        gl.inline_asm_elementwise(BEGIN, "=r,r,r,~{memory}", [pairs, part * 0 + BLOCKS], dtype=gl.int32, is_pure=False, pack=1)
    row = gl.program_id(0) // BLOCKS
    rank = gl.program_id(0) % BLOCKS
    if gl.program_id(0) < wave:
        if PHASES == 2:  # delays every other cluster by half the time of its loads
            pause(row % 2 * delay // 2)
        else:
            pause(row * BLOCKS * PHASES // wave * delay)
    words = columns // RATIO
    left = gl.minimum(part, words - rank * part)
    first = row.to(gl.int64) * words + rank * part
    source = x + first
    target = out + first
    at = gl.arange(0, WARPS * 32, gl.SliceLayout(1, layout))[:, None] * 4 + gl.arange(0, 4, gl.SliceLayout(0, layout))[None, :]
    held = ()  # one tensor a piece
    for i in gl.static_range(HELD):
        if i < FULL:
            held += (gl.load(source + i * PIECE + at),)  # type: ignore[assignment]
        else:
            held += (gl.load(source + i * PIECE + at, mask=at < left - i * PIECE, other=LOWEST),)  # type: ignore[assignment]
    rooms = ()  # one buffer a piece: the compiler would put barriers between copies to the same buffer
    for i in gl.static_range(STAGED):
        rooms += (gl.allocate_shared_memory(gl.int32, [WARPS * 32, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])),)  # type: ignore[assignment]
        from_ = source + (HELD + i) * PIECE + at
        if HELD + i < FULL:
            async_copy.async_copy_global_to_shared(rooms[i], from_)
        else:
            async_copy.async_copy_global_to_shared(rooms[i], from_, mask=at < left - (HELD + i) * PIECE)
    async_copy.commit_group()
    # Both also keep the compiler from waiting for the loads to registers before all copies are issued.
    if BLOCKS > 1:
        said("barrier.cluster.wait.acquire.aligned;", part)
    else:
        BARRIER()

    # Each thread's maximum and sum: of registers first, while the copies to shared memory are in flight.
    most = held[0]  # type: ignore[misc]
    for i in gl.static_range(1, HELD):
        most = greater(most, held[i], GREATER)
    maximum = greatest_of(most, MOST)
    shift = gl.expand_dims(finite(maximum), 1)
    sums = gl.full_like(at, 0, dtype=gl.float32)
    for i in gl.static_range(HELD):
        sums = add(held[i], shift, sums, ADD)
    async_copy.wait_group(0)
    for i in gl.static_range(STAGED):
        most = greater(most, piece_of(rooms[i], at, left - (HELD + i) * PIECE, layout, LOWEST, HELD + i < FULL), GREATER)
    if STAGED > 0:
        said("bar.warp.sync 0xffffffff;", part)  # forces the re-read below; kept words would spill
        further = greatest_of(most, MOST)
        shift = gl.expand_dims(finite(further), 1)
        sums = sums * weight(gl.expand_dims(maximum, 1), shift)
        maximum = further
    for i in gl.static_range(STAGED):
        sums = add(piece_of(rooms[i], at, left - (HELD + i) * PIECE, layout, LOWEST, HELD + i < FULL), shift, sums, ADD)

    highest, total = of_block(maximum, gl.sum(sums, axis=1), WARPS)
    lowered = finite(highest)
    if BLOCKS > 1:
        many = part * 0 + BLOCKS
        gl.inline_asm_elementwise(
            EXCHANGE, "=r,r,f,f,r,r,~{memory}", [pairs, highest, total, rank, many], dtype=gl.int32, is_pure=False, pack=1
        )
        lowered, total = gl.inline_asm_elementwise(
            HEAR, "=f,=f,r,r,~{memory}", [pairs, many], dtype=(gl.float32, gl.float32), is_pure=False, pack=1
        )
    scale = 1.0 / total
    for i in gl.static_range(HELD):
        if i < FULL:
            gl.store(target + i * PIECE + at, result(held[i], lowered, scale, WRITE))
        else:
            gl.store(target + i * PIECE + at, result(held[i], lowered, scale, WRITE), mask=at < left - i * PIECE)
    for i in gl.static_range(HELD, HELD + STAGED):
        word = result(piece_of(rooms[i - HELD], at, left - i * PIECE, layout, LOWEST, i < FULL), lowered, scale, WRITE)
        if i < FULL:
            gl.store(target + i * PIECE + at, word)
        else:
            gl.store(target + i * PIECE + at, word, mask=at < left - i * PIECE)
