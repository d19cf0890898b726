"""Short rows that pass through shared memory: how the kernels of CUDA C++ and of Numba share them out.

Rows of no whole number of 16-byte pieces begin anywhere, so that a thread that reads them from global memory moves one element an
instruction. The rows of a block lie one behind the other: together they are whole pieces. In shared memory a row has some neighbouring
lanes of a warp, the more elements each the fewer instructions reduce them.
"""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 128  # of a block
MULTIPLE = 8  # of a block's rows, so that the next block begins on 16 bytes
BYTES = 8 * 1024  # of a block, about
MOST_BYTES = 16 * 1024 + 512
# Elements of a tensor from which on its time is that of its bytes: the way through shared memory makes a small one wait.
FROM = 2**16
LONGEST = 128  # columns; a lane's 32 elements of longer rows need no help
FORMS = ((1, 8), (1, 16), (1, 32), (2, 32), (4, 32))  # lanes of a row, elements of each
BANKS, WORD = 32, 4


@dataclass(frozen=True)
class Tile:
    """Of a block: `height` rows. Its groups of `lanes` begin `turn` rows apart, so that a warp's meet in few banks of shared memory."""

    lanes: int
    elements: int
    height: int
    turn: int


def tile_of(columns: int, size: int) -> Tile:
    """Of rows of at most LONGEST elements of `size` bytes."""
    lanes, elements = next(form for form in FORMS if columns <= form[0] * form[1])
    groups = max(THREADS // lanes, MULTIPLE)
    height = -(-max(BYTES // (columns * size), 1) // groups) * groups
    return Tile(lanes, elements, height, min(range(1, 16, 2), key=lambda turn: _conflicts(columns, size, lanes, turn)))


def takes(rows: int, columns: int, size: int) -> bool:
    """Are rows of tensors that begin on 16 bytes better off this way?"""
    return columns <= LONGEST and columns * size % 16 != 0 and rows * columns >= FROM


def _conflicts(columns: int, size: int, lanes: int, turn: int) -> int:
    """Words that a warp's lanes ask one bank for at once, the most of any bank."""
    asked: dict[int, set[int]] = {}
    for thread in range(32):
        row = thread // lanes * turn % (THREADS // lanes)
        word = (row * columns + thread % lanes) * size // WORD
        asked.setdefault(word % BANKS, set()).add(word)
    return max(map(len, asked.values()))
