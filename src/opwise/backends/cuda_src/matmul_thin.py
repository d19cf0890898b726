"""Whether a product runs one of the kernels of matmul.cu for thin factors, which one, over what grid: B of 7 columns at most
(matmul_columns.cuh), or A of 4 rows at most (matmul_row.cuh).

Such a product takes the time of reading its other factor once. No tile does that as directly: columns of a tile that lie outside of C
take their time, and where C's rows do not begin on 16 bytes tiles are copied in small pieces. An estimate, in the unit of
Kernel.estimate, is the bytes over what an H200's memory gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_model import Estimated, Share
from opwise.backends.cuda_src.plan import Plan

BYTES = {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2}  # of an element
BYTES_A_US = 4.5e6  # of an H200
ROWS = 4  # of A, that threads of a columns' kernel have
THREADS = 256  # of its block
WAVE = 32  # times the multiprocessors: rows of A from which a warp for 4 of them leaves none without work
SHORT = 2  # turns of 16 bytes that 8 lanes take, for each column of B: up to there they are quicker than a warp
MOST_COLUMNS, MOST_ROWS = 7, 4  # of B, of A
ROWS_FROM = 700  # columns of B for which a rows' kernel has blocks enough
EVEN_TO = 8192  # columns of B, one row of A, in pieces of 16 bytes: beyond, clusters' tiles are as quick
TWICE_TO = 2  # rows of A for which two blocks of 1024 threads fit a multiprocessor; where there is but one, more loads of it are under way


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel. `way`: columns or rows. `count`: of B's columns, or of A's rows. `granule`: bytes of an access. `sharing`: threads that
    share K; or of a rows' kernel blocks a multiprocessor, each with `wide` columns of B."""

    kind: str
    way: str
    count: int
    sharing: int
    granule: int
    wide: int = 0
    speed: float = 4.0  # more than the memory gives: they are offered where they were the quickest
    fixed: float = 0.0

    @property
    def name(self) -> str:
        wide = f"x{self.wide}" if self.wide else ""
        return f"{self.way}_{self.count}{wide}_{'b' if wide else 't'}{self.sharing}_v{self.granule}"

    @property
    def kernel(self) -> str:
        return f"matmul_{'float32' if self.kind == 'tfloat32' else self.kind}_{self.name}"  # TF32 is a permission: nothing to gain here

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        us = BYTES[self.kind] * (m * k + k * n + m * n) / BYTES_A_US
        return Share(0.0, us * UNIT[self.kind])


def fitting(m: int, k: int, n: int, kind: str, alignment: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernel for A (m, k) B (k, n) of that kind (a key of matmul_kernels.KERNELS), if there is one. alignment: bytes that divide the
    addresses."""
    size = BYTES[kind]
    if n <= MOST_COLUMNS:
        wide = alignment >= 16 and k * size % 16 == 0
        if n > 4 and not wide:
            return ()
        granule = 16 if wide else size
        pieces = k * size // granule
        sharing = 32 if m >= WAVE * sm_count else THREADS
        if wide and n <= 4 and sharing == 32 and pieces <= 8 * SHORT * n:
            sharing = 8
        return (Tile(kind, "columns", n, sharing, granule),)
    if m > MOST_ROWS:
        return ()
    blocks = -(-n // 32)
    if alignment < 16 or n * size % 16:
        if n < ROWS_FROM:
            return ()
        if blocks <= sm_count // 2:
            return (Tile(kind, "rows", m, 1, size, 8),)
        return (Tile(kind, "rows", m, 2 if m <= TWICE_TO and blocks > sm_count else 1, size, 32),)
    if m == 1 and size == 4 and n <= EVEN_TO:
        return (Tile(kind, "rows", 1, 1, 16, next((wide for wide in (8, 16) if n <= wide * sm_count // 2), 32)),)
    return ()


def launch(tile: Tile, m: int, n: int) -> Plan:
    """The kernel over all of C."""
    if tile.way == "rows":
        return Plan(tile.kernel, (-(-n // tile.wide), 1, 1), (1024, 1, 1))
    return Plan(tile.kernel, (-(-m // (ROWS * THREADS // tile.sharing)), 1, 1), (THREADS, 1, 1))
