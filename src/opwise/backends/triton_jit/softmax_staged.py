"""softmax of long rows, read once into shared memory: Gluon, Triton's own lower level, where a kernel says itself what lies where.

Registers hold half of what a multiprocessor can have on the way, and the compiler fills them with float32. Here a part of a row, or a
whole row, is copied to shared memory as it lies, asynchronously and chunk by chunk, and read from there three times: for its maximum, for
its sum, for its result. Two exponentials an element are the price.

A row of several parts goes by the counters of softmax_parts.py, which says what is in the scratch memory. Programs are resident: they take
parts, one after the other, from a counter, and ask for the next part while they write the last. Why nobody waits for ever:

    a program takes a part only when every part of its last row has been told, so it never waits for one that it holds itself
    a program that holds a part tells of it before it waits, and waits only for parts of the same row, or of rows before
    so of a launch fewer programs than a row has parts can be waiting, if all of those parts have not been begun yet
    a launch that is cooperative runs with all its programs at once or not at all: with as many of them as a row has parts, one does not
    wait, and takes the next part. What other launches do, and how many there are, does not matter

Nothing here runs in Triton's interpreter, which does not know Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.scratch import launched_with, lender
from opwise.backends.triton_jit.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.specimen import POINTERS, Specimen

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
RAISED = {"float32": -1, "float16": 0, "bfloat16": 8}  # by how many powers of two exponentials are raised; -1: see `power`
MOST_PAIRS = 4096
LONGEST = 2**22
# The most columns, from above the row before on: KiB a program, warps, resident; None: other kernels do as well. Measured on an H200.
HALF = {8192: None, 16384: (32, 4, False), 32768: (64, 8, False), 65536: (128, 8, False), 131072: (32, 4, True), LONGEST: (64, 8, True)}
SINGLE = {262144: None, LONGEST: (64, 16, True)}
STAGED: dict[str, dict[int, tuple[int, int, bool] | None]] = {"float32": SINGLE, "float16": HALF, "bfloat16": HALF}


@dataclass(frozen=True)
class Parts:
    """How a row of `columns` elements of `dtype` is cut: into as few parts as have at most `kib` KiB each, of equal length but the last."""

    columns: int
    dtype: str
    kib: int

    @property
    def size(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def room(self) -> int:
        """Elements that a part may have."""
        return self.kib * 1024 // self.size

    @property
    def parts(self) -> int:
        return -(-self.columns // self.room)

    @property
    def part(self) -> int:
        """Columns of a part but the last, in whole 16s, as Triton wants addresses."""
        return -(-self.columns // self.parts // 16) * 16


@dataclass(frozen=True)
class Plan(Parts):
    """How rows are shared: a part at a time a program of `warps`, which is `resident` or has one part alone."""

    warps: int = 8
    vectors: int = 2  # of 16 bytes, of a thread's share of a chunk
    resident: bool = True

    @property
    def chunk(self) -> int:
        return self.warps * 32 * self.vectors * 16 // self.size

    @property
    def chunks(self) -> int:
        return -(-self.part // self.chunk)

    @property
    def slots(self) -> int:
        """An even number, so that what lies behind the counters starts on 16 bytes."""
        return max(MOST_PAIRS // max(self.parts, 2) // 2 * 2, 4)

    @property
    def counter_bytes(self) -> int:
        return 4 * (4 + 2 * self.slots)

    @property
    def scratch_bytes(self) -> int:
        return self.counter_bytes + 8 * self.slots * self.parts

    @property
    def fixed(self) -> dict[str, Any]:
        constants = {
            "PARTS": self.parts, "PADDED": max(32, triton.next_power_of_2(self.parts)), "CHUNKS": self.chunks, "CHUNK": self.chunk,
            "SLOTS": self.slots, "RESET": triton.next_power_of_2(4 + 2 * self.slots),
            "EVEN": self.parts * self.chunks * self.chunk == self.columns, "RAISED": RAISED[self.dtype], "RESIDENT": self.resident,
        }  # fmt: skip
        return {**constants, "num_warps": self.warps, "launch_cooperative_grid": self.resident and self.parts > 1, **OPTIONS}


def planned(columns: int, dtype: str) -> Plan | None:
    taken = next((taken for most, taken in STAGED[dtype].items() if columns <= most), None)
    return Plan(columns, dtype, taken[0], taken[1], resident=taken[2]) if taken else None


def build(x: Tensor, out: Tensor, kib: int, warps: int, resident: bool) -> Bind | None:
    """None where the GPU has not the memory, where rows are too few to fill it, and off 16 elements. By a row of STAGED, quick or not."""
    rows, columns = x.shape
    dtype = str(x.dtype).removeprefix("torch.")
    plan = Plan(columns, dtype, kib, warps, resident=resident)
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    if INTERPRETING or x.device.type != "cuda" or not aligned:
        return None
    items = rows * plan.parts
    if torch.cuda.get_device_capability(x.device) < (9, 0) or not processors(x.device) <= items < 2**31 - 2**20:
        return None
    from opwise.backends.triton_jit.softmax_gluon import staged_kernel

    lend = lender(plan.scratch_bytes, x.device, zeroed=plan.counter_bytes)
    memory = lend().memory.tensor
    samples = (x, out, memory.view(torch.int32), memory[plan.counter_bytes // 4 :], rows, columns, plan.part)
    compiled = staged_kernel.warmup(*samples, grid=(items, 1, 1), **plan.fixed)
    programs = at_once(plan.warps, compiled, torch.cuda.get_device_properties(x.device))
    # As many as a row has parts must run at once, or they would wait for ever. Where none takes a second part, registers are as quick.
    if programs < plan.parts or (plan.resident and items < programs):
        return None
    ready = built(staged_kernel, (programs if plan.resident else items, 1, 1), *samples, **plan.fixed)
    if plan.parts == 1:  # no scratch is used: any address will do
        return lambda x, out: ready(x, out, x.data_ptr(), x.data_ptr(), rows, columns, plan.part)

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        address = scratch.memory.address
        return launched_with(scratch, ready(x, out, address, address + plan.counter_bytes, rows, columns, plan.part))

    return bind


def at_once(warps: int, compiled: Any, properties: Any) -> int:
    """Programs that the GPU holds, of which the driver refuses a cooperative launch of more; 0 where it has not the memory for one."""
    shared = compiled.metadata.shared + 1024  # which a program takes for itself
    by_memory = getattr(properties, "shared_memory_per_multiprocessor", 100 * 1024) // shared
    if by_memory == 0:  # loading it would fail
        return 0
    _ = compiled.run  # loads it, from when on its registers are known
    a_warp = -(-compiled.n_regs * 32 // 256) * 256
    by_registers = 4 * (16384 // a_warp) // warps  # each of a multiprocessor's four quarters has 16384
    by_threads = properties.max_threads_per_multi_processor // (32 * warps)
    return int(min(by_registers, by_memory, by_threads) * properties.multi_processor_count)


def specimen(plan: Plan) -> Specimen:
    from opwise.backends.triton_jit.softmax_gluon import staged_kernel

    types = {"x": POINTERS[plan.dtype], "out": POINTERS[plan.dtype], "counters": "*i32", "pairs": "*fp32"}
    options = {name: plan.fixed[name] for name in ("num_warps", "launch_cooperative_grid", *OPTIONS)}
    constants = {name: value for name, value in plan.fixed.items() if name not in options}
    sizes = dict.fromkeys(("rows", "columns", "part"), "i32")
    return Specimen(staged_kernel, {**types, **sizes}, constants, options, ("rows",))


def specimens() -> dict[str, Specimen]:
    """Each row of the tables, in one dtype of 16 bits, and parts of unequal length: compiling one takes a second."""
    found = {}
    rows = {"float32": (LONGEST - 1040,), "float16": (16384, 32768, 65536, 131072), "bfloat16": (LONGEST, LONGEST - 1040)}
    for dtype, columns in ((dtype, columns) for dtype, lengths in rows.items() for columns in lengths):
        plan = planned(columns, dtype)
        assert plan is not None
        found[f"staged {columns} columns, {dtype}"] = specimen(plan)
    return found
