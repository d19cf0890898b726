"""The kernel of stream.py in Gluon; stream.py describes the algorithm and why there is no deadlock. What a single warp does is PTX.

Gluon assumes that all warps of a program execute the same code. Here warps branch on their index, which Triton believes to be the same in
all warps. Within a branch all operations are elementwise, on tensors of one element a thread. Data that warps share is read and written in
PTX, which Triton does not analyse, so it inserts no barriers.

Shared memory, from its base: SLOTS stages ("places") of PIECES x 512 bytes for each computing warp; then, 8 bytes each,

    full     mbarrier: a stage has been filled                          one a warp and stage
    told     mbarrier: all warps have written a row's partial pair      one a row, in a ring of ROWS
    known    mbarrier: a row's maximum and sum are complete             one a row, in a ring of ROWS
    of_rows  a row's maximum and 1 / sum                                one a row, in a ring of ROWS
    of_warps maximum and sum of a warp's part of a row                  one a row of the ring and warp
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opwise.backends.triton_jit.common.ptx import BARRIER, arrived, shared_base, warp_of
from opwise.backends.triton_jit.softmax.cluster_kernel import add, finite, greater, result, said, weight
from opwise.backends.triton_jit.softmax.stream_ptx import (
    ASK,
    BEGIN,
    CLEAR,
    GET,
    GET_SOME,
    LAY,
    LEAVE,
    OVER_WARP,
    PICK,
    PUT,
    PUT_SOME,
    TELL,
    hearing,
    hearing_operands,
    ints,
)


@gluon.jit
def ask(row, x, stride, at, full, lane, size, PLACE: gl.constexpr, SLOTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Starts the bulk copy of this warp's part, `size` bytes, of its group's row number `row` to stage row % SLOTS."""
    slot = row % SLOTS
    none = gl.full_like(lane, 0)
    given = [gl.where(lane == 0, size, 0), at + slot * PLACE + none, x + row * stride + none, full + slot * 8 + none]
    gl.inline_asm_elementwise(ASK, "=r,r,r,l,r,~{memory}", given, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def words_at(at, lane, count, PIECES: gl.constexpr, EVEN: gl.constexpr, LOWEST: gl.constexpr):  # type: ignore[no-untyped-def]
    """Each thread's words of a stage, 4 PIECES tensors. LOWEST where a lane has no piece (not EVEN)."""
    got = ()
    for k in gl.static_range(PIECES):
        from_ = at + (lane * 16 + k * 512)
        if EVEN:
            got += gl.inline_asm_elementwise(GET, "=r,=r,=r,=r,r,~{memory}", [from_], dtype=(gl.int32,) * 4, is_pure=False, pack=1)  # type: ignore[assignment]
        else:
            there = (lane + k * 32 < count).to(gl.int32)
            given = [from_, there, gl.full_like(lane, LOWEST)]
            got += gl.inline_asm_elementwise(GET_SOME, "=r,=r,=r,=r,r,r,r,~{memory}", given, dtype=(gl.int32,) * 4, is_pure=False, pack=1)  # type: ignore[assignment]
    return got


@gluon.jit
def put(to, got, first: gl.constexpr, shift, scale, there, WRITE: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    """Stores the results of a piece: of words first to first + 3 of `got`."""
    w = result(got[first], shift, scale, WRITE)
    x = result(got[first + 1], shift, scale, WRITE)
    y = result(got[first + 2], shift, scale, WRITE)
    z = result(got[first + 3], shift, scale, WRITE)
    if EVEN:
        gl.inline_asm_elementwise(PUT, "=r,l,r,r,r,r,~{memory}", [to, w, x, y, z], dtype=gl.int32, is_pure=False, pack=1)
    else:
        given = [to, w, x, y, z, there.to(gl.int32)]
        gl.inline_asm_elementwise(PUT_SOME, "=r,l,r,r,r,r,r,~{memory}", given, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def over_warp(maximum, sum_):  # type: ignore[no-untyped-def]
    return gl.inline_asm_elementwise(OVER_WARP, "=f,=f,f,f", [maximum, sum_], dtype=(gl.float32, gl.float32), is_pure=False, pack=1)


@gluon.jit
def lay(at, first, second, bell, lane):  # type: ignore[no-untyped-def]
    given = [gl.full_like(lane, 0) + at, first, second, gl.full_like(lane, 0) + bell, lane]
    gl.inline_asm_elementwise(LAY, "=r,r,f,f,r,r,~{memory}", given, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def pick(at, lane, lanes):  # type: ignore[no-untyped-def]
    none = gl.full_like(lane, 0)
    given = [none + at, lane, none + lanes]
    return gl.inline_asm_elementwise(PICK, "=f,=f,r,r,r,~{memory}", given, dtype=(gl.float32, gl.float32), is_pure=False, pack=1)


@gluon.jit
def part_pair(got, WORDS: gl.constexpr, ADD: gl.constexpr, GREATER: gl.constexpr, MOST: gl.constexpr):  # type: ignore[no-untyped-def]
    """The warp's maximum and sum of its part of a row."""
    most = got[0]
    for k in gl.static_range(1, WORDS):
        most = greater(most, got[k], GREATER)
    maximum = gl.inline_asm_elementwise(MOST, "=f,r", [most], dtype=gl.float32, is_pure=True, pack=1)
    shift = finite(maximum)
    sums = (gl.full_like(maximum, 0.0),) * 4  # four chains, to hide the additions' latency
    for k in gl.static_range(WORDS // 4):
        sums = (
            add(got[4 * k], shift, sums[0], ADD),
            add(got[4 * k + 1], shift, sums[1], ADD),
            add(got[4 * k + 2], shift, sums[2], ADD),
            add(got[4 * k + 3], shift, sums[3], ADD),
        )
    return over_warp(maximum, (sums[0] + sums[1]) + (sums[2] + sums[3]))


@gluon.jit
def heard(of_row, blocks, lane, tag, BATCH: gl.constexpr):  # type: ignore[no-untyped-def]
    """Waits for the pairs of all programs of the group, then returns the row's maximum and sum. tag: the group's row number + 1."""
    HEARING: gl.constexpr = hearing(BATCH)
    OPERANDS: gl.constexpr = hearing_operands(BATCH)
    given = ()
    for k in gl.static_range(BATCH):
        given += (of_row + gl.minimum(lane + 32 * k, blocks - 1) * 4,)  # type: ignore[assignment]
    given += (gl.full_like(lane, 0) + tag,)  # type: ignore[assignment]
    found = gl.inline_asm_elementwise(HEARING, OPERANDS, given, dtype=ints(2 * BATCH), is_pure=False, pack=1)
    said("bar.warp.sync 0xffffffff;", tag)
    highest = gl.full_like(lane, float("-inf"), dtype=gl.float32)
    for k in gl.static_range(BATCH):  # the last pair may occur twice, with no effect on a maximum
        highest = gl.maximum(highest, found[2 * k].to(gl.float32, bitcast=True))
    total = gl.full_like(highest, 0.0)
    for k in gl.static_range(BATCH):
        part = found[2 * k + 1].to(gl.float32, bitcast=True) * weight(found[2 * k].to(gl.float32, bitcast=True), finite(highest))
        total += gl.where(lane + 32 * k < blocks, part, 0.0)
    return over_warp(highest, total)


@gluon.jit
def compute(source, target, stride, turns, mine, full, told, known, of_rows, of_warps, count, lane, COMPUTING: gl.constexpr,
            PIECES: gl.constexpr, SLOTS: gl.constexpr, LAG: gl.constexpr, ROWS: gl.constexpr, AHEAD: gl.constexpr, EVEN: gl.constexpr,
            ADD: gl.constexpr, GREATER: gl.constexpr, MOST: gl.constexpr, WRITE: gl.constexpr, LOWEST: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A computing warp: its part, of `count` pieces, of each row of its group. source, target: for row 0. stride: words to the next."""
    PLACE: gl.constexpr = PIECES * 512
    ahead = gl.where(turns < 4 * SLOTS, SLOTS, AHEAD)
    for early in range(gl.minimum(ahead, turns)):
        ask(early, source, stride, mine, full, lane, count * 16, PLACE, SLOTS)
    for turn in range(turns + LAG):
        if turn < turns:
            slot = turn % SLOTS
            place = turn % ROWS
            # A warp without a part passes the wait: the phase before the first counts as complete.
            arrived(full + slot * 8, turn // SLOTS % 2 if EVEN else gl.where(count > 0, turn // SLOTS % 2, 1))
            if turn + ahead < gl.minimum(SLOTS, turns):
                ask(turn + ahead, source, stride, mine, full, lane, count * 16, PLACE, SLOTS)
            got = words_at(mine + slot * PLACE, lane, count, PIECES, EVEN, LOWEST)
            maximum, total = part_pair(got, PIECES * 4, ADD, GREATER, MOST)
            lay(of_warps + place * (COMPUTING * 8), maximum, total, told + place * 8, lane)
        if turn >= LAG:
            row = turn - LAG
            arrived(known + row % ROWS * 8, row // ROWS % 2)
            shift, scale = pick(of_rows + row % ROWS * 8, lane, 32)
            read = words_at(mine + row % SLOTS * PLACE, lane, count, PIECES, EVEN, LOWEST)
            to = target + row * stride
            for k in gl.static_range(PIECES):
                put(to + k * 128, read, 4 * k, shift, scale, lane + k * 32 < count, WRITE, EVEN)
            said("bar.warp.sync 0xffffffff;", turns)  # the stores needed the words: all lanes have read the stage
            if row + SLOTS < turns:
                ask(row + SLOTS, source, stride, mine, full, lane, count * 16, PLACE, SLOTS)


@gluon.jit
def tell(to, thread, maximum, sum_, tag):  # type: ignore[no-untyped-def]
    none = gl.full_like(thread, 0)
    m = none + maximum.to(gl.int32, bitcast=True)
    s = none + sum_.to(gl.int32, bitcast=True)
    gl.inline_asm_elementwise(TELL, "=r,r,l,r,r,r", [thread, to + none, m, s, none + tag], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def tell_rows(pairs, p, blocks, turns, told, of_warps, lane, COMPUTING: gl.constexpr, ROWS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The teller: reduces the warps' pairs of each row and writes the program's pair to global memory."""
    for turn in range(turns):
        place = turn % ROWS
        arrived(told + place * 8, turn // ROWS % 2)
        maximum, total = pick(of_warps + place * (COMPUTING * 8) + lane * 8, lane, COMPUTING)
        maximum, total = over_warp(maximum, total)
        tell(pairs + (place * blocks + p) * 4, lane, maximum, total, turn + 1)


@gluon.jit
def hear_rows(pairs, blocks, turns, known, of_rows, lane, ROWS: gl.constexpr, BATCH: gl.constexpr):  # type: ignore[no-untyped-def]
    """The hearer: reduces the pairs of the group's programs and passes each row's maximum and 1 / sum to the program's warps."""
    for turn in range(turns):
        place = turn % ROWS
        maximum, total = heard(pairs + place * blocks * 4, blocks, lane, turn + 1, BATCH)
        lay(of_rows + place * 8, finite(maximum), 1.0 / total, known + place * 8, lane)
    # The group's last program to finish resets pairs and counter to 0: all programs have written and read all pairs.
    counter = pairs + (ROWS * blocks * 4 + gl.full_like(lane, 0))
    before = gl.inline_asm_elementwise(LEAVE, "=r,r,l,~{memory}", [lane, counter], dtype=gl.int32, is_pure=False, pack=1)
    used = gl.where(before == blocks - 1, ROWS * blocks + 1, 0)
    for at in range(0, ROWS * blocks + 1, 32):
        given = [pairs + (at + lane) * 4, at + lane, used]
        gl.inline_asm_elementwise(CLEAR, "=r,l,r,r,~{memory}", given, dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit(do_not_specialize=["rows", "groups", "pieces", "part", "blocks"])
def stream_kernel(x, out, words, rows, groups, pieces, part, blocks, BATCH: gl.constexpr, COMPUTING: gl.constexpr,
                 PIECES: gl.constexpr, SLOTS: gl.constexpr, LAG: gl.constexpr, ROWS: gl.constexpr, AHEAD: gl.constexpr, EVEN: gl.constexpr,
                 ADD: gl.constexpr, GREATER: gl.constexpr, MOST: gl.constexpr, WRITE: gl.constexpr, LOWEST: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """softmax of rows of `pieces` of 16 bytes, in 32-bit words, by `groups` of `blocks` programs; a warp has `part` pieces or the rest.

    words: scratch, 0 at launch: for each group ROWS x blocks pairs of 16 bytes, then a counter of finished programs. BATCH: pairs a lane
    reads. COMPUTING: warps that compute; the next is the teller, then the hearer. EVEN: each warp's part is PIECES x 32 pieces. The others:
    see stream.py and `steps`.
    """
    PLACES: gl.constexpr = COMPUTING * SLOTS
    LINES: gl.constexpr = PLACES * PIECES + (8 * (PLACES + 3 * ROWS + ROWS * COMPUTING) + 511) // 512
    room = gl.allocate_shared_memory(gl.int32, [LINES, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    single: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    room.index(LINES - 1).store(gl.full([128], 0, gl.int32, single))  # a use, without which `global_smem` would not exist
    base = shared_base(rows)
    full = base + PLACES * (PIECES * 512)
    told = full + PLACES * 8
    known = told + ROWS * 8
    of_rows = known + ROWS * 8
    of_warps = of_rows + ROWS * 8
    thread = gl.arange(0, gl.num_warps() * 32, single)
    lane = thread % 32
    none = gl.full_like(thread, 0)
    given = [full + none, thread, none + PLACES, none + (PLACES + ROWS), none + (PLACES + 2 * ROWS), none + COMPUTING]
    gl.inline_asm_elementwise(BEGIN, "=r,r,r,r,r,r,r,~{memory}", given, dtype=gl.int32, is_pure=False, pack=1)
    BARRIER()
    group = gl.program_id(0) // blocks
    p = gl.program_id(0) % blocks
    turns = (rows - group + groups - 1) // groups
    pairs = words + group * ((ROWS * blocks + 1) * 4)
    warp = warp_of(rows)
    if warp < COMPUTING:
        begin = gl.minimum((p * COMPUTING + warp) * part, pieces)
        first = (group.to(gl.int64) * pieces + begin) * 4
        compute(x + first, out + first + lane * 4, groups.to(gl.int64) * pieces * 4, turns, base + warp * (SLOTS * PIECES * 512),
                full + warp * (SLOTS * 8), told, known, of_rows, of_warps + warp * 8, gl.minimum(part, pieces - begin), lane, COMPUTING,
                PIECES, SLOTS, LAG, ROWS, AHEAD, EVEN, ADD, GREATER, MOST, WRITE, LOWEST)  # fmt: skip
    elif warp == COMPUTING:
        tell_rows(pairs, p, blocks, turns, told, of_warps, lane, COMPUTING, ROWS)
    elif warp == COMPUTING + 1:
        hear_rows(pairs, blocks, turns, known, of_rows, lane, ROWS, BATCH)
    room._keep_alive()
