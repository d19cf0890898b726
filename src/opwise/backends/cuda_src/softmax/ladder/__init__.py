"""Plans of the rungs of ladder.cu: one kernel per rung and dtype. Each rung adds one idea to the one before."""

from __future__ import annotations

from opwise.backends.cuda_src.plan import Plan
from opwise.backends.protocol import UnsupportedWorkload

# Threads of a block; of `registers`, most threads of a block and elements per thread: as in ladder.cu.
THREADS, MOST_THREADS, HELD = 128, 512, 32
MOST_OF_THREAD = 2**18  # columns; for a million, one thread's float32 sum exceeds the error bound
RUNGS = {
    "textbook": "a thread a row, three passes over it",
    "coalesced": "a block a row, neighbouring threads on neighbouring elements, three passes",
    "online": "a block a row, maximum and sum in one pass, another to write",
    "registers": "a block a row, read once and kept in registers, an element at a time",
}


def plan(rung: str, rows: int, columns: int, dtype: str) -> Plan:
    """The plan of a rung. Raises UnsupportedWorkload for rows too long for `textbook` or `registers`."""
    kernel = f"softmax_ladder_{rung}_{dtype}"
    if rung == "textbook":
        if columns > MOST_OF_THREAD:
            raise UnsupportedWorkload(f"softmax:textbook: rows of {columns} columns given, {MOST_OF_THREAD} are taken at most: a thread "
                                      "adds a row. Use softmax:coalesced, or the unnamed variant")  # fmt: skip
        return Plan(kernel, (-(-rows // THREADS), 1, 1), (THREADS, 1, 1))
    if rung != "registers":
        return Plan(kernel, (rows, 1, 1), (THREADS, 1, 1))
    if columns > MOST_THREADS * HELD:
        raise UnsupportedWorkload(f"softmax:registers: rows of {columns} columns given, {MOST_THREADS * HELD} are held at most: "
                                  "use softmax:online, or the unnamed variant")  # fmt: skip
    return Plan(kernel, (rows, 1, 1), (32 * -(-columns // (32 * HELD)), 1, 1))
