"""softmax of long rows as a stream: blocks that all run at once share each row and keep several rows on the way (sm_90).

A group of blocks takes rows in turns, and each block a part of every row of its group. In a block each warp has one task, and warps wait
for one another by mbarriers alone:

    copies    a slot of shared memory is free: ask for the block's part of the next row, which the copy engine brings
    workers   turn i: row i is there: each warp's maximum and sum of it. Then row i - lag, whose scale is known: exponentials, stores
    meeting   turn i: all warps' pairs of row i are there: the block's pair goes to scratch, for the others to read. Then the pairs of all
              blocks of row i - lag: the row's maximum and scale go to the workers

A barrier of a slot is waited for by its phase's parity, which is enough, since none is ever two phases ahead of who waits: a slot's next
row is asked for when all workers have left it (`empty`), who have by then waited for its copy (`full`) and its scale (`ready`); and its
workers' next pairs (`partial`) come behind that. With slots > lag the oldest turn of all blocks never waits for a younger one, so there is
no circle, provided that all blocks run: the launch is cooperative.

Scratch has room for the pairs of 2 lag + 2 rows of a group. Behind row i - lag's pairs of all blocks, every block has published row
i - lag, and so has read row i - 2 lag - 1 to its end; whoever then publishes row i + 1 writes over row i - 2 lag - 1, which nobody reads
any more. A pair's halves each carry the number of their row in the same 64 bits, which are written at once: neither an old pair nor half of
one is taken for it. The block that is the last to have read all makes scratch zeros again, as the launch found it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint8, uint32

from opwise.backends.numba_cuda import matmul_wgmma_ptx as barriers
from opwise.backends.numba_cuda import ptx, tensor, words
from opwise.backends.numba_cuda.launch import Kernel
from opwise.backends.numba_cuda.matmul_wgmma import wait
from opwise.backends.numba_cuda.reduce import warp_max, warp_sum
from opwise.backends.numba_cuda.softmax_row import LEAST, ONE, ZERO, rescale, shift_of, steps
from opwise.backends.numba_cuda.softmax_streams import LINE, PAIR_BYTES, Stream


@cache
def stream_kernel(dtype: str, stream: Stream, reads: int) -> Kernel:
    """x, out: addresses of (rows, columns), rows of whole 16-byte pieces, fewer than 2^31; blocks a row, at most 32 `reads`; 16-byte pieces
    a block; scratch, 0 before and after: a ticket (16 bytes) and Share.scratch_bytes of pairs. A grid of whole groups."""
    slot_bytes, slots, lag, workers, resident = stream
    each, warps, kept, last_pair = ptx.ELEMENTS[dtype], workers // 32, stream.pairs_kept, stream.warp_pairs - 1
    held = -(-slot_bytes // 16 // workers)  # pieces of a slot that are a thread's
    least, (sum_of, _, _, write) = words.LEAST_WORD[dtype], steps(dtype, held)
    room, read_room = 4 * held, 4 * reads

    def softmax(x: Any, out: Any, rows: Any, columns: Any, across: Any, part: Any, scratch: Any) -> None:
        raw, staged, read = cuda.local.array(room, uint32), cuda.local.array(4, uint32), cuda.local.array(read_room, uint32)
        greatest, values, fresh = cuda.local.array(4, uint32), cuda.local.array(each, float32), cuda.local.array(4, float32)
        memory = cuda.shared.array(0, uint8)
        ring = uint32((tensor.shared_address(memory) + uint32(LINE - 1)) & uint32(0xFFFFFFFF - (LINE - 1)))
        full = uint32(ring + uint32(slots * slot_bytes))
        empty, partial = uint32(full + uint32(8 * slots)), uint32(full + uint32(16 * slots))
        ready, of_rows = uint32(full + uint32(24 * slots)), uint32(full + uint32(32 * slots))
        of_warps = uint32(of_rows + uint32(8 * slots))
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        if thread == 0:
            for i in range(slots):
                barriers.barrier_init(uint32(full + uint32(8 * i)), uint32(1))
                barriers.barrier_init(uint32(empty + uint32(8 * i)), uint32(warps))
                barriers.barrier_init(uint32(partial + uint32(8 * i)), uint32(warps))
                barriers.barrier_init(uint32(ready + uint32(8 * i)), uint32(1))
            barriers.barriers_publish()
        cuda.syncthreads()

        members = uint32(across)
        group, rank = barriers.divide(uint32(cuda.blockIdx.x), members), barriers.remainder(uint32(cuda.blockIdx.x), members)
        groups = barriers.divide(uint32(cuda.gridDim.x), members)
        turns = barriers.divide(uint32(uint32(rows) + groups - uint32(1) - group), groups)  # rows of this group
        pieces = columns // each
        first = min(int64(rank) * part, pieces)
        count = uint32(min(part, pieces - first))
        step = int64(groups) * pieces * 16  # from a row of the group to its next
        begin = (int64(group) * pieces + first) * 16
        warp = barriers.same_in_warp(uint32(thread >> uint32(5)))
        turn, slot, phase = uint32(0), uint32(0), uint32(0)
        late, late_phase = uint32(0), uint32(0)  # the slot of row turn - lag
        if warp == warps:
            if barriers.elected() != 0:
                source = x + begin
                while turn < turns:
                    landed = uint32(full + slot * uint32(8))
                    wait(uint32(empty + slot * uint32(8)), uint32(phase ^ uint32(1)))
                    barriers.expect(landed, uint32(count * uint32(16)))
                    if count > uint32(0):
                        words.bulk_load(uint32(ring + slot * uint32(slot_bytes)), source, uint32(count * uint32(16)), landed)
                    source += step
                    turn = uint32(turn + uint32(1))
                    slot = uint32(slot + uint32(1))
                    if slot == slots:
                        slot, phase = uint32(0), uint32(phase ^ uint32(1))
        elif warp > warps:
            row_bytes = int64(members) * PAIR_BYTES
            pairs = scratch + 16 + int64(group) * kept * row_bytes
            published, looked = uint32(0), uint32(0)  # which of the rows that scratch has room for
            while turn < turns + uint32(lag):
                if turn >= uint32(lag):  # asked for before the block's own pair is waited for: most often all are there
                    for k in range(reads):
                        other = min(uint32(lane + uint32(32 * k)), uint32(members - uint32(1)))
                        words.load_pair(pairs + int64(looked) * row_bytes + int64(other) * PAIR_BYTES, read, 4 * k)
                if turn < turns:
                    wait(uint32(partial + slot * uint32(8)), phase)
                    highest, total = LEAST, ZERO
                    if lane < warps:
                        mine = uint32(of_warps + ((turn & uint32(last_pair)) * uint32(warps) + lane) * uint32(8))
                        highest, total = words.load_float(mine), words.load_float(uint32(mine + uint32(4)))
                    top = warp_max(highest)
                    total = warp_sum(total * rescale(highest, shift_of(top)))
                    if lane == 0:
                        place = pairs + int64(published) * row_bytes + int64(rank) * PAIR_BYTES
                        words.publish(place, top, total, uint32(turn + uint32(1)))
                    published = uint32(published + uint32(1))
                    if published == kept:
                        published = uint32(0)
                    slot = uint32(slot + uint32(1))
                    if slot == slots:
                        slot, phase = uint32(0), uint32(phase ^ uint32(1))
                if turn >= uint32(lag):
                    tag = uint32(turn + uint32(1) - uint32(lag))
                    missing = uint32(0)
                    for k in range(reads):
                        missing |= (read[4 * k + 1] ^ tag) | (read[4 * k + 3] ^ tag)
                    while missing != 0:
                        missing = uint32(0)
                        for k in range(reads):
                            other = min(uint32(lane + uint32(32 * k)), uint32(members - uint32(1)))
                            words.load_pair(pairs + int64(looked) * row_bytes + int64(other) * PAIR_BYTES, read, 4 * k)
                        for k in range(reads):
                            missing |= (read[4 * k + 1] ^ tag) | (read[4 * k + 3] ^ tag)
                    cuda.syncwarp()
                    highest = LEAST
                    for k in range(reads):
                        highest = ptx.greater(highest, ptx.float_of(read[4 * k]))  # a pair read twice changes no maximum
                    shift = shift_of(warp_max(highest))
                    total = ZERO
                    for k in range(reads):
                        if lane + uint32(32 * k) < members:
                            total += ptx.float_of(read[4 * k + 2]) * rescale(ptx.float_of(read[4 * k]), shift)
                    total = warp_sum(total)
                    if lane == 0:
                        words.store_floats(uint32(of_rows + late * uint32(8)), shift, ONE / total)
                        barriers.arrive(uint32(ready + late * uint32(8)))
                    looked = uint32(looked + uint32(1))
                    if looked == kept:
                        looked = uint32(0)
                    late = uint32(late + uint32(1))
                    if late == slots:
                        late = uint32(0)
                turn = uint32(turn + uint32(1))
            # Nobody publishes any more behind the last ticket, and nobody reads.
            last = uint32(0)
            if lane == 0 and ptx.ticket(scratch, uint32(cuda.gridDim.x - 1)) == uint32(cuda.gridDim.x - 1):
                last = uint32(1)
            cuda.syncwarp()
            if barriers.same_in_warp(last) == 1:
                i = int64(lane)
                while i < int64(cuda.gridDim.x) * kept:
                    words.clear_pair(scratch + 16 + i * PAIR_BYTES)
                    i += 32
        else:
            target = out + begin
            while turn < turns + uint32(lag):
                if turn < turns:
                    wait(uint32(full + slot * uint32(8)), phase)
                    at = uint32(ring + slot * uint32(slot_bytes))
                    for k in range(held):
                        for w in range(4):
                            raw[4 * k + w] = uint32(least)
                        i = uint32(thread + uint32(k * workers))
                        if i < count:
                            words.load_shared_words(uint32(at + i * uint32(16)), raw, 4 * k)
                    largest, total = sum_of(raw, greatest, values, fresh)
                    highest = warp_max(largest)
                    total = warp_sum(total * rescale(largest, shift_of(highest)))
                    if lane == 0:
                        mine = uint32(of_warps + ((turn & uint32(last_pair)) * uint32(warps) + warp) * uint32(8))
                        words.store_floats(mine, highest, total)
                        barriers.arrive(uint32(partial + slot * uint32(8)))
                    slot = uint32(slot + uint32(1))
                    if slot == slots:
                        slot, phase = uint32(0), uint32(phase ^ uint32(1))
                if turn >= uint32(lag):
                    wait(uint32(ready + late * uint32(8)), late_phase)
                    shift = words.load_float(uint32(of_rows + late * uint32(8)))
                    scale = words.load_float(uint32(of_rows + late * uint32(8) + uint32(4)))
                    at = uint32(ring + late * uint32(slot_bytes))
                    for k in range(held):
                        i = uint32(thread + uint32(k * workers))
                        if i < count:
                            words.load_shared_words(uint32(at + i * uint32(16)), raw, 4 * k)
                    for k in range(held):
                        i = uint32(thread + uint32(k * workers))
                        if i < count:
                            write(raw, 4 * k, values, shift, scale, staged, target + int64(i) * 16)
                    # Behind the stores, which have to wait for what was read: a load that is only asked for may come behind the next copy.
                    cuda.syncwarp()
                    if lane == 0:
                        barriers.arrive(uint32(empty + late * uint32(8)))
                    target += step
                    late = uint32(late + uint32(1))
                    if late == slots:
                        late, late_phase = uint32(0), uint32(late_phase ^ uint32(1))
                turn = uint32(turn + uint32(1))

    return Kernel(
        softmax, (int64,) * 7, stream.threads, min_blocks=resident, dynamic_shared=stream.shared_bytes, only="sm_90", cooperative=True
    )
