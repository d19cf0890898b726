"""softmax of the longest rows on sm_90: persistent programs stream rows through shared memory; a warp waits for its own copies and a
row's sum alone.

A group of programs takes rows in turns, all programs run at once, one an SM. A program's part of a row is cut once more, into parts of its
warps, and each warp has stages for its part of several rows, which TMA fills:

    turn i     a warp's part of row i: its maximum and sum, told to the program's teller
    turn i     its part of row j = i - LAG: the exponentials again, stored; the place is asked for row j + SLOTS
    a teller   a warp of its own: all warps' maxima and sums of a row -> one pair, written to global memory
    a hearer   another: the pairs of all programs of the group -> the row's maximum and the inverse of its sum, for all warps

There is no block-wide barrier in the loop: the exchange of a row's sums has LAG turns of time, and warps may be that far apart.

Why there is no deadlock, and no pair is overwritten before it is read: all programs are resident (a cooperative launch). A warp in turn i
has done turn i - 1, so its hearer has read row i - 1 - LAG, so all programs of the group have written that row, all their warps have done
turn i - 2 - LAG, and all hearers have read row i - 2 - 2 LAG. A row's pair replaces that of ROWS rows before, ROWS = 2 LAG + 2, and
carries the row's number. The last program of a group to leave sets its pairs back to 0, since a graph replays launches.

Gluon cannot express any of it, so warps communicate in PTX, in versions of Triton that are known (common/clusters.py). Nothing here runs in
Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.scratch import launched_with, lender
from opwise.backends.triton_jit.common.clusters import KNOWN
from opwise.backends.triton_jit.common.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.common.specimen import Specimen

PIECE, LINE = 16, 8  # bytes that a thread takes at once, and how many of these are a cache line
# Warps that compute; pieces of a lane in a place; places of a warp; turns from a row's sum to its result; rows asked for at once in the
# beginning, where there are many: the first sums would queue behind more of them. All as in cuda_src/softmax_stream.cu.
COMPUTING, PIECES, SLOTS, LAG, AHEAD = 16, 4, 7, 5, 2
ROWS = 2 * LAG + 2
WARPS, REGISTERS = 32, 64  # a power of two, of which two talk and the others leave at once; of 65536 a multiprocessor
ABOVE = 2**20  # bytes of a row, up to which clusters are quicker
OPTIONS: dict[str, Any] = {
    "num_warps": WARPS, "maxnreg": REGISTERS, "launch_cooperative_grid": True, "enable_fp_fusion": False, "num_stages": 1
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Groups of `blocks` programs take rows of `pieces` in turns; a warp has `part` pieces of a row, or what is left."""

    dtype: str
    pieces: int
    groups: int
    blocks: int
    part: int

    @property
    def scratch_bytes(self) -> int:
        return PIECE * (ROWS * self.blocks + 1) * self.groups

    @property
    def fixed(self) -> dict[str, Any]:
        from opwise.backends.triton_jit.softmax.cluster_kernel import steps

        even = self.part == PIECES * 32 and self.part * COMPUTING * self.blocks == self.pieces
        sizes = {"BATCH": -(-self.blocks // 32), "COMPUTING": COMPUTING, "PIECES": PIECES, "SLOTS": SLOTS}
        return {**sizes, "LAG": LAG, "ROWS": ROWS, "AHEAD": AHEAD, "EVEN": even, **steps(self.dtype), **OPTIONS}


def planned(rows: int, row_bytes: int, dtype: str, multiprocessors: int, above: int = ABOVE) -> Plan | None:
    """None up to rows of `above` bytes, where clusters are quicker, and where a row finds no place. Fewer rows than groups are spread over
    more programs each."""
    pieces = row_bytes // PIECE
    groups = min(multiprocessors // -(-pieces // (COMPUTING * PIECES * 32)), rows)
    if row_bytes <= above or groups == 0:
        return None
    part = -(-pieces // (multiprocessors // groups * COMPUTING * LINE)) * LINE  # in whole cache lines, if all multiprocessors take part
    return Plan(dtype, pieces, groups, -(-pieces // (part * COMPUTING)), part)


def build(x: Tensor, out: Tensor) -> Bind | None:
    """None off 16 elements, where a row finds no place, and where Triton or the GPU is another. However short the rows are."""
    rows, columns = x.shape
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    if not KNOWN or INTERPRETING or x.device.type != "cuda" or not aligned or torch.cuda.get_device_capability(x.device) != (9, 0):
        return None
    plan = planned(rows, columns * x.element_size(), str(x.dtype).removeprefix("torch."), processors(x.device), 0)
    if plan is None:
        return None
    from opwise.backends.triton_jit.softmax.stream_kernel import stream_kernel

    lend = lender(plan.scratch_bytes, x.device, zeroed=plan.scratch_bytes)
    sizes = (rows, plan.groups, plan.pieces, plan.part, plan.blocks)
    samples = (x.view(torch.int32), out.view(torch.int32), lend().memory.tensor.view(torch.int32), *sizes)
    ready = built(stream_kernel, (plan.groups * plan.blocks, 1, 1), *samples, **plan.fixed)

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        return launched_with(scratch, ready(x, out, scratch.memory.address, *sizes))

    return bind


def specimens() -> dict[str, Specimen]:
    """Each dtype, equal and unequal parts."""
    from opwise.backends.triton_jit.softmax.stream_kernel import stream_kernel

    found = {}
    for dtype, row_bytes in (("float32", 2**22), ("bfloat16", 2**21), ("float16", 2**21 + 2080)):
        plan = planned(4096, row_bytes, dtype, 132)
        assert plan is not None
        sizes = ("rows", "groups", "pieces", "part", "blocks")
        types = {"x": "*i32", "out": "*i32", "words": "*i32", **dict.fromkeys(sizes, "i32")}
        constants = {name: value for name, value in plan.fixed.items() if name not in OPTIONS}
        found[f"stream, {row_bytes} bytes a row, {dtype}"] = Specimen(stream_kernel, types, constants, OPTIONS, sizes)
    return found
