"""Which long rows softmax reads once, and how many blocks of how many threads share one: the plan of softmax_cluster.py.

Chosen by times on an H200: docs/lab.md.
"""

from __future__ import annotations

from typing import NamedTuple

PIECES = 8  # of 16 bytes, in a thread's registers
MOST_SHARED = 224 * 1024  # of the 227 KiB of an sm_90 block
LINE = 128


class Form(NamedTuple):
    """Blocks a row, threads a block."""

    blocks: int
    threads: int

    @property
    def most_shared(self) -> int:
        """Bytes of dynamic shared memory that a launch may ask for. One block has no more than its registers hold: any GPU has those."""
        return self.threads * PIECES * 16 if self.blocks == 1 else MOST_SHARED

    def shared_bytes(self, row_bytes: int) -> int:
        """Dynamic shared memory of a block, for what its registers do not hold of a row."""
        part = -(-row_bytes // (self.blocks * LINE)) * LINE
        return max(part - self.threads * PIECES * 16, 0)

    def holds(self, row_bytes: int) -> bool:
        return self.shared_bytes(row_bytes) <= self.most_shared

    def half_read(self, row_bytes: int) -> int:
        """Clock cycles in which a multiprocessor reads half of a block's part: all together read 16.5 bytes a cycle each."""
        return row_bytes // self.blocks // 33

    def wave(self, rows: int, processors: int) -> int:
        """Blocks, of whole clusters, that begin together on multiprocessors which they share, with others behind them; 0: none do."""
        shared_by = 1024 // self.threads
        at_once = processors * shared_by // self.blocks * self.blocks
        return at_once if shared_by > 1 and rows * self.blocks > at_once else 0

    def half_in_registers(self, row_bytes: int) -> bool:
        return row_bytes <= 2 * self.blocks * self.threads * PIECES * 16

    def all_at_once(self, rows: int, processors: int) -> bool:
        """Do the clusters of so many rows run together? They keep within groups of multiprocessors, which leaves one in eight over."""
        return rows * self.blocks * 8 <= processors * (1024 // self.threads) * 7


# The first whose registers hold half of the row: with the other half in shared memory a multiprocessor has 1024 threads and 256 KiB on the
# way, in two to four blocks; only a row above 2 MiB leaves it one block. Those of 16 blocks have few rows, or such as softmax_stream.py's
# blocks together have no room for: softmax_streams.py is asked first.
FORMS = (Form(1, 256), Form(1, 512), Form(2, 512), Form(4, 512), Form(8, 512), Form(16, 512), Form(16, 1024))
# Bytes of the shortest row; softmax.py's kernels unpack shorter ones in registers, in float32 up to 96 KiB.
LEAST_ROW = {"float32": 96 * 1024 + 16, "float16": 32 * 1024, "bfloat16": 32 * 1024}
COPIES_FROM = (8, 0)  # cp.async


def form_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Form | None:
    """What such rows, of whole 16-byte pieces, are shared by; None: not this kernel's."""
    if row_bytes < LEAST_ROW[dtype] or capability < COPIES_FROM:
        return None
    can = [form for form in FORMS if form.blocks == 1 or capability == (9, 0)]
    fitting = [form for form in can if form.half_in_registers(row_bytes)] or [form for form in can[-1:] if form.holds(row_bytes)]
    if not fitting:
        return None
    # Few rows fill the GPU by more blocks a row, as long as no cluster waits for another's end.
    return max((form for form in fitting if form.all_at_once(rows, processors)), key=lambda form: form.blocks, default=fitting[0])
