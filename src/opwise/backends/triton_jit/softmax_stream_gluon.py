"""The kernel of softmax_stream.py, which says what it does and why nobody waits for ever, in Gluon."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from opwise.backends.triton_jit.softmax_gluon import BYTES_A_THREAD, finite, larger, power, wide
from opwise.backends.triton_jit.softmax_math import LOG2_E

# A pair is two words of 64 bits, (maximum, tag) and (sum, tag): each is written and read at once, so no fence orders one after the other.
TELL = gl.constexpr("""{ .reg .pred first; .reg .b64 maximum, sum; setp.eq.s32 first, $1, 0;
    mov.b64 maximum, {$3, $5}; mov.b64 sum, {$4, $5};
    @first st.relaxed.gpu.global.v2.b64 [$2], {maximum, sum}; mov.b32 $0, 0; }""")
LOOK = gl.constexpr("""{ .reg .b64 maximum, sum; ld.relaxed.gpu.global.v2.b64 {maximum, sum}, [$4];
    mov.b64 {$0, $1}, maximum; mov.b64 {$2, $3}, sum; }""")
# What was seen, or what is seen once both tags have reached $7.
AWAIT = gl.constexpr("""{ .reg .pred there; .reg .b32 m, mtag, s, stag, least; .reg .b64 maximum, sum;
    mov.b32 m, $2; mov.b32 mtag, $3; mov.b32 s, $4; mov.b32 stag, $5;
    again: min.s32 least, mtag, stag; setp.ge.s32 there, least, $7; @there bra seen;
    ld.relaxed.gpu.global.v2.b64 {maximum, sum}, [$6]; mov.b64 {m, mtag}, maximum; mov.b64 {s, stag}, sum; bra again;
    seen: mov.b32 $0, m; mov.b32 $1, s; }""")


@gluon.jit
def weight(maximum, shift):  # type: ignore[no-untyped-def]
    """By what a sum beside `maximum` counts beside the larger `shift`. What is flushed, under 2^-126, is of no weight beside 1."""
    exponent = (maximum - shift) * LOG2_E
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def of_block(maxima, sums, told, told_sums, WARPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Two rows' maxima and sums of each warp, [warps], as the block's: all through shared memory at once, for one barrier."""
    told = gl.convert_layout(told, maxima.type.layout)
    told_sums = gl.convert_layout(told_sums, maxima.type.layout)
    known = gl.join(gl.join(maxima, told), gl.join(sums, told_sums))
    every_warp: gl.constexpr = gl.BlockedLayout([1, 2, 2], [32, 1, 1], [WARPS, 1, 1], [2, 1, 0])
    each, each_sum = gl.split(gl.convert_layout(known, every_warp))
    largest = gl.max(each, axis=0)
    total = gl.sum(each_sum * weight(each, gl.expand_dims(finite(largest), 0)), axis=0)
    first, second = gl.split(largest)
    first_sum, second_sum = gl.split(total)
    return first, first_sum, second, second_sum


@gluon.jit
def ask(room, slot, source, lane, left, there, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    """Starts the copy of a chunk, of none where there is no such row. A group of copies of its own either way."""
    wanted = gl.full_like(lane, 0) + there > 0
    if not EVEN:
        wanted = wanted & (lane < left)
    async_copy.async_copy_global_to_shared(room.index(slot), source + lane, mask=wanted)
    async_copy.commit_group()


@gluon.jit
def vector_of(place, thread, left, layout: gl.constexpr, v: gl.constexpr, STEP: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    value = place.slice(v * STEP, STEP).load(layout)
    if not EVEN:
        value = gl.where(thread + v * STEP < left, value, gl.full_like(value, float("-inf")))
    return value


@gluon.jit
def chunk_pair(place, at, left, layout: gl.constexpr, VECTORS: gl.constexpr, STEP: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    """Each warp's maximum and sum of its own share of a chunk: [warps], [warps]. No warp waits for another.

    What `power` flushes is of no weight beside the maximum's own 1.
    """
    WARPS: gl.constexpr = gl.num_warps()
    first = vector_of(place, at, left, layout, 0, STEP, EVEN)
    most = first
    for v in gl.static_range(1, VECTORS):
        most = larger(most, vector_of(place, at, left, layout, v, STEP, EVEN))
    maximum = gl.max(wide(most).reshape([WARPS, STEP // WARPS]), axis=1)
    shift = gl.expand_dims(finite(maximum), 1)
    total = power(wide(first).reshape([WARPS, STEP // WARPS]), shift, 0)
    for v in gl.static_range(1, VECTORS):
        value = vector_of(place, at, left, layout, v, STEP, EVEN)
        total += power(wide(value).reshape([WARPS, STEP // WARPS]), shift, 0)
    return maximum, gl.sum(total, axis=1)


@gluon.jit
def look(from_):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(LOOK, "=r,=r,=r,=r,l", [from_], dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1)


@gluon.jit
def told_pair(m, mtag, s, stag, from_, thread, tag, PARTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Each warp's maximum and sum of what its threads were told, once it is there: [warps], [warps]."""
    WARPS: gl.constexpr = gl.num_warps()
    awaited = gl.full_like(thread, 0) + tag
    m, s = gl.inline_asm_elementwise(
        AWAIT, "=r,=r,r,r,r,r,l,r", [m, mtag, s, stag, from_, awaited], dtype=(gl.int32, gl.int32), is_pure=False, pack=1
    )
    m = gl.where(thread < PARTS, m.to(gl.float32, bitcast=True), float("-inf")).reshape([WARPS, 32])
    s = gl.where(thread < PARTS, s.to(gl.float32, bitcast=True), 0.0).reshape([WARPS, 32])
    maximum = gl.max(m, axis=1)
    return maximum, gl.sum(s * weight(m, gl.expand_dims(finite(maximum), 1)), axis=1)


@gluon.jit
def tell(to, thread, maximum, sum_, tag):  # type: ignore[no-untyped-def]
    none = gl.full_like(thread, 0)
    m = none + maximum.to(gl.int32, bitcast=True)
    s = none + sum_.to(gl.int32, bitcast=True)
    gl.inline_asm_elementwise(TELL, "=r,r,l,r,r,r", [thread, to + none, m, s, none + tag], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit(do_not_specialize=["groups"])  # how many run at once is known once it is compiled
def stream_kernel(x, out, words, rows, columns, part, groups, PARTS: gl.constexpr, VECTORS: gl.constexpr, SLOTS: gl.constexpr,
                  LATER: gl.constexpr, RING: gl.constexpr, EVEN: gl.constexpr, RAISED: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Chunks of rows, each `part` columns or what is left, in VECTORS x 16 bytes a thread. Reads and writes every element once.

    words: int32, the first of which counts the programs that have left; from the fifth on 4 a pair, of groups x RING x PARTS pairs. It
    takes groups x PARTS programs. SLOTS: chunks in shared memory. LATER: turns from a row's sum to its result. EVEN: no part is short.
    RAISED: see `power`.
    """
    EARLY: gl.constexpr = LATER > 1  # what was told of a row is asked for a turn ahead: by then it is there
    VECTOR: gl.constexpr = BYTES_A_THREAD // (x.dtype.element_ty.primitive_bitwidth // 8)
    THREADS: gl.constexpr = gl.num_warps() * 32
    STEP: gl.constexpr = THREADS * VECTOR
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    single: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    room = gl.allocate_shared_memory(x.dtype.element_ty, [SLOTS, VECTORS * STEP], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    lane = gl.arange(0, VECTORS * STEP, layout)
    at = gl.arange(0, STEP, layout)
    thread = gl.arange(0, THREADS, single)
    group = gl.program_id(0) // PARTS
    p = gl.program_id(0) % PARTS
    mine = (rows - group + groups - 1) // groups
    left = gl.minimum(part, columns - p * part)
    stride = groups.to(gl.int64) * columns
    start = group.to(gl.int64) * columns + p * part
    pairs = words + 4 + group * (RING * PARTS * 4)
    whose = gl.minimum(thread, PARTS - 1) * 4

    for i in gl.static_range(SLOTS - LATER):
        ask(room, i, x + (start + i * stride), lane, left, (i < mine).to(gl.int32), EVEN)
    m, mtag, s, stag = look(pairs + (RING - LATER) * (PARTS * 4) + whose)
    for i in range(mine + LATER):
        # Row i's sum, and the result of row j. A tag is the row's number from 1 on, so that before row 0 nobody waits.
        j = i - LATER
        from_ = pairs + (j + RING) % RING * (PARTS * 4) + whose
        if not EARLY:
            m, mtag, s, stag = look(from_)
        async_copy.wait_group(SLOTS - LATER - 1)
        # Where it stands first, its shuffles are done beside the chunk's sums.
        if EARLY:
            told, told_sums = told_pair(m, mtag, s, stag, from_, thread, j + 1, PARTS)
        maxima, sums = chunk_pair(room.index(i % SLOTS), at, left, layout, VECTORS, STEP, EVEN)
        if not EARLY:
            told, told_sums = told_pair(m, mtag, s, stag, from_, thread, j + 1, PARTS)
        done = room.index((j + SLOTS) % SLOTS).load(layout)
        maximum, sum_, largest, total = of_block(maxima, sums, told, told_sums, gl.num_warps())
        if i < mine:
            tell(pairs + i % RING * (PARTS * 4) + p * 4, thread, maximum, sum_, i + 1)
        # The reduction's barriers have seen every thread read row j's chunk: its place is free.
        following = i + (SLOTS - LATER)
        ask(room, following % SLOTS, x + (start + following * stride), lane, left, (following < mine).to(gl.int32), EVEN)
        if EARLY:
            m, mtag, s, stag = look(pairs + (j + 1 + RING) % RING * (PARTS * 4) + whose)
        if j >= 0:
            shift = finite(largest)
            inverse = 1.0 / total
            if RAISED > 0:
                inverse = inverse * 0.5**RAISED
            target = out + (start + j * stride)
            result = (power(wide(done), shift, RAISED) * inverse).to(out.dtype.element_ty)
            if EVEN:
                gl.store(target + lane, result)
            else:
                gl.store(target + lane, result, mask=lane < left)
    async_copy.wait_group(0)  # of no rows, but they write zeros all the same, where the words below pass through shared memory
    # What a program's threads were told they have used in the last turn's reduction: who leaves uses no word any more.
    if gl.atomic_add(words, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        four: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
        used = 4 + groups * (RING * PARTS * 4)
        for first in range(0, used, 4 * THREADS):
            word = first + gl.arange(0, 4 * THREADS, four)
            gl.store(words + word, gl.full_like(word, 0), mask=word < used)
