"""Whether a product runs one of the kernels of matmul.cu for thin factors, which one, over what grid: B of 7 columns at most
(matmul_columns.cuh), in 16 bits of 24 (matmul_columns_mma.cuh), or A of 4 rows at most, in float32 of 8 (matmul_row.cuh).

Such a product takes the time of reading its other factor once. No tile does that as directly: columns of a tile that lie outside of C
take their time, and where C's rows do not begin on 16 bytes tiles are copied in small pieces. An estimate, in the unit of
Kernel.estimate, is the bytes over what an H200's memory gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import BYTES, Estimated, Share
from opwise.backends.cuda_src.plan import Plan

BYTES_A_US = 4.5e6  # of an H200
ROWS = 4  # of A, that threads of a columns' kernel have
THREADS = 256  # of its block
MOST_THREADS = 1024  # of a rows' kernel: of all its blocks of a multiprocessor
MMA, MMA_ROWS = "columns_mma", 16  # by mma.sync; of A, that a warp has at least
# Where it was the quickest in 16 bits: columns of B -> so many times 16 rows a multiprocessor, so many times them K at most.
MMA_FOR: dict[int, tuple[float, float]] = {n: (0.45, 2.5) for n in range(9, 16)} | {n: (0.45, 1.0) for n in (5, 6, 7, 16)}
MMA_FOR |= {8: (0.22, 9.5), 24: (0.7, 0.5)} | {n: (1.5, 1.0) for n in range(17, 24)}
# K up to which so many times the rows it was of 9 to 15 columns, from as many rows on: 2228x10664x14 takes 28.5 us by it, by others 34.7.
DEEP_FROM, DEEP = 2000, 8.0
# And of 5 to 16 columns, rows of A that begin on 4 bytes: rows from, and K up to so many times them. 4088x298x6 takes 3.4 us by it, by
# others 7.5 or more, in cuBLAS 5.3; 6000x1002x12 9.7, 12.8 and 12.0.
WORDS_FROM, WORDS_DEPTH, WORDS_COLUMNS = 800, 2.0, range(5, 17)
LONG_K = {16: 8192, 24: 1025}  # from which tiles are quicker for so many columns
LONG_FOR_EIGHT = 4096  # columns of B, K from which 16 rows a warp are quicker: 17960x4472x8 43.0 us, by 32 rows 49.0 or more
EVEN = 0.9  # of 24 columns, so much of what the busiest multiprocessor does the others do on average, or tiles are quicker
WARPS = 15  # a multiprocessor that is busy reading
WAVE = 32  # times the multiprocessors: rows of A from which a warp for 4 of them leaves none without work
SHORT = 2  # turns of 16 bytes that 8 lanes take, for each column of B: up to there they are quicker than a warp
MOST_COLUMNS, MOST_ROWS = 7, 4  # of B, of A
EIGHT, EIGHT_K_FROM = 8, 250  # rows of A in float32 at most, where B's rows begin anywhere and tiles are slower
EIGHT_FILLS = 0.6  # of the multiprocessors that blocks of 32 columns keep busy at the least
ROWS_FROM, ROWS_FROM_OF_ONE = 700, 300  # columns of B for which a rows' kernel has blocks enough; of one row
# Blocks of 8 columns a multiprocessor up to which they are the quickest: of one row of float32; of 16 bits, where pairs go; of others.
NARROW_OF_ONE, NARROW_FOR_PAIRS, NARROW = 0.5, 0.8, 1.0
OF_SIXTEEN = 0.6  # blocks of 16 columns a multiprocessor up to which they are, of one row of float32 where B's rows begin on 16 bytes


def memory_us(m: int, k: int, n: int, kind: str) -> float:
    """Of reading and writing each matrix once."""
    return BYTES[kind] * (m * k + k * n + m * n) / BYTES_A_US


def share_of_memory(m: int, k: int, n: int, kind: str) -> Share:
    """Of a product that takes the time of reading and writing each matrix once."""
    return Share(0.0, memory_us(m, k, n, kind) * UNIT[kind])


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel. `way`: columns, columns_mma or rows. `count`: of B's columns (by mma, at most), or of A's rows (8: at most).

    `granule`: bytes of an access; `granule_a`: by mma, of A. `sharing`: threads that share K; or of a rows' kernel blocks a multiprocessor,
    each with `wide` columns of B. `high`: by mma, a warp's rows of A in sixteens.
    """

    kind: str
    way: str
    count: int
    sharing: int
    granule: int
    wide: int = 0
    high: int = 0
    granule_a: int = 16
    speed: float = 4.0  # more than the memory gives: they are offered where they were the quickest
    fixed: float = 0.0

    @property
    def name(self) -> str:
        more = f"x{self.wide}" if self.wide else f"_h{self.high}" if self.high else ""
        granules = f"{self.granule}a{self.granule_a}" if self.granule_a < 16 else f"{self.granule}"
        return f"{self.way}_{self.count}{more}_{'b' if self.wide else 't'}{self.sharing}_v{granules}"

    @property
    def kernel(self) -> str:
        return f"matmul_{'float32' if self.kind == 'tfloat32' else self.kind}_{self.name}"  # TF32 is a permission: nothing to gain here

    @property
    def shared_bytes(self) -> int:
        """For ldmatrix: 32 rows of B for each step that is under way, as in matmul_columns_mma.cuh."""
        if self.way != MMA or self.granule < 16:
            return 0
        steps = 4 // self.high if self.count < 24 else 2
        return THREADS // 32 * steps * 64 * self.count

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        return share_of_memory(m, k, n, self.kind)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        if self.way == "rows":
            return Plan(self.kernel, (-(-n // self.wide), 1, 1), (MOST_THREADS // self.sharing, 1, 1))
        rows = MMA_ROWS * self.high if self.way == MMA else ROWS
        return Plan(self.kernel, (-(-m // (rows * THREADS // self.sharing)), 1, 1), (THREADS, 1, 1), self.shared_bytes)


def fitting(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int, mma: bool = True) -> tuple[Tile, ...]:
    """The kernel for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS), if there is one. alignment: bytes that divide the
    addresses. mma: does the GPU have mma.sync for 16 bits?"""
    size = BYTES[kind]
    if mma and size == 2 and alignment >= 16 and k % 8 == 0 and _by_mma(m, k, n, sm_count):
        by_mma = _columns_mma(kind, m, k, n, sm_count)
        blocks = by_mma.launch(m, k, n, sm_count).grid[0] / sm_count
        return (by_mma,) if n != 24 or blocks <= 1 or blocks >= EVEN * math.ceil(blocks) else ()
    words = alignment >= 4 and k % 2 == 0 and (alignment < 16 or k % 8 > 0)
    if mma and size == 2 and words and n in WORDS_COLUMNS and m >= WORDS_FROM and k <= WORDS_DEPTH * m:
        return (_columns_mma(kind, m, k, n, sm_count, granule_a=4),)
    if n <= MOST_COLUMNS:
        wide = alignment >= 16 and k * size % 16 == 0
        if n > 4 and not wide:
            return ()
        granule = 16 if wide else size
        pieces = k * size // granule
        sharing = 32 if m >= WAVE * sm_count else THREADS
        if n > 4 and pieces < sharing == 32:
            return ()  # lanes without work
        if wide and n <= 4 and sharing == 32 and pieces <= 8 * SHORT * n:
            sharing = 8
        return (Tile(kind, "columns", n, sharing, granule),)
    if m > MOST_ROWS:
        return _of_eight(m, k, n, kind, alignment, sm_count)
    return _of_few_rows(m, k, n, kind, alignment, sm_count)


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


def _by_mma(m: int, k: int, n: int, sm_count: int) -> bool:
    tiles, depth = MMA_FOR.get(n, (math.inf, 0))
    if 9 <= n <= 15 and m >= DEEP_FROM:
        depth = DEEP
    return m >= tiles * MMA_ROWS * sm_count and k <= depth * m and k < LONG_K.get(n, math.inf)


def _columns_mma(kind: str, m: int, k: int, n: int, sm_count: int, granule_a: int = 16) -> Tile:
    """Of 16 rows a warp where 32 would leave multiprocessors without work; of so few threads for a row as keep them all busy."""
    even = n % 8 == 0 and granule_a == 16
    high = 1 if even and m < (3 if n == 8 else 2) * MMA_ROWS * sm_count else 2
    warps = WARPS * (1 if even or n <= 8 else 2) * sm_count
    threads = next((t for t in (32, 64, 128) if m * t >= MMA_ROWS * high * 32 * warps and high > 1), THREADS)
    while granule_a < 16 and threads > 32 and m >= WAVE * sm_count and threads > k:
        threads //= 2  # warps without a step of K: 17274x90x11 takes 5.3 us by 64 threads, by 256 7.6
    if even and n == 8 and k >= LONG_FOR_EIGHT and threads < THREADS:
        high, threads = 1, THREADS
    return Tile(kind, MMA, -(-n // 8) * 8, threads, 16 if even else 2, high=high, granule_a=granule_a)
