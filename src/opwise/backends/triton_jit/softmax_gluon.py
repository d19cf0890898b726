"""The kernel of softmax_staged.py, which says what it does and why nobody waits for ever, in Gluon."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from opwise.backends.triton_jit.softmax_math import LOG2_E

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # its name before and from Triton 3.7 on
BYTES_A_THREAD = gl.constexpr(16)


@gluon.jit
def power(x, shift, RAISED: gl.constexpr):  # type: ignore[no-untyped-def]
    """2^RAISED e^(x - shift). 16-bit results are made with ex2.approx.ftz, a quarter of the instructions of the one that keeps subnormals;
    what it flushes, under 2^-126, is under half of float16's least subnormal, and of bfloat16's once it is raised by 2^8."""
    if RAISED < 0:
        exponent = (x - shift) * LOG2_E
        result = gl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)
    else:
        exponent = gl.fma(x - shift, gl.full_like(x, LOG2_E), gl.full_like(x, RAISED))
        result = gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)
    return result


@gluon.jit
def finite(maximum):  # type: ignore[no-untyped-def]
    """A part of -inf alone must not compute -inf - -inf; a whole row of them becomes 0 / 0 = nan, as it should."""
    return gl.where(maximum == float("-inf"), 0.0, maximum)


@gluon.jit
def larger(x, y):  # type: ignore[no-untyped-def]
    """The maximum, which drops nan; of 16 bits two at a time, as they are."""
    if x.dtype == gl.bfloat16:
        result = gl.inline_asm_elementwise("max.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.bfloat16, is_pure=True, pack=2)
    elif x.dtype == gl.float16:
        result = gl.inline_asm_elementwise("max.f16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.float16, is_pure=True, pack=2)
    else:
        result = gl.maximum(x, y)
    return result


@gluon.jit
def wide(x):  # type: ignore[no-untyped-def]
    """To float32, exactly; bfloat16 by one instruction each, where the compiler takes three for two."""
    if x.dtype == gl.bfloat16:
        result = gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2
        )
    else:
        result = x.to(gl.float32)
    return result


@gluon.jit
def wait_until(counter, count):  # type: ignore[no-untyped-def]
    """Until `counter` has reached `count`, and what was written before it did can be read."""
    while gl.atomic_add(counter, 0, sem="acquire") < count:
        pass


@gluon.jit
def ask(room, x, item, items, columns, part, lane, PARTS: gl.constexpr, CHUNK: gl.constexpr, i: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    """Starts the copy of a part's i-th chunk; of none, where there is no such part. A group of copies of its own either way."""
    first = item % PARTS * part
    at = lane + i * CHUNK
    there = gl.full_like(lane, 0) + item < items
    if not EVEN:
        there = there & (at < gl.minimum(part, columns - first))
    source = x + ((item // PARTS).to(gl.int64) * columns + first)
    async_copy.async_copy_global_to_shared(room.index(i), source + at, mask=there)
    async_copy.commit_group()


@gluon.jit
def chunk_of(room, left, lane, layout: gl.constexpr, CHUNK: gl.constexpr, i: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    value = room.index(i).load(layout)
    if not EVEN:
        value = gl.where(lane + i * CHUNK < left, value, gl.full_like(value, float("-inf")))
    return value


@gluon.jit
def leave(counters, RESET: gl.constexpr, SLOTS: gl.constexpr, few: gl.constexpr):  # type: ignore[no-untyped-def]
    """A program that leaves uses no counter any more: the last one to leave sets all of them back."""
    if gl.atomic_add(counters + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        at = gl.arange(0, RESET, few)
        gl.store(counters + at, gl.full_like(at, 0), mask=at < 4 + 2 * SLOTS)


@gluon.jit
def staged_kernel(x, out, counters, pairs, rows, columns, part, PARTS: gl.constexpr, PADDED: gl.constexpr, CHUNKS: gl.constexpr,
                  CHUNK: gl.constexpr, SLOTS: gl.constexpr, RESET: gl.constexpr, EVEN: gl.constexpr, RAISED: gl.constexpr,
                  RESIDENT: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Parts of rows, each `part` columns or what is left, in CHUNKS times CHUNK. Reads and writes every element once.

    counters: int32. pairs: float32. PADDED, RESET: powers of two from PARTS and from the number of counters on. EVEN: no part is short.
    RESIDENT: a program goes on to further parts; else there are rows x PARTS programs. RAISED: see `power`; negative keeps subnormals.
    """
    VECTOR: gl.constexpr = BYTES_A_THREAD // (x.dtype.element_ty.primitive_bitwidth // 8)
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    few: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    room = gl.allocate_shared_memory(x.dtype.element_ty, [CHUNKS, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    lane = gl.arange(0, CHUNK, layout)
    which = gl.arange(0, PADDED, few)
    items = rows * PARTS
    item = gl.program_id(0)
    if PARTS > 1:
        item = gl.atomic_add(counters, 1, sem="relaxed")
    for i in gl.static_range(CHUNKS):
        ask(room, x, item, items, columns, part, lane, PARTS, CHUNK, i, EVEN)
    going = item < items
    while going:
        row = item // PARTS
        p = item % PARTS
        slot = row % SLOTS
        turn = row // SLOTS
        told = counters + 4 + slot
        read = told + SLOTS
        maxima = pairs + slot * PARTS
        sums = maxima + SLOTS * PARTS
        left = gl.minimum(part, columns - p * part)
        async_copy.wait_group(CHUNKS - 1)
        most = chunk_of(room, left, lane, layout, CHUNK, 0, EVEN)
        for i in gl.static_range(1, CHUNKS):
            async_copy.wait_group(CHUNKS - 1 - i)
            most = larger(most, chunk_of(room, left, lane, layout, CHUNK, i, EVEN))
        maximum = gl.max(wide(most), axis=0)
        shift = finite(maximum)
        sum_ = power(wide(chunk_of(room, left, lane, layout, CHUNK, 0, EVEN)), shift, RAISED)
        for i in gl.static_range(1, CHUNKS):
            sum_ += power(wide(chunk_of(room, left, lane, layout, CHUNK, i, EVEN)), shift, RAISED)
        total = gl.sum(sum_, axis=0)
        if PARTS > 1:
            wait_until(read, turn * PARTS)
            # Store, then count, all by the same thread: the atomic releases the stores.
            gl.store(maxima + p, maximum)
            gl.store(sums + p, total)
            gl.atomic_add(told, 1, sem="release")
            wait_until(told, (turn + 1) * PARTS)
            # .cg reads L2, where the other programs' stores are: an L1 line could be stale.
            each = gl.load(maxima + which, mask=which < PARTS, other=float("-inf"), cache_modifier=".cg")
            parts_sums = gl.load(sums + which, mask=which < PARTS, other=0.0, cache_modifier=".cg")
            largest = gl.max(each, axis=0)
            shift = finite(largest)
            total = gl.sum(parts_sums * power(each, shift, -1), axis=0)
            BARRIER()  # all threads have read before one says so
            gl.atomic_add(read, 1, sem="release")
        following = items
        if RESIDENT:
            following = gl.atomic_add(counters, 1, sem="relaxed") if PARTS > 1 else item + gl.num_programs(0)
        inverse = 1.0 / total
        target = out + (row.to(gl.int64) * columns + p * part)
        for i in gl.static_range(CHUNKS):
            value = wide(chunk_of(room, left, lane, layout, CHUNK, i, EVEN))
            if RESIDENT:
                ask(room, x, following, items, columns, part, lane, PARTS, CHUNK, i, EVEN)
            result = (power(value, shift, RAISED) * inverse).to(out.dtype.element_ty)
            if EVEN:
                gl.store(target + lane + i * CHUNK, result)
            else:
                gl.store(target + lane + i * CHUNK, result, mask=lane + i * CHUNK < left)
        item = following
        going = item < items
    if PARTS > 1:
        leave(counters, RESET, SLOTS, few)
