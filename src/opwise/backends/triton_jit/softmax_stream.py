"""softmax of the longest rows: a stream of rows through groups of programs, so that memory is never idle. Gluon.

A row is cut into parts, one for each program of a group, and the groups take rows in turns. A program has several of its parts in shared
memory: while one's sum is told to the other programs of the group, others are on the way in, and others out.

    turn i    the sum of row i's part, which is told, and the result of row i - LATER's; its place is for row i + SLOTS - LATER

What a part's maximum and sum are is told through scratch memory, by pairs that carry the row's number: no counter, no fence. A row's pair
lies where row i - RING's lay. Nobody waits for it any more: a program tells of row i once all have told of row i - LATER, so once all have
heard of row i - 2 LATER, and RING = 2 LATER. So a thread finds the pair it waits for, or an older one.

Why nobody waits for ever: the launch is cooperative, all programs run at once. The one that is in the earliest turn, i, waits for what
was told in turn i - LATER, and all have come beyond that.

The last program to leave sets all words back, since a graph replays launches and must not find row numbers from the launch before.
Every program that left has heard all it waited for, and counts after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.scratch import launched_with, lender
from opwise.backends.triton_jit.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.softmax_staged import RAISED, Parts, at_once
from opwise.backends.triton_jit.specimen import POINTERS, Specimen

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
WARPS = 8
POWERS = RAISED | {"float32": 30}  # with which the exponential that flushes loses nothing that float32 can hold
MOST_SCRATCH = 64 * 1024
# The most columns, from above the row before on: KiB a part, parts of a program at a time, turns from a row's sum to its result; None, and
# beyond the last: other kernels are quicker. Measured on an H200.
HALF = {131072: None, 2**20: (32, 3, 1), 2**21: (32, 3, 2), 3 * 2**20: None, 2**22: (32, 3, 2)}
SINGLE = {262144: None, 786432: (32, 3, 1), 2**21: (32, 3, 2)}
STREAMED: dict[str, dict[int, tuple[int, int, int] | None]] = {"float32": SINGLE, "float16": HALF, "bfloat16": HALF}


@dataclass(frozen=True)
class Plan(Parts):
    """How rows are shared: each by a group of programs, one a part, of which a program has `slots` at a time."""

    slots: int
    later: int  # turns from a row's sum to its result

    @property
    def ring(self) -> int:
        return 2 * self.later

    def scratch_bytes(self, groups: int) -> int:
        return 16 + groups * self.ring * self.parts * 16

    def groups(self, rows: int, programs: int) -> int:
        """Of as many groups as may run at once, or a few less: where the last turn is the fullest. 0 where a third would stand idle."""
        most = min(programs // self.parts, (MOST_SCRATCH - 16) // (self.scratch_bytes(1) - 16))
        if 3 * most * self.parts < 2 * programs or most == 0:
            return 0
        few = range(most - most // 16, most + 1)
        return max(few, key=lambda groups: (rows / (groups * -(-rows // groups)), groups))

    @property
    def fixed(self) -> dict[str, Any]:
        constants = {
            "PARTS": self.parts, "VECTORS": self.kib * 1024 // (WARPS * 512), "SLOTS": self.slots, "LATER": self.later,
            "RING": self.ring, "EVEN": self.parts * self.room == self.columns, "RAISED": POWERS[self.dtype],
        }  # fmt: skip
        return {**constants, "num_warps": WARPS, "launch_cooperative_grid": True, **OPTIONS}


def planned(columns: int, dtype: str) -> Plan | None:
    taken = next((taken for most, taken in STREAMED[dtype].items() if columns <= most), None)
    return Plan(columns, dtype, *taken) if taken else None


def build(x: Tensor, out: Tensor, *given: int) -> Bind | None:
    """None where rows are too few to fill the GPU, where it has not the memory, and off 16 elements. given: a row of STREAMED, quick or
    not."""
    rows, columns = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    plan = Plan(columns, dtype, *given)
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    if INTERPRETING or x.device.type != "cuda" or not aligned:
        return None
    if torch.cuda.get_device_capability(x.device) < (9, 0) or not processors(x.device) <= rows * plan.parts < 2**30:
        return None
    from opwise.backends.triton_jit.softmax_stream_gluon import stream_kernel

    words = lender(plan.scratch_bytes(1), x.device)().memory.tensor.view(torch.int32)
    samples = (x, out, words, rows, columns, plan.part)
    compiled = stream_kernel.warmup(*samples, 2, grid=(plan.parts, 1, 1), **plan.fixed)
    groups = plan.groups(rows, at_once(WARPS, compiled, torch.cuda.get_device_properties(x.device)))
    if groups == 0:
        return None
    size = plan.scratch_bytes(groups)
    lend = lender(size, x.device, zeroed=size)
    ready = built(stream_kernel, (groups * plan.parts, 1, 1), *samples, groups, **plan.fixed)

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        return launched_with(scratch, ready(x, out, scratch.memory.address, rows, columns, plan.part, groups))

    return bind


def specimens() -> dict[str, Specimen]:
    """Each form, each dtype, and parts of equal and of unequal length."""
    from opwise.backends.triton_jit.softmax_stream_gluon import stream_kernel

    found = {}
    for dtype, columns in (("float32", 524288), ("float32", 2**20), ("float16", 262144), ("bfloat16", 2**20 - 1040)):
        plan = planned(columns, dtype)
        assert plan is not None
        types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "words": "*i32"}
        options = {name: plan.fixed[name] for name in ("num_warps", "launch_cooperative_grid", *OPTIONS)}
        constants = {name: value for name, value in plan.fixed.items() if name not in options}
        sizes = dict.fromkeys(("rows", "columns", "part", "groups"), "i32")
        found[f"stream of {columns} columns, {dtype}"] = Specimen(stream_kernel, {**types, **sizes}, constants, options, ("rows", "groups"))
    return found
