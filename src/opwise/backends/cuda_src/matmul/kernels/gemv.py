"""Whether a product runs one of the kernels of portable.cu for thin factors, which one, over what grid: B of 7 columns at most
(gemv_columns.cuh), or A of 4 rows at most, in float32 of 8 (gemv_rows.cuh).

Such a product takes the time of reading its other factor once. No tile does that as directly: columns of a tile that lie outside of C
take their time, and where C's rows do not begin on 16 bytes tiles are copied in small pieces. An estimate is the
bytes over what an H200's memory gives, or MODELS'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT, Estimated, Share, by_multiply_adds, memory_us
from opwise.backends.cuda_src.plan import Plan

# Launch overhead (us) that the other families' estimates leave out. Of the rest this part counts, since they do not know of a C so narrow.
LAUNCH, PART = 2.5, 0.8
LEAST_ROWS = 17  # of A, from which on extra/skinny_n.py has kernels for 5 columns and more
ROWS = 4  # of A, that threads of a columns' kernel have
THREADS = 256  # of its block
MOST_THREADS = 1024  # of a rows' kernel: of all its blocks of a multiprocessor
# Threads that share a row's K, timed in tests/gemv_columns_times.py. 8 lanes, where each takes a piece of 16 bytes of A's row, and from so
# many rows a multiprocessor on of so many pieces; a warp for one turn of K from ONE_TURN rows on, for more from so many rows a
# multiprocessor a turn, and of 2 columns and more from WAVE a multiprocessor on, which leave no warp without work; else a block.
SHORT, SHORT_FROM, SHORT_TO = 8, 75, 100
ONE_TURN, A_TURN, WAVE = 100, 3.5, 32
MOST_COLUMNS, MOST_ROWS = 7, 4  # of B, of A
EIGHT, EIGHT_K_FROM = 8, 250  # rows of A in float32 at most, where B's rows begin anywhere and tiles are slower
EIGHT_FILLS = 0.6  # of the multiprocessors that blocks of 32 columns keep busy at the least
ROWS_FROM, ROWS_FROM_OF_ONE = 700, 300  # columns of B for which a rows' kernel has blocks enough; of one row
# Blocks of 8 columns a multiprocessor up to which they are the quickest: of one row of float32; of 16 bits, where pairs go; of others.
NARROW_OF_ONE, NARROW_FOR_PAIRS, NARROW = 0.5, 0.8, 1.0
# Of 5 to 7 columns in 16 bits and TF32, where skinny_n.py has kernels too: by bytes of an element and threads that share K, us of a
# launch, of each column of B for 16 bytes of a thread's K, of each block of a multiprocessor beyond its first, parts of what memory takes,
# and blocks that a multiprocessor has at once. Fitted to 64 times of H200s, 6 % off on average. By a warp, 16 bits were never quicker.
MODELS = {(2, 256): (2.07, 0.128, 0.0, 1.91, 1.0), (4, 256): (1.99, 0.105, 0.645, 1.41, 8.6), (4, 32): (2.42, 0.09, 0.309, 0.97, 1.35)}
# A block of 128 threads for 128 columns, which do not share K, is the quickest of a K up to ANY_WIDE; up to so many times such blocks a
# multiprocessor, but of one row of float32 on 16 bytes; and where those are so many, up to a K that was measured, by bytes of an element.
ANY_WIDE, A_WIDE, WIDE, LONGEST = 20, 16, 4.0, {2: 600, 4: 300}
OF_SIXTEEN = 0.6  # blocks of 16 columns a multiprocessor up to which they are, of one row of float32 where B's rows begin on 16 bytes


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel. `form`: columns or rows. `count`: of B's columns, or of A's rows (8: at most).

    `granule`: bytes of an access. `sharing`: threads that share K; or of a rows' kernel blocks a multiprocessor, each with `wide` columns
    of B. `modelled`: does its time go by MODELS? Else it is offered where it was the quickest, and is never to lose.
    """

    kind: str
    form: str
    count: int
    sharing: int
    granule: int
    wide: int = 0
    modelled: bool = False
    speed: float = 4.0  # more than the memory gives
    fixed: float = 0.0

    @property
    def name(self) -> str:
        return (
            f"gemv_{self.form}_{self.count}{f'x{self.wide}' if self.wide else ''}_{'b' if self.wide else 't'}{self.sharing}_v{self.granule}"
        )

    @property
    def kernel(self) -> str:
        return f"matmul_{by_multiply_adds(self.kind)}_{self.name}"  # by TF32 there is nothing to gain

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if not self.modelled:
            return Share.in_us(UNIT[self.kind], 0.0, memory_us(m, k, n, self.kind))
        beside, step, wave, memory, resident = MODELS[BYTES[self.kind], self.sharing]
        each, unit = self.launch(m, k, n, sm_count).grid[0] / sm_count, UNIT[self.kind] * PART
        steps = -(-k * BYTES[self.kind] // (16 * self.sharing)) * max(1, each / resident)
        begun = beside - LAUNCH + wave * max(math.ceil(each) - 1, 0)
        return Share.in_us(unit, begun, steps * step * n, memory * memory_us(m, k, n, self.kind))

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        if self.form == "rows":
            return Plan(self.kernel, (-(-n // self.wide), 1, 1), (MOST_THREADS // self.sharing, 1, 1))
        return Plan(self.kernel, (-(-m * self.sharing // (ROWS * THREADS)), 1, 1), (THREADS, 1, 1))


def fitting(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int, mma: bool = True) -> tuple[Tile, ...]:
    """The kernel for A (m, k) B (k, n) of that kind (a key of kernels.KERNELS), if there is one. alignment: bytes that divide the
    addresses. mma: does the GPU have mma.sync for 16 bits, and with it kernels for 5 columns and more?"""
    if n <= MOST_COLUMNS:
        return _of_few_columns(m, k, n, kind, alignment, sm_count, mma)
    if m > MOST_ROWS:
        return _of_eight(m, k, n, kind, alignment, sm_count)
    return _of_few_rows(m, k, n, kind, alignment, sm_count)


def _of_few_columns(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int, mma: bool) -> tuple[Tile, ...]:
    """Accesses as wide as A's rows allow, and so few threads for a row as leave none without work, but blocks enough."""
    size = BYTES[kind]
    wide = alignment >= 16 and k * size % 16 == 0
    if n > 4 and not wide:
        return ()
    granule = 16 if wide else size
    pieces = k * size // granule
    if n <= 4 or kind == "float32":
        return (Tile(kind, "columns", n, _sharing(m, pieces, n, wide, sm_count), granule),)
    sharing = 32 if m >= WAVE * sm_count else THREADS
    if pieces < sharing == 32:
        return ()  # lanes without work
    if not (mma and m >= LEAST_ROWS):
        return (Tile(kind, "columns", n, sharing, granule),)
    return (Tile(kind, "columns", n, sharing, granule, modelled=True, speed=1, fixed=1),) if (size, sharing) in MODELS else ()


def _sharing(m: int, pieces: int, n: int, wide: bool, sm_count: int) -> int:
    """Threads, for rows of so many pieces that one loads at once."""
    each = m / sm_count
    if wide and (pieces <= SHORT or (pieces <= SHORT_TO and each >= SHORT_FROM)):
        return 8
    turns = -(-pieces // (32 if wide else 4 * 32))  # of narrow ones several are under way
    one = turns == 1 and m >= ONE_TURN
    return 32 if one or each >= A_TURN * turns or (n > 1 and each >= WAVE) else THREADS


def _of_few_rows(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int) -> tuple[Tile, ...]:
    """Of up to 4 rows: blocks as narrow as one a multiprocessor allows, or several of the widest; accesses as wide as B's rows allow."""
    size = BYTES[kind]
    aligned = alignment >= 16 and n * size % 16 == 0
    straight = aligned and k * size % 16 == 0  # so that the copy engine takes both factors

    blocks = partial(_blocks, n, sm_count)
    if size == 4 and aligned and m == 1 and blocks(16) <= OF_SIXTEEN:
        return (Tile(kind, "rows", 1, 1, 16, 8 if blocks(8) <= NARROW_OF_ONE else 16),)
    if straight and (size == 2 or (m > 1 and (blocks(32) <= 1 or (kind == "tfloat32" and blocks(64) <= 2)))):
        return ()  # tiles are as quick
    several = m > 1 or size == 2 or not aligned
    if k <= ANY_WIDE or (several and (k <= A_WIDE * blocks(128) or (blocks(128) > WIDE and k <= LONGEST[size]))):
        return (Tile(kind, "rows", m, 8, 2 * size if alignment >= 2 * size and n % 2 == 0 else size, 128),)
    if size == 4 and aligned and (m == 1 or blocks(16) > 1):
        wide = next((wide for wide, most in ((32, 1), (64, 4)) if blocks(wide) <= most), 128)
        return (Tile(kind, "rows", m, 4 if wide == 128 else _at_once(blocks(wide)), 16, wide),)
    if n < (ROWS_FROM if m > 1 else ROWS_FROM_OF_ONE):
        return ()
    granule = 4 if alignment >= 4 and n * size % 4 == 0 else size
    if blocks(8) <= (NARROW_OF_ONE if m == 1 and size == 4 else NARROW_FOR_PAIRS if granule > size else NARROW):
        return (Tile(kind, "rows", m, 1, size, 8),)
    wide = next((wide for wide in (16, 32, 64) if blocks(wide) <= 1 and (wide > 16 or granule == 4)), 128)
    return (Tile(kind, "rows", m, _at_once(blocks(wide)), granule, wide),)


def _of_eight(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int) -> tuple[Tile, ...]:
    """Of 5 to 8 rows: blocks as narrow as one a multiprocessor allows, or several; two columns a thread where that is quicker."""
    anywhere = alignment < 16 or n * BYTES[kind] % 16 > 0
    narrow, wide, widest = (_blocks(n, sm_count, columns) for columns in (32, 64, 128))
    if kind != "float32" or m > EIGHT or k < EIGHT_K_FROM or not anywhere or narrow < EIGHT_FILLS:
        return ()
    two = alignment >= 8 and n % 2 == 0
    if narrow <= 1:
        return (Tile(kind, "rows", EIGHT, 1, 8 if two else 4, 32),)
    if wide <= 1:
        return (Tile(kind, "rows", EIGHT, 1, 4, 64),)
    if two and wide <= 2:
        return (Tile(kind, "rows", EIGHT, 2, 8, 64),)
    return (Tile(kind, "rows", EIGHT, _at_once(widest), 8 if two else 4, 128),)


def _blocks(n: int, sm_count: int, wide: int) -> float:
    """Of a multiprocessor, with `wide` columns each."""
    return -(-n // wide) / sm_count


def _at_once(blocks: float) -> int:
    """Blocks that a multiprocessor has at once of so many: all, up to 4 (4x511x50001 float32, of 3: 29.9 us, by two at once 34.4)."""
    return 1 if blocks <= 1 else 4 if 2 < blocks <= 4 else 2
