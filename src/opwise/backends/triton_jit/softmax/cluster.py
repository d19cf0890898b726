"""softmax of long rows by thread block clusters, on sm_90: a row lies in the registers and the shared memory of a cluster's programs.

A program keeps its part of the row as it was read, the first pieces of 16 bytes of each thread in registers, the rest in shared memory.
The programs of a row exchange a maximum and a sum through distributed shared memory. The price is two exponentials an element; there is
no scratch memory, and no program waits for one that has not begun, since a cluster begins as a whole.

Triton cannot express a cluster whose programs work on different data: the kernel is compiled for one program, PTX addresses the others, and
the launcher alone is told of clusters (common/clusters.py).

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.clusters import KNOWN, in_clusters
from opwise.backends.triton_jit.common.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.common.specimen import Specimen

LINE = 32  # words of a cache line
KIB = 1024


class Form(NamedTuple):
    """Programs a row, warps a program, pieces of 16 bytes of each thread in registers, and how many programs share a multiprocessor."""

    blocks: int
    warps: int
    held: int
    ctas_per_sm: int

    @property
    def registers(self) -> int:
        """Of a thread at most, so that so many programs find room: of 65536 a multiprocessor, in eights."""
        return 65536 // (self.ctas_per_sm * self.warps * 32) // 8 * 8

    def wave(self, rows: int, multiprocessors: int) -> int:
        """Programs of whole clusters that begin together, in phases; 0, where no others follow. Some small ones find no place at once."""
        many = self.ctas_per_sm > 2
        at_once = multiprocessors * self.ctas_per_sm * (15 if many else 16) // 16 // self.blocks * self.blocks
        return at_once if rows * self.blocks > at_once * (2 if many else 1) else 0


# Small programs, of 64 KiB each, four of which hide each other's exchange. The most come first: few rows fill the GPU by more of them.
FORMS = tuple(Form(blocks, 8, 8, 4) for blocks in (16, 8, 4, 2))
# Largest row in KiB -> programs a row. None, and above the last: another kernel is as fast. float32 has half the exponentials per byte
# to hide loads behind, so it needs more programs.
HALF: dict[int, int | None] = {32: None, 128: 2, 256: 4, 512: 8, 1024: 16}
PROGRAMS: dict[str, dict[int, int | None]] = {"float32": {60: None, 96: 4, 256: 8, 1024: 16}, "float16": HALF, "bfloat16": HALF}


def form_of(rows: int, row_bytes: int, dtype: str, multiprocessors: int) -> Form | None:
    """None where other kernels are as quick, and for a Triton whose launcher was not read, which gets no clusters."""
    usual = next((blocks for most, blocks in PROGRAMS[dtype].items() if row_bytes <= most * KIB), None)
    if usual is None or not KNOWN:
        return None
    # Clusters keep within groups of multiprocessors, which leaves one in eight over.
    fitting = (form for form in FORMS if row_bytes <= form.blocks * 64 * KIB)
    fills = (form for form in fitting if rows * form.blocks * 8 <= multiprocessors * form.ctas_per_sm * 7)
    return next(fills, None) or next(form for form in FORMS if form.blocks == usual)


@dataclass(frozen=True)
class Plan:
    """How rows of `columns` elements of `dtype` are shared. Lengths are in 32-bit words."""

    columns: int
    dtype: str
    form: Form

    @property
    def ratio(self) -> int:
        """Elements of a word."""
        return 1 if self.dtype == "float32" else 2

    @property
    def part(self) -> int:
        """Of a program but the last, in whole cache lines."""
        return -(-self.columns // (self.ratio * self.form.blocks * LINE)) * LINE

    @property
    def piece(self) -> int:
        """Of all threads: 16 bytes each."""
        return self.form.warps * 128

    @property
    def staged(self) -> int:
        return max(-(-self.part // self.piece) - self.form.held, 0)

    @property
    def full(self) -> int:
        """Pieces that the last program has in full, and so all."""
        last = self.columns // self.ratio - (self.form.blocks - 1) * self.part
        return min(last // self.piece, self.form.held + self.staged)

    @property
    def delay(self) -> int:
        """Clock cycles in which a multiprocessor reads one program's part."""
        return self.part * 4 // 17

    @property
    def fixed(self) -> dict[str, Any]:
        from opwise.backends.triton_jit.softmax.cluster_kernel import steps

        constants = {
            "BLOCKS": self.form.blocks, "HELD": self.form.held, "STAGED": self.staged, "FULL": self.full,
            "PHASES": self.form.ctas_per_sm, "RATIO": self.ratio,
        }  # fmt: skip
        return {**constants, **steps(self.dtype), **self.options}

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.form.warps, "maxnreg": self.form.registers, "enable_fp_fusion": False, "num_stages": 1}


def build(x: Tensor, out: Tensor, *given: int) -> Bind | None:
    """None off 16 elements, and where there is no cluster to be had. given: the Form, quick or not."""
    rows, columns = x.shape
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    if INTERPRETING or x.device.type != "cuda" or not aligned or torch.cuda.get_device_capability(x.device)[0] != 9:
        return None
    from opwise.backends.triton_jit.softmax.cluster_kernel import cluster_kernel

    multiprocessors = processors(x.device)
    dtype = str(x.dtype).removeprefix("torch.")
    form = Form(*given)
    if rows * form.blocks >= 2**31:
        return None
    plan = Plan(columns, dtype, form)
    wave, delay = form.wave(rows, multiprocessors), plan.delay
    samples, grid = (x.view(torch.int32), out.view(torch.int32), columns, plan.part, wave, delay), (rows, 1, 1)
    if form.blocks > 1:  # the very kernel that `built` then finds compiled
        in_clusters(cluster_kernel.warmup(*samples, grid=grid, **plan.fixed), form.blocks)
    ready = built(cluster_kernel, grid, *samples, **plan.fixed)

    def bind(x: Tensor, out: Tensor) -> Launch:
        return ready(x, out, columns, plan.part, wave, delay)

    return bind


def specimen(plan: Plan) -> Specimen:
    from opwise.backends.triton_jit.softmax.cluster_kernel import cluster_kernel

    types = {"x": "*i32", "out": "*i32", **dict.fromkeys(("columns", "part", "wave", "delay"), "i32")}
    constants = {name: value for name, value in plan.fixed.items() if name not in plan.options}
    return Specimen(cluster_kernel, types, constants, plan.options, ("wave", "delay"))


def specimens() -> dict[str, Specimen]:
    """Each form, in float32 or in one dtype of 16 bits, and parts of equal and of unequal length."""
    rows = {"float32": (32752, 36864, 49152, 131072, 262128), "float16": (65536,), "bfloat16": (98288, 262144, 524272)}
    found = {}
    for dtype, columns in ((dtype, columns) for dtype, lengths in rows.items() for columns in lengths):
        form = form_of(4096, columns * (4 if dtype == "float32" else 2), dtype, 132)
        assert form is not None
        found[f"clusters of {form.blocks}, {columns} columns, {dtype}"] = specimen(Plan(columns, dtype, form))
    return found
