"""Which long rows softmax_stream.py's kernel takes, and how it divides them among blocks that all run at once: what a block holds, and who
has which part.

Chosen by times on an H200: docs/lab.md.
"""

from __future__ import annotations

from typing import NamedTuple

LINE = 128
PAIR_BYTES, COUNTER_BYTES = 16, 16  # of scratch
OTHER_WARPS = 2  # a block's warps that tell other blocks and learn from them
ALL_ZERO = 64 * 1024  # the most scratch that a launch may have, of which nothing is left behind
# Bytes of the shortest row: a cluster's blocks take shorter ones as fast or faster.
LEAST_ROW = {"float32": 1024 * 1024 + 16, "float16": 512 * 1024 + 16, "bfloat16": 512 * 1024 + 16}
LEAST_TURNS = 2  # rows of a group: one alone a cluster's blocks meet over sooner
RUNS_ON = (9, 0)


class Stream(NamedTuple):
    """A block, one a multiprocessor: warps that compute, 16-byte pieces of a row that a lane has at most, rows in shared memory, turns
    between a row's sum and its stores."""

    warps: int
    pieces: int
    slots: int
    lag: int

    @property
    def threads(self) -> int:
        return 32 * (self.warps + OTHER_WARPS)

    @property
    def slot_bytes(self) -> int:
        """Of one warp."""
        return 32 * 16 * self.pieces

    @property
    def shared_bytes(self) -> int:
        """Slots, a barrier each; of rows two barriers, their results and the warps' pairs; the way to a multiple of LINE."""
        return self.warps * self.slots * (self.slot_bytes + 8) + self.rows_kept * (2 * 8 + 8 + self.warps * 8) + LINE

    @property
    def rows_kept(self) -> int:
        """Rows whose pairs a block keeps for itself, a power of two: softmax_stream.py says why more than the lag are enough."""
        return 1 << self.lag.bit_length()

    @property
    def pairs_kept(self) -> int:
        """Rows whose pairs scratch has room for, a power of two: more than 2 lag + 1."""
        return 1 << (2 * self.lag + 1).bit_length()


class Share(NamedTuple):
    """`blocks` of a group share a row, each warp with `part` 16-byte pieces but the last ones, which have what is left; `groups` run at
    once."""

    blocks: int
    groups: int
    part: int

    def scratch_bytes(self, stream: Stream) -> int:
        return COUNTER_BYTES + PAIR_BYTES * stream.pairs_kept * self.blocks * self.groups


STREAM = Stream(16, 4, 7, 5)


def stream_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Share | None:
    """What such rows, of whole 16-byte pieces, are shared by; None: not this kernel's."""
    if row_bytes < LEAST_ROW[dtype] or capability != RUNS_ON:
        return None
    return shared_by(rows, row_bytes, STREAM, processors)


def shared_by(rows: int, row_bytes: int, stream: Stream, processors: int) -> Share | None:
    """As many groups as hold a row each, over all multiprocessors; None: rows too long for one group, or too few for all."""
    pieces, line = row_bytes // 16, LINE // 16
    groups = processors // -(-pieces // (stream.warps * stream.pieces * 32))
    if groups == 0 or rows < LEAST_TURNS * groups:
        return None
    part = -(-pieces // (processors // groups * stream.warps * line)) * line
    return Share(-(-pieces // (part * stream.warps)), groups, part)
