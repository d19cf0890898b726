"""Which kernel a softmax gets, and which others support it: those are measured by `opwise tune` and named in its tables.

A name is the kernel's: warp, short, block256 (threads), long, cluster2x192 (blocks a row, threads a block), stream.
"""

from __future__ import annotations

from typing import NamedTuple

from opwise.backends import staged_rows
from opwise.backends.numba_cuda.common import ptx
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "numba_cuda/softmax"
WARP, LINE, KIB = 32, 128, 1024
IN_REGISTERS = 32  # float32 values of a row that one thread of registers.py holds
PIECES = 8  # of 16 bytes, in registers of a thread of cluster.py
MOST_SHARED = 224 * KIB  # of the 227 KiB of an sm_90 block
SM90, COPIES_FROM = (9, 0), (8, 0)  # clusters and TMA; cp.async


class Registers(NamedTuple):
    """A row in the registers of so many threads: lanes of a warp, or a block. 0: in nobody's, it is read twice."""

    threads: int


class Form(NamedTuple):
    """Blocks a row, threads a block, for cluster.py."""

    blocks: int
    threads: int

    @property
    def ctas_per_sm(self) -> int:
        return 1024 // self.threads

    @property
    def in_registers(self) -> int:
        """Bytes of a block's part that its registers hold."""
        return self.threads * PIECES * 16

    @property
    def most_shared(self) -> int:
        """Bytes of dynamic shared memory that a launch may ask for. One block has no more than its registers hold: any GPU has those."""
        return self.in_registers if self.blocks == 1 else MOST_SHARED

    def shared_bytes(self, row_bytes: int) -> int:
        """Dynamic shared memory of a block, for what its registers do not hold of a row."""
        return max(-(-row_bytes // (self.blocks * LINE)) * LINE - self.in_registers, 0)

    def apart(self, rows: int, row_bytes: int, processors: int) -> tuple[int, int, int]:
        """Clusters that share SMs begin out of phase: how many clusters these are, how many begin together, clock cycles from those to the
        next. None waits unless there are more behind them."""
        at_once = processors * self.ctas_per_sm // self.blocks
        if self.blocks == 1 or self.ctas_per_sm == 1 or rows <= at_once:
            return 0, 1, 0
        part = row_bytes // self.blocks  # all together an SM's blocks read 16.5 bytes a cycle
        if self.ctas_per_sm == 2:
            return at_once, 1, part // 33
        wave = at_once * 15 // 16  # not every SM finds a place in a cluster
        return wave, -(-wave // self.ctas_per_sm), part // 17


class Stream(NamedTuple):
    """A block of stream.py, one an SM: warps that compute, 16-byte pieces of a row a lane, stages, turns between a row's sum and stores."""

    warps: int
    pieces: int
    stages: int
    lag: int

    @property
    def threads(self) -> int:
        return 32 * (self.warps + 2)  # two warps exchange pairs with other blocks

    @property
    def stage_bytes(self) -> int:
        """Of one warp."""
        return 32 * 16 * self.pieces

    @property
    def shared_bytes(self) -> int:
        """Stages, an mbarrier each; of rows two mbarriers, their results and the warps' pairs; the way to a multiple of LINE."""
        return self.warps * self.stages * (self.stage_bytes + 8) + self.rows_kept * (2 * 8 + 8 + self.warps * 8) + LINE

    @property
    def rows_kept(self) -> int:
        """Rows whose pairs a block keeps for itself, a power of two: more than the lag."""
        return 1 << self.lag.bit_length()

    @property
    def pairs_kept(self) -> int:
        """Rows whose pairs scratch has room for, a power of two: more than 2 lag + 1."""
        return 1 << (2 * self.lag + 1).bit_length()


class Share(NamedTuple):
    """`blocks` of a group share a row, each warp with `part` 16-byte pieces but the last ones; `groups` run at once."""

    blocks: int
    groups: int
    part: int

    def scratch_bytes(self, stream: Stream) -> int:
        return 16 + 16 * stream.pairs_kept * self.blocks * self.groups  # a counter, and pairs


Way = Registers | staged_rows.Tile | Form | Share
LONGEST_OF_WARP, LONGEST_SHORT = 1024, 64  # columns
STREAM = Stream(16, 4, 7, 5)
ZEROED = 64 * KIB  # the most scratch of a stream's launch, of which nothing is left behind
LEAST_STREAMED = 2048 * KIB + 16  # bytes of a row: a cluster's blocks take shorter ones as fast or faster
# The first whose registers hold half of the row: with the other half in shared memory an SM has 1024 threads and 256 KiB on the way.
FORMS = (Form(1, 256), Form(1, 512), Form(2, 512), Form(4, 512), Form(8, 512), Form(16, 192), Form(16, 512), Form(16, 1024))
# Form -> bytes that a row must exceed, for many rows: five blocks an SM, which overlap. Below: most bytes of a block, least waves.
SMALL = {Form(2, 192): 112 * KIB, Form(4, 192): 192 * KIB, Form(8, 192): 256 * KIB, Form(16, 192): 512 * KIB}
SMALL_PART, SMALL_WAVES = 64 * KIB, 3
# Bytes of the shortest row of a cluster; in 16 bits also from LEAST_OF_MANY on, if rows are enough for all blocks that run at once.
LEAST_ROW = {"float32": 96 * KIB + 16, "float16": 32 * KIB, "bfloat16": 32 * KIB}
LEAST_OF_MANY = 16 * KIB + 16


def taken(
    rows: int, columns: int, dtype: str, aligned: bool, processors: int, capability: tuple[int, int], choices: Choices = SHIPPED
) -> Way:
    """What the table says of such rows, else what was quickest on an H200. `aligned`: both addresses are multiples of 16 bytes."""
    if choices is not SHIPPED:
        known = offered(rows, columns, dtype, aligned, processors, capability)
        if name := choices.pick(dtype, (rows, columns), known):
            return known[name]
    return own(rows, columns, dtype, aligned, processors, capability)


def own(rows: int, columns: int, dtype: str, aligned: bool, processors: int, capability: tuple[int, int]) -> Way:
    """What the plan takes by itself."""
    size, wide = ptx.BYTES[dtype], aligned and columns % ptx.ELEMENTS[dtype] == 0
    if aligned and capability >= COPIES_FROM and columns <= LONGEST_SHORT and staged_rows.takes(rows, columns, size):
        return staged_rows.tile_of(columns, size)
    asked = rows, columns * size, dtype, processors, capability
    return (wide and (stream_of(*asked) or form_of(*asked))) or Registers(own_threads(columns, dtype, wide))


def lanes_of(columns: int, elements: int) -> int:
    """A power of two that hold a row by so many elements each."""
    return 1 << (-(-columns // elements) - 1).bit_length()


def lanes_of_warp(columns: int, dtype: str, wide: bool) -> int:
    return min(lanes_of(columns, ptx.ELEMENTS[dtype]), WARP) if wide else WARP


def own_threads(columns: int, dtype: str, wide: bool) -> int:
    # Accesses of 4 bytes: above half of a warp's columns the four warps of a block have more on the way.
    if columns <= (LONGEST_OF_WARP if wide or dtype != "float32" else LONGEST_OF_WARP // 2):
        return lanes_of_warp(columns, dtype, wide)
    # 16 values a thread while blocks are small, then 32: two blocks of 512 threads hide each other's waits. In 16 bits 24 while they are
    # small: of 3072 columns a block of 256 would have two pieces of 8 a thread, a third more exponentials.
    small = IN_REGISTERS * 3 // 4 if wide and dtype != "float32" else IN_REGISTERS // 2
    threads = 128
    while threads < 1024 and columns > threads * (small if threads < 256 or not wide else IN_REGISTERS):
        threads *= 2
    return threads if columns <= threads * most_of_thread(wide) else 0


def most_of_thread(wide: bool) -> int:
    """Values: scalar accesses need more registers of their own."""
    return IN_REGISTERS if wide else IN_REGISTERS * 3 // 4


def form_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Form | None:
    """The cluster of rows of whole 16-byte pieces; None: not that kernel's."""
    if capability < COPIES_FROM:
        return None
    if row_bytes < LEAST_ROW[dtype]:
        many = dtype != "float32" and row_bytes >= LEAST_OF_MANY and rows >= processors * FORMS[0].ctas_per_sm
        return FORMS[0] if many else None
    for form, least in SMALL.items() if capability == SM90 else ():
        if least < row_bytes <= form.blocks * SMALL_PART and rows * form.blocks >= SMALL_WAVES * processors * form.ctas_per_sm:
            return form
    can = [form for form in FORMS if form.blocks == 1 or capability == SM90]
    half = [form for form in can if row_bytes <= 2 * form.blocks * form.in_registers]
    fitting = half or [form for form in can[-1:] if form.shared_bytes(row_bytes) <= form.most_shared]
    # Few rows fill the GPU by more blocks a row, as long as no cluster waits for another's end: clusters leave one SM in eight over.
    at_once = (form for form in fitting if rows * form.blocks * 8 <= processors * form.ctas_per_sm * 7)
    return max(at_once, key=lambda form: form.blocks, default=fitting[0]) if fitting else None


def stream_of(rows: int, row_bytes: int, dtype: str, processors: int, capability: tuple[int, int]) -> Share | None:
    """How blocks share rows of whole 16-byte pieces; None: not that kernel's."""
    return shared_by(rows, row_bytes, STREAM, processors) if row_bytes >= LEAST_STREAMED and capability == SM90 else None


def shared_by(rows: int, row_bytes: int, stream: Stream, processors: int) -> Share | None:
    """As many groups as hold a row each, over all SMs; None: rows too long for one group, or fewer than two a group."""
    pieces, line = row_bytes // 16, LINE // 16
    groups = processors // -(-pieces // (stream.warps * stream.pieces * 32))
    if groups == 0 or rows < 2 * groups:
        return None
    part = -(-pieces // (processors // groups * stream.warps * line)) * line
    return Share(-(-pieces // (part * stream.warps)), groups, part)


def name_of(way: Way) -> str:
    if isinstance(way, Share):
        return "stream"
    if isinstance(way, staged_rows.Tile):
        return "short"
    if isinstance(way, Form):
        return f"cluster{way.blocks}x{way.threads}"
    return "long" if way.threads == 0 else "warp" if way.threads <= WARP else f"block{way.threads}"


def offered(rows: int, columns: int, dtype: str, aligned: bool, processors: int, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> way, of all that hold such rows, first the one that the plan takes by itself. Clusters from 16 KiB on whose threads have four
    pieces at least, streams from 256 KiB on: shorter rows are not worth a measurement."""
    size, row_bytes, sm90 = ptx.BYTES[dtype], columns * ptx.BYTES[dtype], capability == SM90
    wide = aligned and columns % ptx.ELEMENTS[dtype] == 0
    ways: list[Way] = [own(rows, columns, dtype, aligned, processors, capability)]
    ways += [staged_rows.tile_of(columns, size)] if aligned and columns <= staged_rows.LONGEST and capability >= COPIES_FROM else []
    ways += [Registers(lanes_of_warp(columns, dtype, wide))] if columns <= LONGEST_OF_WARP else [] if sm90 else [Registers(0)]
    ways += [Registers(threads) for threads in (64, 128, 256, 512, 1024) if 4 < columns / threads <= most_of_thread(wide)]
    for form in (*FORMS, *SMALL) if wide and row_bytes >= 16 * KIB and capability >= COPIES_FROM else ():
        shared = form.shared_bytes(row_bytes) * (form.ctas_per_sm if form.blocks > 1 else 1)
        if shared <= form.most_shared and row_bytes / form.blocks >= form.threads * 4 * 16 and (form.blocks == 1 or sm90):
            ways.append(form)
    if wide and sm90 and row_bytes >= 256 * KIB and (share := shared_by(rows, row_bytes, STREAM, processors)):
        ways.append(share)
    return {name_of(way): way for way in dict.fromkeys(ways)}
