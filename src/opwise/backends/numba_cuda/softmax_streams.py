"""Which long rows softmax_stream.py's kernel takes, and how it divides them among blocks that all run at once: what a block holds, and who
has which part.

Chosen by times on an H200: docs/lab.md.
"""

from __future__ import annotations

from typing import NamedTuple

LINE = 128
PAIR_BYTES, COUNTER_BYTES = 16, 16  # of scratch
OTHER_WARPS = 2  # a block's warps that ask for copies and that meet with other blocks
ALL_ZERO = 64 * 1024  # the most scratch that a launch may have, of which nothing is left behind
REGISTERS = 65536  # of a multiprocessor
LEAST_TURNS = 16  # rows of a group: filling and emptying the pipeline cost about two
# Bytes of the shortest row: shorter ones a cluster's blocks take as fast or faster.
LEAST_ROW = {"float32": 1024 * 1024 + 16, "float16": 1024 * 1024, "bfloat16": 1024 * 1024}
RUNS_ON = (9, 0)


class Stream(NamedTuple):
    """A block: bytes of a slot and how many there are, turns between a row's sum and its stores, threads that compute, blocks a
    multiprocessor."""

    slot_bytes: int
    slots: int
    lag: int
    workers: int
    resident: int

    @property
    def threads(self) -> int:
        return self.workers + 32 * OTHER_WARPS

    @property
    def shared_bytes(self) -> int:
        """Slots, four barriers each, a row's result each, pairs of the warps, the way to a multiple of LINE."""
        return self.slots * (self.slot_bytes + 4 * 8 + 8) + self.warp_pairs * self.workers // 32 * 8 + LINE

    @property
    def warp_pairs(self) -> int:
        """Rows whose warps' pairs are kept, a power of two: more than the lag, which is how far warps may be ahead of who meets."""
        return 1 << self.lag.bit_length()

    @property
    def most_blocks(self) -> int:
        """Of a group: a lane of the warp that meets has a pair of every 32nd in four registers, beside some 32 others."""
        registers = min(REGISTERS // (self.threads * self.resident), 255) // 8 * 8
        return 32 * ((registers - 32) // 4)

    @property
    def pairs_kept(self) -> int:
        """Rows whose pairs scratch has room for: softmax_stream.py says why this many are enough."""
        return 2 * self.lag + 2


class Share(NamedTuple):
    """`blocks` of a group share a row, each with `part` 16-byte pieces but the last, which has what is left; `groups` run at once."""

    blocks: int
    groups: int
    part: int

    def scratch_bytes(self, stream: Stream) -> int:
        return COUNTER_BYTES + PAIR_BYTES * stream.pairs_kept * self.blocks * self.groups


# For every length and dtype. Of seven slots four have rows whose sums are on their way, three have copies. Many pieces a thread hide the
# exponentials better than more threads do.
STREAM = Stream(16384, 7, 4, 256, 2)


def stream_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> tuple[Stream, Share] | None:
    """What such rows, of whole 16-byte pieces, are shared by; None: not this kernel's."""
    if row_bytes < LEAST_ROW[dtype] or capability != RUNS_ON:
        return None
    share = shared_by(rows, row_bytes, STREAM, processors)
    return None if share is None else (STREAM, share)


def shared_by(rows: int, row_bytes: int, stream: Stream, processors: int) -> Share | None:
    """The division that ends first, by an estimate; None: rows too long for all slots together, or too few to fill a pipeline.

    A turn costs what the memory takes for all groups' rows, or, where that is more, what the largest part takes a block that has a tenth
    more than its share of the bandwidth; and 512 bytes' time for meeting.
    """
    at_once, lines = processors * stream.resident, -(-row_bytes // LINE)
    best, least = None, 0.0
    for blocks in range(-(-row_bytes // stream.slot_bytes), min(at_once, stream.most_blocks) + 1):
        share = Share(blocks, min(at_once // blocks, rows), -(-lines // blocks) * (LINE // 16))
        turns = -(-rows // share.groups)
        if turns < LEAST_TURNS or share.part * 16 > stream.slot_bytes or share.scratch_bytes(stream) > ALL_ZERO:
            continue
        turn = max(share.groups * row_bytes, at_once * share.part * 16 / 1.1) + 512 * at_once
        if best is None or (turns + 2) * turn < least:
            best, least = share, (turns + 2) * turn
    return best
