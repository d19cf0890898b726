"""Whether a product runs a kernel of matmul_held.cuh, over what grid: on Hopper, 16 bits, a B of few columns, all of which a block holds.

Such a product takes the time of reading A once, if enough of A is under way at any time: with the copy engine's ring, some 100 KB a
multiprocessor. Threads that load into registers have a third of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from opwise.backends.cuda_src.matmul_kernel import SHARED_LIMIT, WGMMA_ON
from opwise.backends.cuda_src.matmul_model import Estimated, Share
from opwise.backends.cuda_src.matmul_thin import share_of_memory
from opwise.backends.cuda_src.plan import Matrix, Plan

SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
DEPTH, WARP_ROWS, MOST_WARPS = 64, 16, 16  # K of a slot; rows of A of a warp that multiplies, and how many of these a block has
SHARED, LEAST_RING = SHARED_LIMIT[WGMMA_ON] * 1024, 48 * 1024  # bytes a block may have, and of the ring at the least
LEAST_STAGES, MOST_STAGES, MOST_SHARING = 4, 32, 4  # slots; warps that share K: more take longer to add up than they gain


class Span(NamedTuple):
    """Products of `rows` of A and more, K of `k` and more, up to `most_rows` and `most_k`."""

    rows: int
    k: int = 1
    most_rows: int = SIZE_LIMIT
    most_k: int = SIZE_LIMIT

    def holds(self, m: int, k: int) -> bool:
        return self.rows <= m <= self.most_rows and self.k <= k <= self.most_k


# Columns of B -> where it was the quickest, timed in tests/test_matmul_held.py: of 8 columns where K is long (8192x8192 takes 34.8 us, by
# `columns_mma` 37.3; 8448x2056 11.9 and 11.4). Of 16 columns `columns_mma` is up to 8448 rows, 64 for each multiprocessor (8192x1024 takes
# 7.01 us, with B held 7.47; 9000x512 6.02 and 5.52), and of 24 up to 2112, 16 for each. Rows of 32 or 48 columns fall on a quarter or half
# of the banks by eights: 65536x512x32 took 26.5 us, by tiles 20.1.
QUICKEST = {
    8: (Span(8449, 4000), Span(5700, 8000)),
    16: (Span(8449, 256), Span(5000, 2048), Span(100_000, 128), Span(8449, 80, 40_000)),
    24: (Span(3000), Span(2113, most_k=1024)),
    40: (Span(2000), Span(1000, most_k=512)),
    56: (Span(4096), Span(1000, most_k=512)),
}


class Ring(NamedTuple):
    """Slots, and warps that share the K of 16 rows. Where the ring goes round, a slot is always the same warps', so that none can mistake
    one round for another."""

    stages: int
    sharing: int


@dataclass(frozen=True)
class Tile(Estimated):
    """A kernel: `columns` of B. It has one block a multiprocessor, and its tiles as many rows as make whole turns of these."""

    kind: str
    columns: int
    speed: float = 4.0  # more than the memory gives: it is offered where it was the quickest
    fixed: float = 0.0

    @property
    def name(self) -> str:
        return f"held_{self.columns}"

    @property
    def kernel(self) -> str:
        return f"matmul_wgmma_{self.kind}_{self.name}"

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        return share_of_memory(m, k, n, self.kind)

    def beside(self, k: int, rows: int) -> int:
        """Bytes of shared memory without the ring: all of B, C's rows on their way, and the way to a multiple of 1024."""
        return 2 * self.columns * (-(-k // DEPTH) * DEPTH + rows) + 1024

    def rows(self, m: int, k: int, sm_count: int) -> int:
        """Of a tile: those of A spread evenly over the multiprocessors, in as few turns as a block's warps and LEAST_STAGES slots allow."""
        each = LEAST_STAGES * (2 * DEPTH * WARP_ROWS) + 2 * WARP_ROWS * self.columns
        most = min((SHARED - self.beside(k, 0) - 16 * MOST_STAGES) // each, MOST_WARPS)
        turns = -(-m // (WARP_ROWS * most * sm_count))
        return -(-m // (WARP_ROWS * turns * sm_count)) * WARP_ROWS

    def ring(self, k: int, rows: int, turns: int) -> Ring:
        """A slot has two barriers, whose init takes its time: no more of them than the block has steps."""
        steps, room = -(-k // DEPTH), (SHARED - self.beside(k, rows)) // (2 * DEPTH * rows + 16)
        stages = min(room, MOST_STAGES, steps * turns)
        for sharing in range(min(MOST_WARPS * WARP_ROWS // rows, steps // 2, MOST_SHARING) if turns == 1 else 1, 1, -1):
            whole = stages if stages == steps else stages // sharing * sharing
            if 4 * whole >= 3 * stages and (sharing - 1) * self.columns // 2 <= WARP_ROWS * whole:  # sums meet in the ring
                return Ring(whole, sharing)
        return Ring(stages, 1)

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C."""
        rows = self.rows(m, k, sm_count)
        tiles, sixteens = -(-m // rows), rows // WARP_ROWS
        stages, sharing = self.ring(k, rows, -(-tiles // sm_count))
        shared, threads = stages * (2 * DEPTH * rows + 16) + self.beside(k, rows), 32 * (sixteens * sharing + 1)
        return Plan(self.kernel, (min(tiles, sm_count), 1, 1), (threads, 1, 1), shared, matrices=(Matrix(m, k, rows, DEPTH),),
                    shares=(stages, sharing, sixteens, tiles))  # fmt: skip


def fitting(m: int, k: int, n: int, kind: str, sm_count: int) -> tuple[Tile, ...]:
    """The kernel for A (m, k) B (k, n) of 16 bits on Hopper, all addresses and rows on 16 bytes, if there is one."""
    tile, quick = Tile(kind, n), any(span.holds(m, k) for span in QUICKEST.get(n, ()))
    return (tile,) if quick and SHARED - tile.beside(k, 0) >= LEAST_RING else ()
