"""Which long rows softmax reads once, and how many blocks of how many threads share one: the plan of softmax_cluster.py."""

from __future__ import annotations

from typing import NamedTuple

# Not in use before it has been timed on a GPU against the kernels of softmax.py.
IN_USE = False
PIECES = 8  # of 16 bytes, in a thread's registers
MOST_SHARED = 224 * 1024  # of the 227 KiB of an sm_90 block
LINE = 128


class Form(NamedTuple):
    """blocks a row, threads a block, and whether rows come from a counter."""

    blocks: int
    threads: int
    queued: bool = False

    def shared_bytes(self, row_bytes: int) -> int:
        """Dynamic shared memory of a block, for what its registers do not hold of a row."""
        part = -(-row_bytes // (self.blocks * LINE)) * LINE
        return max(part - self.threads * PIECES * 16, 0)

    def holds(self, row_bytes: int) -> bool:
        return self.shared_bytes(row_bytes) <= MOST_SHARED


# The first whose registers hold half of the row, as cuda_src/plan.py has it: with the other half in shared memory a multiprocessor has 1024
# threads and 256 KiB on the way, in two to four blocks; only a row above 2 MiB leaves it one block.
FORMS = (Form(1, 256), Form(1, 512), Form(2, 512), Form(4, 512), Form(8, 512), Form(16, 512), Form(16, 1024))
LEAST_ROW = 32 * 1024  # bytes; rows up to there are softmax.py's, unpacked in registers, and up to 128 KiB in float32


def form_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Form | None:
    """What such rows, of whole 16-byte pieces, are shared by; None: not this kernel's."""
    if not IN_USE or row_bytes <= LEAST_ROW * (4 if dtype == "float32" else 1):
        return None
    most = 16 if capability == (9, 0) else 1
    holding = [form for form in FORMS if form.blocks <= most and row_bytes <= 2 * form.blocks * form.threads * PIECES * 16]
    if most == 16 and rows * most <= processors:  # too few rows to fill the GPU otherwise
        holding = [form for form in holding if form.blocks == most]
    form = next(iter(holding), FORMS[-1])
    if form.blocks > most or not form.holds(row_bytes):
        return None
    return form._replace(queued=form.blocks == 16 and rows > clusters_at_once(form, processors))


def clusters_at_once(form: Form, processors: int) -> int:
    """By the threads of a multiprocessor; the GPU may run fewer at once, whose rows the others then take."""
    return max(processors * (1024 // form.threads) // form.blocks, 1)
