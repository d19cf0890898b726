"""The softmax kernels, with parameters, that support a row length, and the untuned default among them (docs/lab/softmax.md).

A name consists of the kernel's and its parameters: tile1024x2 and flat1024x2 (elements, warps), row8 (warps), cluster4x8x8x4 (cluster.Form:
programs a row, warps, pieces, programs an SM), stream, twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from opwise.backends import staged_rows
from opwise.backends.triton_jit.common.clusters import KNOWN
from opwise.backends.triton_jit.common.launch import INTERPRETING, processors
from opwise.backends.triton_jit.softmax import cluster, stream
from opwise.backends.tuned import SHIPPED, Choices

TABLE = "triton_jit/softmax"  # of opwise tune
LONGEST_ROW_IN_TILE, LONGEST_ROW_IN_REGISTERS = 1024, 32768
TALLEST_TILE = 512  # rows
# Largest columns -> the fastest (elements, warps): ODD_TILES, columns not a multiple of 16, read element by element; TILE, others, in
# 16-byte accesses; LINES, flat_kernel, for very short rows.
ODD_TILES, TILE = {128: (512, 1), 256: (512, 2), LONGEST_ROW_IN_TILE: (1024, 2)}, (1024, 4)
LINES = {8: (512, 2), 16: (2048, 2), 32: (1024, 2)}
# Largest columns -> warps of row_kernel, with at most 64 elements a thread. ROW_OF: by an element's bytes first.
ODD_ROW_OF = {4096: 4, 8192: 8, LONGEST_ROW_IN_REGISTERS: 16}
ROW_OF = {4: {4096: 4, LONGEST_ROW_IN_REGISTERS: 16}, 2: {3583: 4, 8191: 8, LONGEST_ROW_IN_REGISTERS: 16}}
TILES = (*ODD_TILES.values(), TILE, (1024, 1), (2048, 4))
ROW_WARPS = (4, 8, 16, 32)
PROGRAM_BYTES = 1024  # shared memory that CUDA reserves for each block
LEAST_OF_STREAM = 256 * 1024  # bytes of a row: stream is not measured for shorter ones
HOPPER = (9, 0)


class Way(NamedTuple):
    """A kernel and its parameters: the arguments of its build after the tensors."""

    kind: str
    numbers: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return self.kind + "x".join(map(str, self.numbers))


def tuned(x: Tensor, out: Tensor, choices: Choices) -> Way | None:
    """The tuned table's choice for x; None if it has none, for the untuned default. Raises NoSuchConfiguration."""
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
    """The untuned candidates, in order of preference. stream and cluster decline rows that are no multiple of 16 elements: try the next."""
    if columns <= LONGEST_ROW_IN_TILE:
        yield own_tile(rows, columns)
        return
    row_bytes = columns * size_of(dtype)
    if capability == HOPPER and KNOWN and stream.planned(rows, row_bytes, dtype, multiprocessors):
        yield Way("stream")
    if capability[0] == HOPPER[0] and (form := cluster.form_of(rows, row_bytes, dtype, multiprocessors)):
        yield Way("cluster", form)
    yield own_row(columns, dtype) if columns <= LONGEST_ROW_IN_REGISTERS else Way("twice")


def own_tile(rows: int, columns: int) -> Way:
    """The untuned default up to 1024 columns: a tile, with fewer rows if x has few; flat_kernel for many very short unaligned rows."""
    padded, odd = triton.next_power_of_2(columns), columns % 16 != 0
    if rows * columns >= staged_rows.FROM and odd and columns <= max(LINES):
        return Way("flat", next(form for most, form in LINES.items() if columns <= most))
    usual, warps = next(form for most, form in ODD_TILES.items() if columns <= most) if odd else TILE
    height = max(1, min(usual // padded, TALLEST_TILE, triton.next_power_of_2(rows)))
    return Way("tile", (height * padded, min(warps, max(1, height * padded // 256))))


def own_row(columns: int, dtype: str) -> Way:
    """row_kernel as the untuned default, from 1025 to 32768 columns."""
    table = ODD_ROW_OF if columns % 16 else ROW_OF[size_of(dtype)]
    return Way("row", (next(warps for most, warps in table.items() if columns <= most),))


def offered(rows: int, columns: int, dtype: str, aligned: bool, multiprocessors: int, capability: tuple[int, int]) -> dict[str, Way]:
    """Name -> way, of all that support such rows: `opwise tune` measures these. capability (0, 0): Triton's interpreter, without Gluon."""
    padded = triton.next_power_of_2(columns)
    found = []
    if columns <= LONGEST_ROW_IN_TILE:
        found += [Way("tile", form) for form in TILES if padded <= form[0] <= padded * min(triton.next_power_of_2(rows), TALLEST_TILE)]
        found += [Way("flat", form) for form in LINES.values() if columns <= max(LINES)]
        found.append(own_tile(rows, columns))
    elif columns <= LONGEST_ROW_IN_REGISTERS:
        found += [Way("row", (warps,)) for warps in ROW_WARPS if 8 <= padded // (32 * warps) <= 64]
    if aligned and columns % 16 == 0 and columns > LONGEST_ROW_IN_TILE and capability[0] == HOPPER[0]:
        found += _of_hopper(rows, columns, dtype, multiprocessors, capability)
    if columns > LONGEST_ROW_IN_REGISTERS and all(way.kind == "row" for way in found):
        found.append(Way("twice"))
    return {way.name: way for way in found}


def _of_hopper(rows: int, columns: int, dtype: str, multiprocessors: int, capability: tuple[int, int]) -> Iterator[Way]:
    """The cluster forms that can hold the row, and stream where it supports it."""
    row_bytes = columns * size_of(dtype)
    own = cluster.form_of(rows, row_bytes, dtype, multiprocessors)
    for form in cluster.FORMS:
        plan = cluster.Plan(columns, dtype, form)
        held, room = plan.piece * form.held, plan.piece * 4 * plan.staged + PROGRAM_BYTES
        fits = 2 * plan.part >= held and form.ctas_per_sm * room <= 227 * cluster.KIB and KNOWN
        if fits or form == own:
            yield Way("cluster", form)
    if capability == HOPPER and KNOWN and row_bytes > LEAST_OF_STREAM and stream.planned(rows, row_bytes, dtype, multiprocessors, 0):
        yield Way("stream")
