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

    @property
    def phases(self) -> int:
        """Blocks of a multiprocessor, 1024 threads of them."""
        return 1024 // self.threads

    def apart(self, rows: int, row_bytes: int, processors: int) -> tuple[int, int, int]:
        """How the clusters begin that share multiprocessors with others from the start: how many these are, how many of them begin
        together, clock cycles from those to the next. None waits unless there are more behind them."""
        at_once = processors * self.phases // self.blocks
        if self.blocks == 1 or self.phases == 1 or rows <= at_once:
            return 0, 1, 0
        part = row_bytes // self.blocks  # all together a multiprocessor's blocks read 16.5 bytes a cycle
        if self.phases == 2:
            return at_once, 1, part // 33
        wave = at_once * 15 // 16  # not every multiprocessor finds a place in a cluster
        return wave, -(-wave // self.phases), part // 17

    def half_in_registers(self, row_bytes: int) -> bool:
        return row_bytes <= 2 * self.blocks * self.threads * PIECES * 16

    def all_at_once(self, rows: int, processors: int) -> bool:
        """Do the clusters of so many rows run together? They keep within groups of multiprocessors, which leaves one in eight over."""
        return rows * self.blocks * 8 <= processors * self.phases * 7


# The first whose registers hold half of the row: with the other half in shared memory a multiprocessor has 1024 threads and 256 KiB on the
# way, in two to four blocks; only a row above 2 MiB leaves it one block. Those of 16 blocks have few rows, or such as softmax_stream.py's
# blocks together have no room for: softmax_streams.py is asked first.
FORMS = (Form(1, 256), Form(1, 512), Form(2, 512), Form(4, 512), Form(8, 512), Form(16, 192), Form(16, 512), Form(16, 1024))
# Many rows of more than so many bytes: five small blocks a multiprocessor, that load, meet and store past one another.
SMALL = {Form(2, 192): 112 * 1024, Form(4, 192): 192 * 1024, Form(8, 192): 256 * 1024, Form(16, 192): 512 * 1024}
SMALL_PART = 64 * 1024  # bytes of a block's part at most
SMALL_WAVES = 3  # times as many as run at once, at least: what fewer leave idle at their end costs more than they gain
# Bytes of the shortest row; softmax.py's kernels unpack shorter ones in registers, in float32 up to 96 KiB.
LEAST_ROW = {"float32": 96 * 1024 + 16, "float16": 32 * 1024, "bfloat16": 32 * 1024}
# In 16 bits rows from here on too, if they are enough for all blocks that run at once: 12288 columns take 131 us by FORMS[0] and 154 by a
# block of 512 threads that unpacks them.
LEAST_OF_MANY = 16 * 1024 + 16
COPIES_FROM = (8, 0)  # cp.async


def form_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Form | None:
    """What such rows, of whole 16-byte pieces, are shared by; None: not this kernel's."""
    if capability < COPIES_FROM:
        return None
    if row_bytes < LEAST_ROW[dtype]:
        many = dtype != "float32" and row_bytes >= LEAST_OF_MANY and rows >= processors * FORMS[0].phases
        return FORMS[0] if many else None
    for form, least in SMALL.items() if capability == (9, 0) else ():
        if least < row_bytes <= form.blocks * SMALL_PART and rows * form.blocks >= SMALL_WAVES * processors * form.phases:
            return form
    can = [form for form in FORMS if form.blocks == 1 or capability == (9, 0)]
    fitting = [form for form in can if form.half_in_registers(row_bytes)] or [form for form in can[-1:] if form.holds(row_bytes)]
    if not fitting:
        return None
    # Few rows fill the GPU by more blocks a row, as long as no cluster waits for another's end.
    return max((form for form in fitting if form.all_at_once(rows, processors)), key=lambda form: form.blocks, default=fitting[0])
