"""Softmax of short rows staged in shared memory: the tiling of the CUDA C++ and Numba kernels.

If a row is not a multiple of 16 bytes, rows are unaligned and a load from global memory moves only one element. The rows of a thread block
are contiguous, though, and together a multiple of 16 bytes, so the block copies them to shared memory by 16-byte loads. There, neighbouring
lanes of a warp share a row. The more elements a lane has, the fewer shuffles reduce the row.
"""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 128  # of a block
MULTIPLE = 8  # a block's rows are a multiple of this, so that the next block begins on 16 bytes
BYTES = 8 * 1024  # shared memory of a block, approximately
MOST_BYTES = 16 * 1024 + 512
# Elements of a tensor from which on it is bandwidth-bound. Below, the latency of staging is slower.
FROM = 2**16
LONGEST = 128  # columns; longer rows are as fast without staging
FORMS = ((1, 8), (1, 16), (1, 32), (2, 32), (4, 32))  # lanes of a row, elements of each
BANKS, WORD = 32, 4


@dataclass(frozen=True)
class Tile:
    """A block has `height` rows of `lanes` lanes of `elements` elements. turn: rows between successive groups of lanes in a warp."""

    lanes: int
    elements: int
    height: int
    turn: int


def tile_of(columns: int, size: int) -> Tile:
    """The tile for rows of `columns` elements, at most LONGEST, of `size` bytes."""
    lanes, elements = next(form for form in FORMS if columns <= form[0] * form[1])
    groups = max(THREADS // lanes, MULTIPLE)
    height = -(-max(BYTES // (columns * size), 1) // groups) * groups
    return Tile(lanes, elements, height, min(range(1, 16, 2), key=lambda turn: _conflicts(columns, size, lanes, turn)))


def takes(rows: int, columns: int, size: int) -> bool:
    """Whether staging is faster, for tensors that begin on 16 bytes."""
    return columns <= LONGEST and columns * size % 16 != 0 and rows * columns >= FROM


def _conflicts(columns: int, size: int, lanes: int, turn: int) -> int:
    """The degree of a warp's bank conflicts: the most different words that one load reads from one bank."""
    asked: dict[int, set[int]] = {}
    for thread in range(32):
        row = thread // lanes * turn % (THREADS // lanes)
        word = (row * columns + thread % lanes) * size // WORD
        asked.setdefault(word % BANKS, set()).add(word)
    return max(map(len, asked.values()))
