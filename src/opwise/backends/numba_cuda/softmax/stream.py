"""softmax of long rows as a stream (sm_90): the blocks of a group share each row, and pipeline several rows. Cooperative launch.

Row r belongs to group r modulo groups. A computing warp processes its part of every row, which TMA bulk copies bring to its own stages:

    computing   iteration i: publishes the maximum and sum of its part of row i, and arrives on mbarrier `told`; computes and stores row
                i - lag, whose maximum and scale have arrived (`known`); starts the copy of row i - lag + stages
    telling     one warp: reduces the block's maxima and sums of a row, and writes the pair to scratch in global memory
    learning    one warp: polls the pairs of all blocks of the group, and passes the row's maximum and scale to the computing warps

Buffers: a warp in iteration i has finished i - 1, so every block of the group has published row i - 1 - lag, all its warps have finished
iteration i - 2 - lag, and every block has learnt row i - 2 - 2 lag. So with more than lag slots a block, and more than 2 lag + 1 a group in
scratch, no slot is overwritten while it is read, and no mbarrier is two phases ahead of a waiter. No deadlock: stages > lag, and all blocks
are resident. Each 64-bit half of a pair carries its row's tag, so it needs no fence. The last block zeroes scratch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import ptx, tensor, words
from opwise.backends.numba_cuda.common.barrier import wait
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint8, uint32
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.common.reduce import warp_max, warp_sum
from opwise.backends.numba_cuda.softmax.cluster import LEAST, ONE, ZERO, rescale, shift_of, steps
from opwise.backends.numba_cuda.softmax.plan import LINE, Stream

PAIR_BYTES = 16


@cache
def stream_kernel(dtype: str, stream: Stream, reads: int) -> Kernel:
    """Parameters: addresses of x, out (rows, columns), rows of whole 16-byte pieces; rows, fewer than 2^31; columns; part: 16-byte pieces
    a warp; scratch, zero before and after: a ticket (16 bytes), then pairs. Grid: (blocks a group, at most 32 * reads; groups)."""
    warps, held, stages, lag = stream
    stage_bytes, kept, told_of = stream.stage_bytes, stream.rows_kept, stream.pairs_kept
    last_kept, last_told, kept_bits = kept - 1, told_of - 1, kept.bit_length() - 1  # powers of two
    each, least, (sum_of, _, _, finish) = ptx.ELEMENTS[dtype], words.LEAST_WORD[dtype], steps(dtype, held)
    room, read_room = 4 * held, 4 * reads

    def softmax(x: Any, out: Any, rows: Any, columns: Any, part: Any, scratch: Any) -> None:
        raw, read = cuda.local.array(room, uint32), cuda.local.array(read_room, uint32)
        greatest, values, fresh = cuda.local.array(4, uint32), cuda.local.array(each, float32), cuda.local.array(4, float32)
        memory = cuda.shared.array(0, uint8)
        ring = uint32((tensor.shared_address(memory) + uint32(LINE - 1)) & uint32(0xFFFFFFFF - (LINE - 1)))
        full = uint32(ring + uint32(warps * stages * stage_bytes))
        told = uint32(full + uint32(8 * warps * stages))
        known, of_rows, of_warps = uint32(told + uint32(8 * kept)), uint32(told + uint32(16 * kept)), uint32(told + uint32(24 * kept))
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        if thread < warps * stages:
            barriers.barrier_init(uint32(full + thread * uint32(8)), uint32(1))
        if thread < kept:
            barriers.barrier_init(uint32(told + thread * uint32(8)), uint32(warps))
            barriers.barrier_init(uint32(known + thread * uint32(8)), uint32(1))
        barriers.barriers_publish()
        cuda.syncthreads()

        members, groups = uint32(cuda.gridDim.x), uint32(cuda.gridDim.y)
        rank, group = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y)
        turns = barriers.divide(uint32(uint32(rows) + groups - uint32(1) - group), groups)  # rows of this group, one an iteration
        warp = barriers.same_in_warp(uint32(thread >> uint32(5)))
        pairs = scratch + 16 + int64(group * members) * (told_of * PAIR_BYTES)
        turn = uint32(0)
        if warp == warps:
            while turn < turns:
                at = uint32(turn & uint32(last_kept))
                wait(uint32(told + at * uint32(8)), uint32((turn >> uint32(kept_bits)) & uint32(1)))
                highest, total = LEAST, ZERO
                if lane < warps:
                    mine = uint32(of_warps + (at * uint32(warps) + lane) * uint32(8))
                    highest, total = words.load_float(mine), words.load_float(uint32(mine + uint32(4)))
                top = warp_max(highest)
                total = warp_sum(total * rescale(highest, shift_of(top)))
                if lane == 0:
                    place = pairs + int64(uint32(turn & uint32(last_told)) * members + rank) * PAIR_BYTES
                    words.publish(place, top, total, uint32(turn + uint32(1)))
                turn = uint32(turn + uint32(1))
        elif warp > warps:
            while turn < turns:
                tag = uint32(turn + uint32(1))
                of_row = pairs + int64(uint32(turn & uint32(last_told)) * members) * PAIR_BYTES
                missing = uint32(1)
                while missing != 0:
                    missing = uint32(0)
                    for k in range(reads):
                        other = min(uint32(lane + uint32(32 * k)), uint32(members - uint32(1)))
                        words.load_pair(of_row + int64(other) * PAIR_BYTES, read, 4 * k)
                    for k in range(reads):
                        missing |= (read[4 * k + 1] ^ tag) | (read[4 * k + 3] ^ tag)
                cuda.syncwarp()
                highest = LEAST
                for k in range(reads):
                    highest = ptx.greater(highest, ptx.float_of(read[4 * k]))  # lanes past the end repeat the last pair
                shift = shift_of(warp_max(highest))
                total = ZERO
                for k in range(reads):
                    if lane + uint32(32 * k) < members:
                        total += ptx.float_of(read[4 * k + 2]) * rescale(ptx.float_of(read[4 * k]), shift)
                total = warp_sum(total)
                if lane == 0:
                    at = uint32(turn & uint32(last_kept))
                    words.store_floats(uint32(of_rows + at * uint32(8)), shift, ONE / total)
                    barriers.arrive(uint32(known + at * uint32(8)))
                turn = uint32(turn + uint32(1))
            # The last ticket: no block reads or writes pairs any more.
            last, blocks = uint32(0), uint32(members * groups)
            if lane == 0 and ptx.ticket(scratch, uint32(blocks - uint32(1))) == uint32(blocks - uint32(1)):
                last = uint32(1)
            cuda.syncwarp()
            if barriers.same_in_warp(last) == 1:
                i = int64(lane)
                while i < int64(blocks) * told_of:
                    words.clear_pair(scratch + 16 + i * PAIR_BYTES)
                    i += 32
        else:
            pieces = columns // each
            first = min(int64(uint32(rank * uint32(warps) + warp)) * part, pieces)
            count = uint32(min(part, pieces - first))
            part_bytes = uint32(count * uint32(16))
            step = int64(groups) * pieces * 16  # from a row of the group to its next
            source, target = x + (int64(group) * pieces + first) * 16, out + (int64(group) * pieces + first) * 16
            mine_full, mine = uint32(full + warp * uint32(8 * stages)), uint32(ring + warp * uint32(stages * stage_bytes))
            of_lane = uint32(lane * uint32(16))
            stage = uint32(0)
            while stage < stages and stage < turns:
                if count > uint32(0) and barriers.elected() != 0:
                    landed = uint32(mine_full + stage * uint32(8))
                    barriers.expect(landed, part_bytes)
                    words.bulk_load(uint32(mine + stage * uint32(stage_bytes)), source, part_bytes, landed)
                source += step
                stage = uint32(stage + uint32(1))
            stage, phase, late = uint32(0), uint32(0), uint32(0)  # late: the stage of row turn - lag
            while turn < turns + uint32(lag):
                if turn < turns:
                    if count > uint32(0):
                        wait(uint32(mine_full + stage * uint32(8)), phase)
                    at = uint32(mine + stage * uint32(stage_bytes) + of_lane)
                    for k in range(held):
                        for w in range(4):
                            raw[4 * k + w] = uint32(least)
                        if uint32(lane + uint32(32 * k)) < count:
                            words.load_shared_words(uint32(at + uint32(512 * k)), raw, 4 * k)
                    largest, total = sum_of(raw, greatest, values, fresh)
                    highest = warp_max(largest)
                    total = warp_sum(total * rescale(largest, shift_of(highest)))
                    if lane == 0:
                        of = uint32(turn & uint32(last_kept))
                        words.store_floats(uint32(of_warps + (of * uint32(warps) + warp) * uint32(8)), highest, total)
                        barriers.arrive(uint32(told + of * uint32(8)))
                    stage = uint32(stage + uint32(1))
                    if stage == stages:
                        stage, phase = uint32(0), uint32(phase ^ uint32(1))
                if turn >= uint32(lag):
                    row = uint32(turn - uint32(lag))
                    of = uint32(row & uint32(last_kept))
                    wait(uint32(known + of * uint32(8)), uint32((row >> uint32(kept_bits)) & uint32(1)))
                    shift = words.load_float(uint32(of_rows + of * uint32(8)))
                    scale = words.load_float(uint32(of_rows + of * uint32(8) + uint32(4)))
                    at = uint32(mine + late * uint32(stage_bytes) + of_lane)
                    for k in range(held):
                        if uint32(lane + uint32(32 * k)) < count:
                            words.load_shared_words(uint32(at + uint32(512 * k)), raw, 4 * k)
                    for k in range(held):
                        finish(raw, 4 * k, values, shift, scale)
                    for k in range(held):
                        if uint32(lane + uint32(32 * k)) < count:
                            words.store_words(target + int64(uint32(of_lane + uint32(512 * k))), raw, 4 * k)
                    target += step
                    # Refill after the stores: they need the loaded values, so no load of this stage is still in flight.
                    cuda.syncwarp()
                    if uint32(row + uint32(stages)) < turns:
                        if count > uint32(0) and barriers.elected() != 0:
                            landed = uint32(mine_full + late * uint32(8))
                            barriers.expect(landed, part_bytes)
                            words.bulk_load(uint32(mine + late * uint32(stage_bytes)), source, part_bytes, landed)
                        source += step
                    late = uint32(late + uint32(1))
                    if late == stages:
                        late = uint32(0)
                turn = uint32(turn + uint32(1))

    return Kernel(softmax, (int64,) * 6, stream.threads, dynamic_shared=stream.shared_bytes, only="sm_90", cooperative=True)
