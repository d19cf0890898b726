"""What the rungs of ladder.cu are launched with: a kernel a rung and dtype. They differ in one idea each, and nothing is chosen."""

from __future__ import annotations

from opwise.backends.cuda_src.plan import Plan
from opwise.backends.protocol import UnsupportedWorkload

# Threads of a block; most of a block that holds a row, and elements a thread of it: as in ladder.cu.
THREADS, MOST_THREADS, HELD = 128, 512, 32
RUNGS = {
    "textbook": "a thread a row, three passes over it",
    "coalesced": "a block a row, neighbouring threads on neighbouring elements, three passes",
    "online": "a block a row, maximum and sum in one pass, another to write",
    "registers": "a block a row, read once and kept in registers, an element at a time",
}


def plan(rung: str, rows: int, columns: int, dtype: str) -> Plan:
    """Rows on that rung. Raises UnsupportedWorkload for rows that the registers of a block of `registers` do not hold."""
    kernel = f"softmax_ladder_{rung}_{dtype}"
    if rung == "textbook":
        return Plan(kernel, (-(-rows // THREADS), 1, 1), (THREADS, 1, 1))
    if rung != "registers":
        return Plan(kernel, (rows, 1, 1), (THREADS, 1, 1))
    if columns > MOST_THREADS * HELD:
        raise UnsupportedWorkload(f"softmax:registers: rows of {columns} columns given, {MOST_THREADS * HELD} are held at most: "
                                  "use softmax:online, or the unnamed variant")  # fmt: skip
    return Plan(kernel, (rows, 1, 1), (32 * -(-columns // (32 * HELD)), 1, 1))
