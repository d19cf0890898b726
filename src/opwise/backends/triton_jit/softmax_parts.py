"""softmax of long rows, read once: the programs of a row keep a part each in registers, and tell each other its maximum and sum.

Who waits must not keep from running whom it waits for. So parts are not numbered as programs are, but taken from a counter: those of a row
are begun one after the other, and whoever waits, waits for parts that run, or that begin next. Of one launch fewer programs than a row has
parts can wait for parts that have not begun; `safe` asks that MOST_AT_ONCE launches' do not fill the GPU. No cooperative launch is needed.

In scratch memory, all counters 0 before and after a launch:

    counters    parts begun, rows done, two unused; parts that have told theirs, for each slot; parts that have read, for each slot
    pairs       a row of maxima for each slot; a row of sums for each slot

Row r uses slot r % SLOTS, once all that were told there before have been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.scratch import launched_with, lender
from opwise.backends.triton_jit.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.portable import device_function, narrow, widen
from opwise.backends.triton_jit.softmax_math import finite_shift, merged, shifted_power
from opwise.backends.triton_jit.specimen import POINTERS, Specimen


@device_function
def wait_until(counter, count):  # type: ignore[no-untyped-def]
    """Until `counter` has reached `count`, and what was written before it did can be read."""
    while tl.atomic_add(counter, 0, sem="acquire") < count:
        pass


@triton.jit
def part_of_row_kernel(x, out, counters, pairs, rows, columns, part, PARTS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
                       SLOTS: tl.constexpr, RESET: tl.constexpr, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The next of rows x PARTS parts, of `part` columns or what is left, in SIZE. Reads and writes every element once.

    counters: int32. pairs: float32. PADDED, RESET: powers of two from PARTS and from the number of counters on. EVEN: no part is short.
    """
    item = tl.atomic_add(counters, 1, sem="relaxed")
    row = item // PARTS
    p = item % PARTS
    slot = row % SLOTS
    turn = row // SLOTS
    told = counters + 4 + slot
    read = told + SLOTS
    maxima = pairs + slot * PARTS
    sums = maxima + SLOTS * PARTS
    start = row.to(tl.int64) * columns + p * part
    left = tl.minimum(part, columns - p * part)
    lane = tl.arange(0, SIZE)
    value = tl.load(x + start + lane) if EVEN else tl.load(x + start + lane, mask=lane < left, other=float("-inf"))
    wait_until(read, turn * PARTS)
    value = widen(value)
    maximum = tl.max(value, axis=0)
    power = shifted_power(value, finite_shift(maximum))
    # Store, then count, all by the same thread: the atomic releases the stores.
    tl.store(maxima + p, maximum)
    tl.store(sums + p, tl.sum(power, axis=0))
    tl.atomic_add(told, 1, sem="release")
    wait_until(told, (turn + 1) * PARTS)
    which = tl.arange(0, PADDED)
    # .cg reads L2, where the other programs' stores are: an L1 line could be stale.
    each = tl.load(maxima + which, mask=which < PARTS, other=float("-inf"), cache_modifier=".cg")
    largest, total = merged(each, tl.load(sums + which, mask=which < PARTS, other=0.0, cache_modifier=".cg"))
    tl.debug_barrier()  # all threads have read before one says so
    tl.atomic_add(read, 1, sem="release")
    result = narrow(power * (shifted_power(maximum, finite_shift(largest)) / total), out.dtype.element_ty)
    if EVEN:
        tl.store(out + start + lane, result)
    else:
        tl.store(out + start + lane, result, mask=lane < left)
    if p == PARTS - 1:  # one program a row
        wait_until(read, (turn + 1) * PARTS)
        if tl.atomic_add(counters + 1, 1, sem="acq_rel") == rows - 1:  # of the last row to be done: nobody uses a counter any more
            at = tl.arange(0, RESET)
            tl.store(counters + at, tl.zeros((RESET,), tl.int32), mask=at < 4 + 2 * SLOTS)


@dataclass(frozen=True)
class Plan:
    """How rows of `columns` are shared: `size` elements a program of `warps`."""

    columns: int
    size: int
    warps: int = 8

    @property
    def parts(self) -> int:
        return -(-self.columns // self.size)

    @property
    def part(self) -> int:
        """Columns of a part but the last, in whole 16s, as Triton wants addresses."""
        return -(-self.columns // self.parts // 16) * 16

    @property
    def slots(self) -> int:
        """An even number, so that what lies behind the counters starts on 16 bytes."""
        return max(MOST_PAIRS // self.parts // 2 * 2, 4)

    @property
    def counter_bytes(self) -> int:
        return 4 * (4 + 2 * self.slots)

    @property
    def scratch_bytes(self) -> int:
        return self.counter_bytes + 8 * self.slots * self.parts

    @property
    def fixed(self) -> dict[str, Any]:
        constants = {
            "PARTS": self.parts, "PADDED": triton.next_power_of_2(self.parts), "SIZE": self.size, "SLOTS": self.slots,
            "RESET": triton.next_power_of_2(4 + 2 * self.slots), "EVEN": self.parts * self.size == self.columns,
        }  # fmt: skip
        return {**constants, "num_warps": self.warps, **OPTIONS}


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
SIZES = {4: 8192, 2: 16384}  # elements a program, by the bytes of one: 32 KiB, of several sizes the quickest on an H200
MOST_PAIRS = 4096
MOST_AT_ONCE = 16  # launches on as many streams; CUDA has 8 queues to the GPU unless told otherwise


def build(x: Tensor, out: Tensor) -> Bind | None:
    """None where a row's programs might wait for each other for ever, and where other kernels do as well."""
    rows, columns = x.shape
    plan = Plan(columns, SIZES[x.element_size()])
    programs = rows * plan.parts
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    # In the interpreter programs run one after the other: the first would wait for ever.
    if INTERPRETING or x.device.type != "cuda" or not aligned or not processors(x.device) <= programs < 2**31 or plan.parts < 2:
        return None
    lend = lender(plan.scratch_bytes, x.device, zeroed=plan.counter_bytes)
    memory = lend().memory.tensor
    samples = (x, out, memory.view(torch.int32), memory[plan.counter_bytes // 4 :], rows, columns, plan.part)
    grid = (programs, 1, 1)
    compiled = part_of_row_kernel.warmup(*samples, grid=grid, **plan.fixed)
    if not safe(plan, compiled, torch.cuda.get_device_properties(x.device)):
        return None
    ready = built(part_of_row_kernel, grid, *samples, **plan.fixed)

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        address = scratch.memory.address
        return launched_with(scratch, ready(x, out, address, address + plan.counter_bytes, rows, columns, plan.part))

    return bind


def safe(plan: Plan, compiled: Any, properties: Any) -> bool:
    """Does the GPU hold more programs than MOST_AT_ONCE launches can have waiting for parts that have not begun?"""
    _ = compiled.run  # loads it, from when on its registers are known
    a_warp = -(-compiled.n_regs * 32 // 256) * 256
    by_registers = 4 * (16384 // a_warp) // plan.warps  # each of a multiprocessor's four quarters has 16384
    by_threads = properties.max_threads_per_multi_processor // (32 * plan.warps)
    by_memory = 64 * 1024 // (compiled.metadata.shared + 1024)  # what any GPU here has, and then some; a program takes under 1 KiB
    together = min(by_registers, by_threads, by_memory)
    return bool(MOST_AT_ONCE * (plan.parts - 1) < together * properties.multi_processor_count)


def specimens() -> dict[str, Specimen]:
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for columns in (65536, 65552):
            plan = Plan(columns, SIZES[4 if dtype == "float32" else 2])
            types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "counters": "*i32", "pairs": "*fp32"}
            options = {name: plan.fixed[name] for name in ("num_warps", *OPTIONS)}
            constants = {name: value for name, value in plan.fixed.items() if name not in options}
            sizes = dict.fromkeys(("rows", "columns", "part"), "i32")
            label = "" if constants["EVEN"] else ", short last part"
            found[f"shared rows, {dtype}{label}"] = Specimen(part_of_row_kernel, {**types, **sizes}, constants, options, ("rows",))
    return found
