"""Which of Numba's kernels softmax's rows get, and which others could compute them: what `opwise tune` measures, and a tuned table names.

A name is the kernel's: warp, block256 (threads), long, cluster2x192 (blocks a row, threads a block), stream.
"""

from __future__ import annotations

from typing import NamedTuple

from opwise.backends.numba_cuda import ptx
from opwise.backends.numba_cuda.softmax_forms import COPIES_FROM, FORMS, SMALL, Form, form_of
from opwise.backends.numba_cuda.softmax_streams import RUNS_ON, STREAM, Share, shared_by, stream_of
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "numba_cuda/softmax"
IN_REGISTERS = 32  # float32 values of a row that one thread holds
WARP = 32
LEAST_IN_CLUSTER, LEAST_IN_STREAM = 16 * 1024, 256 * 1024  # bytes of the shortest row that is worth a measurement
LEAST_PIECES = 4  # of 16 bytes, a thread: with fewer, half of its registers are idle


class Registers(NamedTuple):
    """A row in the registers of so many threads: a warp, or a block. 0: in nobody's, it is read twice."""

    threads: int


Way = Registers | Form | Share


def taken(
    rows: int, columns: int, dtype: str, aligned: bool, processors: int, capability: tuple[int, int], choices: Choices = SHIPPED
) -> Way:
    """What the table says of such rows, else what was quickest on an H200. `aligned`: both addresses are multiples of 16 bytes."""
    wide = aligned and columns % ptx.ELEMENTS[dtype] == 0
    if choices is not SHIPPED:
        known = offered(rows, columns, dtype, wide, processors, capability)
        if name := choices.pick(dtype, dtype, (rows, columns), known):
            return known[name]
    return own(rows, columns, dtype, wide, processors, capability)


def own(rows: int, columns: int, dtype: str, wide: bool, processors: int, capability: tuple[int, int]) -> Way:
    """What the plan takes by itself. wide: rows are of whole 16-byte pieces."""
    asked = rows, columns * ptx.BYTES[dtype], dtype, processors, capability
    return (wide and (stream_of(*asked) or form_of(*asked))) or Registers(own_threads(columns, dtype, wide))


def own_threads(columns: int, dtype: str, wide: bool) -> int:
    if columns <= WARP * IN_REGISTERS:
        return WARP
    # 16 values a thread while blocks are small, then 32: two blocks of 512 threads hide each other's waits, one of 1024 has nobody. In 16
    # bits 24 while they are small: of 3072 columns a block of 256 would have two pieces of 8 a thread, a third more exponentials.
    small = IN_REGISTERS * 3 // 4 if wide and dtype != "float32" else IN_REGISTERS // 2
    threads = 128
    while threads < 1024 and columns > threads * (small if threads < 256 or not wide else IN_REGISTERS):
        threads *= 2
    return threads if columns <= threads * most_of_thread(wide) else 0


def most_of_thread(wide: bool) -> int:
    """Values: scalar accesses need more registers of their own."""
    return IN_REGISTERS if wide else IN_REGISTERS * 3 // 4


def name_of(way: Way) -> str:
    if isinstance(way, Share):
        return "stream"
    if isinstance(way, Form):
        return f"cluster{way.blocks}x{way.threads}"
    return {WARP: "warp", 0: "long"}.get(way.threads, f"block{way.threads}")


def offered(rows: int, columns: int, dtype: str, wide: bool, processors: int, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> way, of all that hold such rows, first the one that the plan takes by itself."""
    ways: list[Way] = [own(rows, columns, dtype, wide, processors, capability)]
    if columns <= WARP * IN_REGISTERS:
        ways.append(Registers(WARP))
    ways += [Registers(threads) for threads in (64, 128, 256, 512, 1024) if 4 < columns / threads <= most_of_thread(wide)]
    if capability != RUNS_ON and columns > WARP * IN_REGISTERS:
        ways.append(Registers(0))
    if wide:
        ways += _in_shared_memory(rows, columns * ptx.BYTES[dtype], processors, capability)
    found: dict[str, Way] = {}
    for way in ways:
        found.setdefault(name_of(way), way)
    return found


def _in_shared_memory(rows: int, row_bytes: int, processors: int, capability: tuple[int, int]) -> list[Way]:
    ways: list[Way] = []
    if row_bytes >= LEAST_IN_CLUSTER and capability >= COPIES_FROM:
        forms = (*FORMS, *SMALL) if capability == RUNS_ON else (form for form in FORMS if form.blocks == 1)
        for form in forms:
            part = row_bytes / form.blocks
            room = form.shared_bytes(row_bytes) * form.phases <= form.most_shared * (form.phases if form.blocks == 1 else 1)
            if form.holds(row_bytes) and room and part >= form.threads * LEAST_PIECES * 16:
                ways.append(form)
    if row_bytes >= LEAST_IN_STREAM and capability == RUNS_ON and (share := shared_by(rows, row_bytes, STREAM, processors)):
        ways.append(share)
    return ways
