"""Whether a float32 product runs a kernel of ffma.cu, which one, over what grid: on Hopper, rows that begin anywhere, few tiles.

An estimate is the time of the SM with most tiles: for each, K by whole steps of its warps, and what lies between one tile and the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from opwise.backends.cuda_src.matmul.cost import UNIT, Share, Tiled, clusters_at_once
from opwise.backends.cuda_src.plan import FLOAT32, Matrix, Plan

SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
ROWS_FROM = COLUMNS_FROM = 17  # of C: what has fewer is limited by memory, and has kernels for that
# Of K, and that of a block; or tiles a multiprocessor: at least, since beginnings and ends are most of anything shorter.
LONG, LONG_OF_BLOCK, MANY = 512, 256, 2
# And where rows begin on 16 bytes: 832x368x296 takes 12.1 us, by others 14.0, 880x352x440 12.2 and 15.1; 512x256x2048 18.4 and 17.8.
# Fewer tiles are slower than small ones of other kernels: 256x448x576, 36 of them, takes 13.3 us and 8.2.
EVEN_LONG, FEW_EVEN = 320, 0.45
WORDS_LONG = 700  # of K that no cluster shares, where B comes by words: measured from 701 on
DEPTH = 16  # elements of K in a step
CLASSES = 4  # of rows of 4-byte elements that begin anywhere
WIDER = 4  # elements of a box of such rows
# Of K that the grid shares where rows begin on 16 bytes (of others from WORDS_LONG on), and of C: measured from there on.
SHARES_LONG, SHARES_SIDE = 700, 33
WAITING_US = 4.0  # of a block for the one before it that has the same tile, where all end at once
MEETING_US, OVERLAP_US = 1.9, 3.0  # of a cluster's sums; of what a tile costs beside, what a launch costs anyway


@dataclass(frozen=True)
class Tile(Tiled):
    """A kernel's tile of C, what it is launched with, and what its choice goes by.

    `classes`: 0 for rows that begin on 16 bytes, as A and B do. `thread`: rows and columns of a thread. `split`: blocks of a cluster that
    share K. `resident`: blocks that a multiprocessor holds; `alone`: that keep it busy. `stages`: of a warp. `speed`: multiply-adds of a
    busy SM, relative to the fastest kernel of portable.cu for float32; `fixed`: cost of a tile beside, as elements of K. `words`: B, whose
    rows begin anywhere, is copied word by word. `shares`: blocks of the whole grid share K, as ffma_stream_k.cuh has it, and
    that between so many tiles a multiprocessor, where it was measured.
    """

    classes: int
    rows: int
    columns: int
    thread: tuple[int, int]
    warps: int
    split: int
    resident: int
    stages: int
    speed: float
    fixed: int
    alone: float = 1.0
    words: bool = False
    shares: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        rows = "words" if self.words else "residue" if self.classes else "aligned"
        return f"ffma_{rows}_{self.rows}x{self.columns}_w{self.warps}_{'stream_k' if self.shares else f's{self.split}'}"

    @property
    def kernel(self) -> str:
        return f"matmul_ffma_float32_{self.name.removeprefix('ffma_')}"

    @property
    def granule(self) -> int:
        return 4 if self.classes else 16

    @property
    def shared_bytes(self) -> int:
        """A ring a warp, a barrier a stage of each, the way to a multiple of 1024. Boxes begin on 128 bytes."""
        wider, boxes = 4 * WIDER if self.classes else 0, max(self.classes, 1)
        a, b = self.rows * (4 * DEPTH + wider), DEPTH * (4 * self.columns + (0 if self.words else wider))
        filled = sum(-(-part // (128 * boxes)) * 128 * boxes for part in (a, b))
        stage = filled if self.classes else -(-filled // 1024) * 1024
        return self.warps * self.stages * (stage + 8) + 1024

    def takes(self, m: int, k: int, n: int, granule: int, sm_count: int) -> bool:
        fits = granule >= 16 if self.granule == 16 else 4 <= granule < 16
        if self.shares:
            few, many = self.shares
            long = k >= (WORDS_LONG if self.words else SHARES_LONG)
            worth = long and min(m, n) >= SHARES_SIDE and few <= self.tiles(m, n) / sm_count <= many
        elif self.split > 1:
            worth = k >= max(LONG, LONG_OF_BLOCK * self.split) and self.tiles(m, n) <= self.at_once(sm_count)
        else:
            k_from = LONG if self.classes else EVEN_LONG
            worth = k >= WORDS_LONG if self.words else k >= k_from or (self.classes > 0 and self.tiles(m, n) >= MANY * sm_count)
            worth = worth and (self.classes > 0 or k >= LONG or self.tiles(m, n) >= FEW_EVEN * sm_count)
        return fits and worth and max(m, k, n) <= SIZE_LIMIT and m >= ROWS_FROM and n >= COLUMNS_FROM

    def at_once(self, sm_count: int) -> int:
        """Tiles that the GPU has in the making with a block a multiprocessor."""
        return clusters_at_once(self.split, sm_count)

    def turns(self, m: int, n: int, sm_count: int) -> float:
        """Tiles of the multiprocessor with most, as if they took turns: blocks that are resident together end together, and what is left
        goes to multiprocessors in as many again."""
        tiles, at_once = self.tiles(m, n), self.at_once(sm_count)
        return self.alone if tiles <= at_once else -(-tiles // (at_once * self.resident)) * self.resident

    def rounds(self, k: int) -> int:
        """Steps of K of every warp, of a tile."""
        return -(-k // (DEPTH * self.warps))

    def blocks(self, m: int, k: int, n: int, sm_count: int) -> int:
        """Of the grid: a tile's, a cluster's of each tile; or as many as run at once, none without a round, each tile's the same where that
        leaves few multiprocessors out."""
        tiles, at_once = self.tiles(m, n), self.resident * sm_count
        if not self.shares:
            return tiles * self.split
        even = at_once // tiles * tiles
        return min(even if 10 * even >= 9 * at_once else at_once, tiles * self.rounds(k))

    def share(self, m: int, k: int, n: int, sm_count: int) -> Share:
        if self.shares:
            tiles, blocks, area = self.tiles(m, n), self.blocks(m, k, n, sm_count), self.resident * self.rows * self.columns
            depth = -(-tiles * self.rounds(k) // blocks) * self.warps * DEPTH
            beside = WAITING_US * max(blocks / tiles - 1, 0) - OVERLAP_US
            return Share(area * (tiles / blocks + 1), area * depth, beside * UNIT["float32"])
        depth = max(-(-k // (DEPTH * self.split)), self.warps) * DEPTH
        each = self.turns(m, n, sm_count) * self.rows * self.columns
        beside = (MEETING_US if self.split > 1 else 0.0) - OVERLAP_US
        return Share(each, each * depth, beside * UNIT["float32"])

    def launch(self, m: int, k: int, n: int, sm_count: int) -> Plan:
        """The kernel over all of C: a block, or a cluster, a tile; or blocks of the whole grid, each with a flag for the next."""
        parts, wider = max(self.classes, 1), WIDER if self.classes else 0
        a = Matrix(m, k, self.rows // parts, DEPTH + wider, FLOAT32, self.classes)
        b = Matrix(k, n, DEPTH // parts, self.columns + wider, FLOAT32, self.classes)
        blocks, maps = self.blocks(m, k, n, sm_count), (a,) if self.words else (a, b)
        flags = 4 * self.resident * sm_count if self.shares else 0  # whatever the blocks' number: one shelf of scratch for all
        return Plan(
            self.kernel, (blocks, 1, 1), (32 * self.warps, 1, 1), self.shared_bytes, flags, maps, flags, cooperative=self.shares is not None
        )


# Fitted to what an H200 measured of 60 products (docs/lab.md), within 6 % of most.
#   classes rows columns thread warps split resident stages speed fixed alone words shares
ROWS = (
    (0, 64, 64, (8, 16), 8, 1, 1, 3, 1.44, 183),
    (CLASSES, 64, 64, (8, 16), 8, 1, 1, 2, 1.29, 180),
    (CLASSES, 64, 64, (8, 16), 2, 1, 4, 2, 1.46, 105, 2.4),
    (CLASSES, 64, 80, (8, 20), 8, 3, 1, 2, 1.33, 230, 1.0, True),
    (CLASSES, 48, 96, (12, 12), 8, 8, 1, 2, 1.33, 190, 1.0, True),
    (0, 64, 80, (8, 20), 8, 8, 1, 3, 1.49, 155),
    (0, 64, 80, (8, 20), 8, 2, 1, 3, 1.475, 274),
    (0, 64, 64, (8, 16), 8, 4, 1, 3, 1.423, 176),
    (0, 64, 64, (8, 16), 4, 1, 2, 3, 1.473, 127, 1.0, False, (0.2, 4.4)),
    (CLASSES, 64, 80, (8, 20), 4, 1, 2, 2, 1.38, 135, 1.0, True, (0.3, 16)),
    (CLASSES, 48, 96, (12, 12), 4, 1, 2, 2, 1.33, 130, 1.0, True, (0.3, 16)),
)
TILES = tuple(Tile(*row) for row in ROWS)


def fitting(m: int, k: int, n: int, granule: int, sm_count: int) -> tuple[Tile, ...]:
    """The kernels here for float32's A (m, k) B (k, n) on Hopper. granule: bytes that divide the addresses and rows."""
    return tuple(tile for tile in TILES if tile.takes(m, k, n, granule, sm_count))
