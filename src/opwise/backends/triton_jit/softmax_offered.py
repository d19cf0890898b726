"""Which of Triton's kernels could compute rows of a length, and in which forms: what `opwise tune` measures, and a tuned table names.

A name is the kernel's and its numbers: tile2048x4 (elements, warps), row8 (warps), cluster4x16x8x2 (softmax_cluster.Form), stream32x3x1,
staged64x8 and resident64x8 (as the tables of softmax_stream.py and softmax_staged.py), warps, parts, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from opwise.backends.triton_jit import softmax_cluster, softmax_parts, softmax_staged, softmax_stream, softmax_warps
from opwise.backends.triton_jit.clusters import KNOWN
from opwise.backends.triton_jit.launch import INTERPRETING, processors
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "triton_jit/softmax"
LONGEST_ROW_IN_TILE, LONGEST_ROW_IN_REGISTERS = 1024, 32768
TALLEST_TILE = 512  # rows
MANY = 2**31  # rows, and so any number
# By an element's bytes, columns at most, from above the entry before on, and what is quickest on an H200: elements of a tile, 512 a warp;
# warps of a row, whose threads have up to 64 elements, the most whose float32 powers stay in registers.
TILED = {4: {256: 2048, LONGEST_ROW_IN_TILE: 1024}, 2: {512: 2048, LONGEST_ROW_IN_TILE: 1024}}
ROW_OF = {4: {4096: 4, LONGEST_ROW_IN_REGISTERS: 16}, 2: {3583: 4, 8192: 8, LONGEST_ROW_IN_REGISTERS: 16}}
# Of rows that begin anywhere, which are read by elements, what was quickest before: 65536 x 257 float32 37.3 us against 41.9, 32760 x 4097
# float32 301 against 359, 35292 x 3803 in 16 bits 154 against 164.
ODD_TILED = {4: {512: 2048, LONGEST_ROW_IN_TILE: 1024}, 2: TILED[2]}
ODD_ROW_OF = {4096: 4, 8192: 8, LONGEST_ROW_IN_REGISTERS: 16}
TILES = ((1024, 2), (1024, 4), (2048, 2), (2048, 4), (4096, 4), (4096, 8))  # elements, warps
ROW_WARPS = (4, 8, 16, 32)
MOST_PARTS = 128  # of a row, each of a program that waits for all of them
PROGRAM_BYTES = 1024  # of shared memory, which each takes for itself
LEAST_OF_WARPS = 256 * 1024  # bytes of a row: shorter ones are worth no measurement
PARTS_AT_ONCE = 3  # programs of softmax_parts.py on a multiprocessor, by their registers
HOPPER = (9, 0)
SURE = frozenset({"warps", "cluster", "parts"})  # on Hopper find room wherever they are offered


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
        Range((5024, 8192), (2048, MANY), Way("staged", (16, 2))),
        Range((7104, 8192), (64, 512), Way("row", (16,))),
        Range((11600, 23168), (64, 512), Way("cluster", (2, 4, 4, 8))),
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
    name = choices.pick(dtype, dtype, (rows, columns), known)
    return None if name is None else known[name]


def untuned(x: Tensor) -> Iterator[Way]:
    rows, columns = x.shape
    return in_turn(rows, columns, dtype_of(x), processors(x.device), capability_of(x))


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def capability_of(x: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(x.device) if x.is_cuda and not INTERPRETING else (0, 0)


def in_turn(rows: int, columns: int, dtype: str, multiprocessors: int, capability: tuple[int, int]) -> Iterator[Way]:
    """What the plan asks by itself, one after the other: whose programs find no room, who has too few rows, and all but the tile, the row
    and the last off 16 elements, leave it to the next."""
    if capability == HOPPER:
        known = (each.way for each in RANGES[size_of(dtype)] if each.has(rows, columns))
        yield from (way for way in known if KNOWN or way.kind != "cluster" or way.numbers[0] == 1)
    if columns <= LONGEST_ROW_IN_TILE:
        yield own_tile(rows, columns, dtype)
        return
    row_bytes = columns * size_of(dtype)
    if capability == HOPPER and KNOWN and softmax_warps.planned(rows, row_bytes, dtype, multiprocessors):
        yield Way("warps")
    if capability[0] == HOPPER[0] and (form := softmax_cluster.form_of(rows, row_bytes, dtype, multiprocessors)):
        yield cluster(form)
    if capability >= HOPPER and (stream := softmax_stream.planned(columns, dtype)):
        yield Way("stream", (stream.kib, stream.slots, stream.later))
    if capability >= HOPPER and (staged := softmax_staged.planned(columns, dtype)):
        yield Way("resident" if staged.resident else "staged", (staged.kib, staged.warps))
    if columns <= LONGEST_ROW_IN_REGISTERS:
        yield own_row(columns, dtype)
        return
    yield Way("parts")
    yield Way("twice")


def offered(rows: int, columns: int, dtype: str, aligned: bool, multiprocessors: int, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> way, of all that hold such rows. capability (0, 0): Triton's interpreter, which knows no Gluon."""
    found = list(_simple(rows, columns, dtype))
    if aligned and columns % 16 == 0 and capability >= (8, 0) and columns > LONGEST_ROW_IN_TILE:
        if capability >= HOPPER:
            found += _in_shared_memory(rows, columns, dtype, multiprocessors, capability)
        parts = softmax_parts.Plan(columns, softmax_parts.SIZES[size_of(dtype)]).parts
        safe = softmax_parts.MOST_AT_ONCE * (parts - 1) < PARTS_AT_ONCE * multiprocessors
        if columns > LONGEST_ROW_IN_REGISTERS and parts > 1 and multiprocessors <= rows * parts and safe:
            found.append(Way("parts"))
    if columns > LONGEST_ROW_IN_REGISTERS and (capability[0] != 9 or SURE.isdisjoint(way.kind for way in found)):
        found.append(Way("twice"))
    return {way.name: way for way in found}


def cluster(form: softmax_cluster.Form) -> Way:
    return Way("cluster", (form.blocks, form.warps, form.held, form.shared_by))


def size_of(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _simple(rows: int, columns: int, dtype: str) -> Iterator[Way]:
    """In registers."""
    padded = triton.next_power_of_2(columns)
    if columns <= LONGEST_ROW_IN_TILE:
        yield from (Way("tile", form) for form in TILES if form[0] <= padded * min(triton.next_power_of_2(rows), TALLEST_TILE))
        yield own_tile(rows, columns, dtype)
    elif columns <= LONGEST_ROW_IN_REGISTERS:
        yield from (Way("row", (warps,)) for warps in ROW_WARPS if 8 <= padded // (32 * warps) <= 64)


def own_tile(rows: int, columns: int, dtype: str) -> Way:
    """The tile that the plan takes by itself, lower where there are few rows."""
    padded = triton.next_power_of_2(columns)
    table = ODD_TILED if columns % 16 else TILED
    usual = next(elements for most, elements in table[size_of(dtype)].items() if columns <= most)
    elements = padded * min(usual // padded, TALLEST_TILE, triton.next_power_of_2(rows))
    return Way("tile", (elements, max(1, elements // 512)))


def own_row(columns: int, dtype: str) -> Way:
    """Likewise, of a row a program."""
    table = ODD_ROW_OF if columns % 16 else ROW_OF[size_of(dtype)]
    return Way("row", (next(warps for most, warps in table.items() if columns <= most),))


def _in_shared_memory(rows: int, columns: int, dtype: str, multiprocessors: int, capability: tuple[int, int]) -> Iterator[Way]:
    """The forms of the kernels' own tables, where they hold the row and give every multiprocessor work."""
    tables = softmax_cluster.FORMS.values() if capability[0] == 9 else ()
    forms = {form for table in tables for form in table.values() if form}
    ranged = [each.way for each in RANGES[size_of(dtype)]]
    forms |= {softmax_cluster.Form(*way.numbers) for way in ranged if way.kind == "cluster" and capability[0] == 9}
    own = softmax_cluster.form_of(rows, columns * size_of(dtype), dtype, multiprocessors)
    for form in sorted(forms, key=lambda form: (form.blocks, form.warps, form.held)):
        plan = softmax_cluster.Plan(columns, dtype, form)
        held, room = plan.piece * form.held, plan.piece * 4 * plan.staged + PROGRAM_BYTES
        fits = 2 * plan.part >= held and form.shared_by * room <= 227 * softmax_cluster.KIB and (form.blocks == 1 or KNOWN)
        if fits or form == own:
            yield cluster(form)
    if capability == HOPPER and KNOWN and columns * size_of(dtype) > LEAST_OF_WARPS:
        yield from (Way("warps") for plan in [softmax_warps.planned(rows, columns * size_of(dtype), dtype, multiprocessors, 0)] if plan)
    streamed = dict.fromkeys(form for form in softmax_stream.STREAMED[dtype].values() if form)
    for parts, numbers in ((softmax_stream.Plan(columns, dtype, *form).parts, form) for form in streamed):
        if 1 < parts <= MOST_PARTS and multiprocessors <= rows * parts:
            yield Way("stream", numbers)
    alone = set[int]()  # warps of programs that have a row each: one with more room than the row takes is the same
    staged = {form for form in softmax_staged.STAGED[dtype].values() if form}
    staged |= {(way.numbers[0], way.numbers[1], False) for way in ranged if way.kind == "staged"}
    for kib, warps, resident in sorted(staged):
        parts = softmax_staged.Plan(columns, dtype, kib).parts
        least = 2 * multiprocessors if resident else multiprocessors  # where none takes a second part, none need be resident
        if least <= rows * parts and (1 < parts <= MOST_PARTS if resident else parts == 1 and warps not in alone):
            alone |= set() if resident else {warps}
            yield Way("resident" if resident else "staged", (kib, warps))
