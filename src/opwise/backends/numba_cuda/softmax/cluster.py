"""softmax of long rows, each read once: a row stays in registers and shared memory of one block, or of a cluster of 2 to 16 (sm_90).

A block keeps its part of the row in the input dtype: PIECES 16-byte pieces a thread in registers, the rest in dynamic shared memory, filled
by cp.async. The blocks of a cluster exchange a maximum and a sum each through distributed shared memory: two blocks with st.async and an
mbarrier, more blocks with plain stores and a cluster barrier. stream.py uses the device functions of `steps` too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import ptx, tensor, words
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint8, uint32, uint64
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.reduce import warp_max, warp_sum
from opwise.backends.numba_cuda.softmax.plan import LINE, PIECES, Form

LOG2_E = np.float32(math.log2(math.e))
ZERO, ONE, LEAST = np.float32(0.0), np.float32(1.0), np.float32(-math.inf)
# log2 of a factor of all exponentials, which cancels. exp2_flushed gives 0 below 2^-126, so below 2^-156 unscaled: under float32's 2^-149.
BIAS = np.float32(30.0)


@inlined
def shift_of(maximum: Any) -> Any:
    return maximum if maximum > LEAST else ZERO  # only -inf so far: -inf - -inf is nan


@inlined
def biased_exp(value: Any, shift: Any) -> Any:
    return words.exp2_flushed(words.fma(value - shift, LOG2_E, BIAS))


@inlined
def rescale(earlier: Any, shift: Any) -> Any:
    return words.exp2_flushed((earlier - shift) * LOG2_E)


def steps(dtype: str, held: int) -> tuple[Any, Any, Any, Any]:
    """Device functions (sum_of, greatest_of, add_exponentials, finish). pieces: 4 * held uint32 words; at: a piece's first word; values,
    greatest: scratch of a piece's elements and of its words; sums: four independent accumulators, for instruction-level parallelism."""
    unpack, pack, each = words.UNPACK_WORDS[dtype], words.PACK_WORDS[dtype], ptx.ELEMENTS[dtype]
    keep_greater = words.KEEP_GREATER[dtype]

    @inlined
    def greatest_of(piece: Any, values: Any, largest: Any) -> Any:
        """The maximum of `largest` and a piece's elements."""
        unpack(piece, 0, values)
        for j in range(each):
            largest = ptx.greater(largest, values[j])
        return largest

    @inlined
    def add_exponentials(pieces: Any, at: Any, values: Any, shift: Any, sums: Any) -> None:
        unpack(pieces, at, values)
        for j in range(each):
            sums[j % 4] += biased_exp(values[j], shift)

    @inlined
    def sum_of(pieces: Any, greatest: Any, values: Any, sums: Any) -> Any:
        """(maximum of all pieces, sum of their exponentials); leaves the elementwise maximum of the pieces in `greatest`."""
        for w in range(4):
            greatest[w] = pieces[w]
        for k in range(1, held):
            keep_greater(greatest, pieces, 4 * k)
        largest = greatest_of(greatest, values, LEAST)
        shift = shift_of(largest)
        for j in range(4):
            sums[j] = ZERO
        for k in range(held):
            add_exponentials(pieces, 4 * k, values, shift, sums)
        return largest, (sums[0] + sums[1]) + (sums[2] + sums[3])

    @inlined
    def finish(pieces: Any, at: Any, values: Any, shift: Any, scale: Any) -> None:
        """Replaces a piece by its results."""
        unpack(pieces, at, values)
        for j in range(each):
            values[j] = biased_exp(values[j], shift) * scale
        pack(values, pieces, at)

    return sum_of, greatest_of, add_exponentials, finish


@cache
def cluster_kernel(dtype: str, form: Form) -> Kernel:
    """Parameters: addresses of x and out (rows, columns), rows of whole 16-byte pieces; rows; columns; wave, together, delay: of the first
    `wave` rows each `together` start `delay` clock cycles after those before, modulo form.ctas_per_sm. Grid: form.blocks a row."""
    blocks, threads = form
    keep_greater, least = words.KEEP_GREATER[dtype], words.LEAST_WORD[dtype]
    sum_of, greatest_of, add_exponentials, finish = steps(dtype, PIECES)
    each, warps, in_registers = ptx.ELEMENTS[dtype], threads // 32, PIECES * threads
    parts_of_line = LINE // 16
    shared = blocks > 1  # a row is shared by several blocks
    by_mail = blocks == 2
    room, slots, phases = 4 * PIECES, 2 * blocks, form.ctas_per_sm

    def softmax(x: Any, out: Any, rows: Any, columns: Any, wave: Any, together: Any, delay: Any) -> None:
        raw, staged = cuda.local.array(room, uint32), cuda.local.array(4, uint32)
        greatest, values, fresh = cuda.local.array(4, uint32), cuda.local.array(each, float32), cuda.local.array(4, float32)
        of_warps = cuda.shared.array(64, float32)  # 32 maxima, then 32 sums
        of_blocks = cuda.shared.array(slots, float32)  # a maximum and a sum each
        bell = cuda.shared.array(1, uint64)  # mbarrier, counts the bytes of all pairs
        kept = cuda.shared.array(0, uint8)
        kept_room = uint32(tensor.shared_address(kept) - uint32(in_registers * 16))  # piece i lies i * 16 bytes from here
        rank = uint32(0)
        if shared:
            rank = words.rank_in_cluster()
            if by_mail:
                if cuda.threadIdx.x == 0:
                    barriers.barrier_init(tensor.shared_address(bell), uint32(1))
                    barriers.barriers_publish()
                    barriers.expect(tensor.shared_address(bell), uint32(8 * blocks))
                cuda.syncwarp()
            words.cluster_arrive()  # a block must have started before others write its shared memory
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        pieces = columns // each
        part = (pieces + (blocks * parts_of_line - 1)) // (blocks * parts_of_line) * parts_of_line
        first = min(int64(rank) * part, pieces)
        count = uint32(min(part, pieces - first))  # pieces of this block; 32-bit arithmetic is enough within a part
        row = int64(cuda.blockIdx.x) // blocks
        if shared and row < wave:
            begun = words.clock()  # stagger an SM's blocks: one reads while another exchanges, computes, writes
            turn = barriers.remainder(barriers.divide(uint32(row), uint32(together)), uint32(phases))
            while words.clock() - begun < delay * int64(turn):
                words.nap()
            cuda.syncwarp()
        source = x + (row * pieces + first) * 16
        for k in range(PIECES):
            for w in range(4):
                raw[4 * k + w] = uint32(least)
            i = uint32(thread + uint32(k * threads))
            if i < count:
                words.load_words(source + int64(i) * 16, raw, 4 * k)
        i = uint32(thread + uint32(in_registers))
        while i < count:
            tensor.copy16(uint32(kept_room + i * uint32(16)), source + int64(i) * 16, uint32(16))
            i = uint32(i + uint32(threads))

        target = out + (row * pieces + first) * 16
        largest, total = sum_of(raw, greatest, values, fresh)
        words.copies_done()
        # The maximum first, so that exponentials are independent. A thread reads its own copies only: no barrier.
        if count > uint32(in_registers):
            i = uint32(thread + uint32(in_registers))
            while i < count:
                words.load_shared_words(uint32(kept_room + i * uint32(16)), staged, 0)
                keep_greater(greatest, staged, 0)
                i = uint32(i + uint32(threads))
            here = greatest_of(greatest, values, largest)
            shift = shift_of(here)
            total *= rescale(largest, shift)
            largest = here
            for j in range(4):
                fresh[j] = ZERO
            i = uint32(thread + uint32(in_registers))
            while i < count:
                words.load_shared_words(uint32(kept_room + i * uint32(16)), staged, 0)
                add_exponentials(staged, 0, values, shift, fresh)
                i = uint32(i + uint32(threads))
            total += (fresh[0] + fresh[1]) + (fresh[2] + fresh[3])

        highest = warp_max(largest)
        if lane == 0:
            of_warps[thread >> uint32(5)] = highest
        cuda.syncthreads()
        highest = warp_max(of_warps[lane if lane < warps else uint32(0)])
        shift = shift_of(highest)
        total = warp_sum(total * rescale(largest, shift))
        if lane == 0:
            of_warps[uint32(32) + (thread >> uint32(5))] = total
        cuda.syncthreads()
        total = warp_sum(of_warps[uint32(32) + lane] if lane < warps else ZERO)
        if shared:
            words.cluster_wait()
            mine = uint32(tensor.shared_address(of_blocks) + rank * uint32(8))
            # After either exchange no block accesses another's shared memory, so each may exit.
            if by_mail:
                if thread < blocks:
                    words.send_pair_to_block(mine, thread, highest, total, tensor.shared_address(bell))
                while words.pairs_arrived(tensor.shared_address(bell)) == 0:
                    pass
            else:
                if thread < blocks:
                    words.store_pair_in_block(mine, thread, highest, total)
                    words.cluster_fence()
                cuda.syncwarp()
                words.cluster_arrive()
                words.cluster_wait()
            highest, total = LEAST, ZERO
            if lane < blocks:
                highest, total = of_blocks[2 * lane], of_blocks[2 * lane + 1]
            shift = shift_of(warp_max(highest))
            total = warp_sum(total * rescale(highest, shift))
        scale = ONE / total

        for k in range(PIECES):
            i = uint32(thread + uint32(k * threads))
            words.again(raw, 4 * k)
            if i < count:
                finish(raw, 4 * k, values, shift, scale)
                words.store_words(target + int64(i) * 16, raw, 4 * k)
        i = uint32(thread + uint32(in_registers))
        while i < count:
            words.load_shared_words(uint32(kept_room + i * uint32(16)), staged, 0)
            finish(staged, 0, values, shift, scale)
            words.store_words(target + int64(i) * 16, staged, 0)
            i = uint32(i + uint32(threads))

    # 1024 resident threads an SM for every block size: at most 64 registers a thread.
    only = None if blocks == 1 else "sm_90"
    return Kernel(softmax, (int64,) * 7, threads, min_blocks=phases, dynamic_shared=form.most_shared, only=only, cluster=blocks)
