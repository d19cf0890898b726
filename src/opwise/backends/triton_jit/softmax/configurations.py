"""Which kernels could compute rows of a length, in which forms, and which of them the plan takes by itself.

A name is the kernel's and its numbers: tile2048x4 (elements, warps), row8 (warps), cluster4x16x8x2 (cluster.Form), stream, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from opwise.backends.triton_jit.common.clusters import KNOWN
from opwise.backends.triton_jit.common.launch import INTERPRETING, processors
from opwise.backends.triton_jit.softmax import cluster, stream
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "triton_jit/softmax"  # of opwise tune
LONGEST_ROW_IN_TILE, LONGEST_ROW_IN_REGISTERS = 1024, 32768
TALLEST_TILE = 512  # rows
MANY = 2**31  # rows, and so any number
# By an element's bytes, columns at most, from above the entry before on, and what is quickest on an H200: elements of a tile, 512 a warp;
# warps of a row, whose threads have up to 64 elements, the most whose float32 powers stay in registers.
TILED = {4: {256: 2048, LONGEST_ROW_IN_TILE: 1024}, 2: {512: 2048, LONGEST_ROW_IN_TILE: 1024}}
ROW_OF = {4: {4096: 4, LONGEST_ROW_IN_REGISTERS: 16}, 2: {3583: 4, 8192: 8, LONGEST_ROW_IN_REGISTERS: 16}}
# Of rows that begin anywhere, which are read by elements: 65536 x 257 float32 37.3 us against 41.9 by the tables above, 32760 x 4097
# float32 301 against 359, 35292 x 3803 in 16 bits 154 against 164.
ODD_TILED = {4: {512: 2048, LONGEST_ROW_IN_TILE: 1024}, 2: TILED[2]}
ODD_ROW_OF = {4096: 4, 8192: 8, LONGEST_ROW_IN_REGISTERS: 16}
TILES = ((1024, 2), (1024, 4), (2048, 2), (2048, 4), (4096, 4), (4096, 8))  # elements, warps
ROW_WARPS = (4, 8, 16, 32)
PROGRAM_BYTES = 1024  # of shared memory, which each takes for itself
LEAST_OF_STREAM = 256 * 1024  # bytes of a row: shorter ones are worth no measurement
HOPPER = (9, 0)


class Way(NamedTuple):
    """A kernel, and the numbers that its build takes after the tensors."""

    kind: str
    numbers: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return self.kind + "x".join(map(str, self.numbers))


class Range(NamedTuple):
    """Columns and rows, the first and the last, and what is quicker there than what the other tables say."""

    columns: tuple[int, int]
    rows: tuple[int, int]
    way: Way

    def has(self, rows: int, columns: int) -> bool:
        return self.columns[0] <= columns <= self.columns[1] and self.rows[0] <= rows <= self.rows[1]


# By an element's bytes, on an H200. An end is a length, or a number of rows, that was measured, or half way to the next one that was.
RANGES = {
    4: (
        Range((128, 256), (32768, MANY), Way("tile", (1024, 4))),
        Range((888, 1024), (64, 2048), Way("tile", (1024, 4))),
        Range((3584, 4096), (64, MANY), Way("cluster", (1, 4, 8, 8))),
        Range((7104, 8192), (64, 512), Way("cluster", (2, 8, 4, 4))),
        Range((16384, 24576), (64, MANY), Way("cluster", (4, 4, 12, 5))),
    ),
    2: (
        Range((7104, 8192), (64, 512), Way("row", (16,))),
        Range((8192, 8192), (16384, MANY), Way("row", (16,))),
        Range((11600, 23168), (64, 512), Way("cluster", (2, 4, 4, 8))),
        Range((11600, 20048), (513, MANY), Way("cluster", (2, 4, 4, 8))),
        Range((23184, 32768), (256, 512), Way("cluster", (4, 4, 8, 8))),
        Range((20064, 32768), (513, MANY), Way("cluster", (2, 4, 8, 8))),
        Range((49152, 65520), (4096, MANY), Way("cluster", (4, 8, 4, 4))),
        Range((65536, 65536), (1024, MANY), Way("cluster", (4, 8, 4, 4))),
    ),
}


def tuned(x: Tensor, out: Tensor, choices: Choices) -> Way | None:
    """What the table says of x; None where the plan decides by itself. Raises NoSuchConfiguration."""
    if choices is SHIPPED:
        return None
    rows, columns = x.shape
    dtype, aligned = dtype_of(x), x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    known = offered(rows, columns, dtype, aligned, processors(x.device), capability_of(x))
    name = choices.pick(dtype, (rows, columns), known)
    return None if name is None else known[name]


def untuned(x: Tensor) -> Iterator[Way]:
    rows, columns = x.shape
    return in_turn(rows, columns, dtype_of(x), processors(x.device), capability_of(x))


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def capability_of(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda and not INTERPRETING else (0, 0)


def size_of(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def in_turn(rows: int, columns: int, dtype: str, multiprocessors: int, capability: tuple[int, int]) -> Iterator[Way]:
    """What the plan asks by itself, one after the other: clusters and streams leave rows off 16 elements to the next."""
    if capability == HOPPER:
        known = (each.way for each in RANGES[size_of(dtype)] if each.has(rows, columns))
        yield from (way for way in known if KNOWN or way.kind != "cluster" or way.numbers[0] == 1)
    if columns <= LONGEST_ROW_IN_TILE:
        yield own_tile(rows, columns, dtype)
        return
    row_bytes = columns * size_of(dtype)
    if capability == HOPPER and KNOWN and stream.planned(rows, row_bytes, dtype, multiprocessors):
        yield Way("stream")
    if capability[0] == HOPPER[0] and (form := cluster.form_of(rows, row_bytes, dtype, multiprocessors)):
        yield Way("cluster", form)
    yield own_row(columns, dtype) if columns <= LONGEST_ROW_IN_REGISTERS else Way("twice")


def own_tile(rows: int, columns: int, dtype: str) -> Way:
    """The tile that the plan takes by itself, lower where there are few rows."""
    padded = triton.next_power_of_2(columns)
    table = ODD_TILED if columns % 16 else TILED
    usual = next(elements for most, elements in table[size_of(dtype)].items() if columns <= most)
    elements = padded * min(usual // padded, TALLEST_TILE, triton.next_power_of_2(rows))
    return Way("tile", (elements, max(1, elements // 512)))


def own_row(columns: int, dtype: str) -> Way:
    """The row a program that the plan takes by itself."""
    table = ODD_ROW_OF if columns % 16 else ROW_OF[size_of(dtype)]
    return Way("row", (next(warps for most, warps in table.items() if columns <= most),))


def offered(rows: int, columns: int, dtype: str, aligned: bool, multiprocessors: int, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> way, of all that hold such rows: what `opwise tune` measures. capability (0, 0): Triton's interpreter, without Gluon."""
    padded = triton.next_power_of_2(columns)
    found = []
    if columns <= LONGEST_ROW_IN_TILE:
        found += [Way("tile", form) for form in TILES if form[0] <= padded * min(triton.next_power_of_2(rows), TALLEST_TILE)]
        found.append(own_tile(rows, columns, dtype))
    elif columns <= LONGEST_ROW_IN_REGISTERS:
        found += [Way("row", (warps,)) for warps in ROW_WARPS if 8 <= padded // (32 * warps) <= 64]
    if aligned and columns % 16 == 0 and columns > LONGEST_ROW_IN_TILE and capability[0] == HOPPER[0]:
        found += _of_hopper(rows, columns, dtype, multiprocessors, capability)
    if columns > LONGEST_ROW_IN_REGISTERS and all(way.kind == "row" for way in found):
        found.append(Way("twice"))
    return {way.name: way for way in found}


def _of_hopper(rows: int, columns: int, dtype: str, multiprocessors: int, capability: tuple[int, int]) -> Iterator[Way]:
    """The forms of the kernels' own tables that hold the row."""
    row_bytes = columns * size_of(dtype)
    forms = {form for table in cluster.FORMS.values() for form in table.values() if form}
    forms |= {cluster.Form(*each.way.numbers) for each in RANGES[size_of(dtype)] if each.way.kind == "cluster"}
    own = cluster.form_of(rows, row_bytes, dtype, multiprocessors)
    for form in sorted(forms):
        plan = cluster.Plan(columns, dtype, form)
        held, room = plan.piece * form.held, plan.piece * 4 * plan.staged + PROGRAM_BYTES
        fits = 2 * plan.part >= held and form.ctas_per_sm * room <= 227 * cluster.KIB and (form.blocks == 1 or KNOWN)
        if fits or form == own:
            yield Way("cluster", form)
    if capability == HOPPER and KNOWN and row_bytes > LEAST_OF_STREAM and stream.planned(rows, row_bytes, dtype, multiprocessors, 0):
        yield Way("stream")
