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
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from opwise.backends.protocol import Bind, Launch
from opwise.backends.scratch import launched_with, lender
from opwise.backends.triton_jit.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.softmax_math import LOG2_E
from opwise.backends.triton_jit.specimen import POINTERS, Specimen

BARRIER = getattr(gl, "thread_barrier", None) or gl.barrier  # its name before and from Triton 3.7 on
BYTES_A_THREAD = gl.constexpr(16)


@gluon.jit
def power(x, shift, RAISED: gl.constexpr):  # type: ignore[no-untyped-def]
    """2^RAISED e^(x - shift). 16-bit results are made with ex2.approx.ftz, a quarter of the instructions of the one that keeps subnormals;
    what it flushes, under 2^-126, is under half of float16's least subnormal, and of bfloat16's once it is raised by 2^8."""
    if RAISED < 0:
        exponent = (x - shift) * LOG2_E
        result = gl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)
    else:
        exponent = gl.fma(x - shift, gl.full_like(x, LOG2_E), gl.full_like(x, RAISED))
        result = gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1)
    return result


@gluon.jit
def finite(maximum):  # type: ignore[no-untyped-def]
    """A part of -inf alone must not compute -inf - -inf; a whole row of them becomes 0 / 0 = nan, as it should."""
    return gl.where(maximum == float("-inf"), 0.0, maximum)


@gluon.jit
def larger(x, y):  # type: ignore[no-untyped-def]
    """The maximum, which drops nan; of 16 bits two at a time, as they are."""
    if x.dtype == gl.bfloat16:
        result = gl.inline_asm_elementwise("max.bf16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.bfloat16, is_pure=True, pack=2)
    elif x.dtype == gl.float16:
        result = gl.inline_asm_elementwise("max.f16x2 $0, $1, $2;", "=r,r,r", [x, y], dtype=gl.float16, is_pure=True, pack=2)
    else:
        result = gl.maximum(x, y)
    return result


@gluon.jit
def wide(x):  # type: ignore[no-untyped-def]
    """To float32, exactly; bfloat16 by one instruction each, where the compiler takes three for two."""
    if x.dtype == gl.bfloat16:
        result = gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2
        )
    else:
        result = x.to(gl.float32)
    return result


@gluon.jit
def wait_until(counter, count):  # type: ignore[no-untyped-def]
    """Until `counter` has reached `count`, and what was written before it did can be read."""
    while gl.atomic_add(counter, 0, sem="acquire") < count:
        pass


@gluon.jit
def ask(room, x, item, items, columns, part, lane, PARTS: gl.constexpr, CHUNK: gl.constexpr, i: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    """Starts the copy of a part's i-th chunk; of none, where there is no such part. A group of copies of its own either way."""
    first = item % PARTS * part
    at = lane + i * CHUNK
    there = gl.full_like(lane, 0) + item < items
    if not EVEN:
        there = there & (at < gl.minimum(part, columns - first))
    source = x + ((item // PARTS).to(gl.int64) * columns + first)
    async_copy.async_copy_global_to_shared(room.index(i), source + at, mask=there)
    async_copy.commit_group()


@gluon.jit
def chunk_of(room, left, lane, layout: gl.constexpr, CHUNK: gl.constexpr, i: gl.constexpr, EVEN: gl.constexpr):  # type: ignore[no-untyped-def]
    value = room.index(i).load(layout)
    if not EVEN:
        value = gl.where(lane + i * CHUNK < left, value, gl.full_like(value, float("-inf")))
    return value


@gluon.jit
def leave(counters, RESET: gl.constexpr, SLOTS: gl.constexpr, few: gl.constexpr):  # type: ignore[no-untyped-def]
    """A program that leaves uses no counter any more: the last one to leave sets all of them back."""
    if gl.atomic_add(counters + 1, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        at = gl.arange(0, RESET, few)
        gl.store(counters + at, gl.full_like(at, 0), mask=at < 4 + 2 * SLOTS)


@gluon.jit
def staged_kernel(x, out, counters, pairs, rows, columns, part, PARTS: gl.constexpr, PADDED: gl.constexpr, CHUNKS: gl.constexpr,
                  CHUNK: gl.constexpr, SLOTS: gl.constexpr, RESET: gl.constexpr, EVEN: gl.constexpr, RAISED: gl.constexpr,
                  RESIDENT: gl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Parts of rows, each `part` columns or what is left, in CHUNKS times CHUNK. Reads and writes every element once.

    counters: int32. pairs: float32. PADDED, RESET: powers of two from PARTS and from the number of counters on. EVEN: no part is short.
    RESIDENT: a program goes on to further parts; else there are rows x PARTS programs. RAISED: see `power`; negative keeps subnormals.
    """
    VECTOR: gl.constexpr = BYTES_A_THREAD // (x.dtype.element_ty.primitive_bitwidth // 8)
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
    few: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    room = gl.allocate_shared_memory(x.dtype.element_ty, [CHUNKS, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    lane = gl.arange(0, CHUNK, layout)
    which = gl.arange(0, PADDED, few)
    items = rows * PARTS
    item = gl.program_id(0)
    if PARTS > 1:
        item = gl.atomic_add(counters, 1, sem="relaxed")
    for i in gl.static_range(CHUNKS):
        ask(room, x, item, items, columns, part, lane, PARTS, CHUNK, i, EVEN)
    going = item < items
    while going:
        row = item // PARTS
        p = item % PARTS
        slot = row % SLOTS
        turn = row // SLOTS
        told = counters + 4 + slot
        read = told + SLOTS
        maxima = pairs + slot * PARTS
        sums = maxima + SLOTS * PARTS
        left = gl.minimum(part, columns - p * part)
        async_copy.wait_group(CHUNKS - 1)
        most = chunk_of(room, left, lane, layout, CHUNK, 0, EVEN)
        for i in gl.static_range(1, CHUNKS):
            async_copy.wait_group(CHUNKS - 1 - i)
            most = larger(most, chunk_of(room, left, lane, layout, CHUNK, i, EVEN))
        maximum = gl.max(wide(most), axis=0)
        shift = finite(maximum)
        sum_ = power(wide(chunk_of(room, left, lane, layout, CHUNK, 0, EVEN)), shift, RAISED)
        for i in gl.static_range(1, CHUNKS):
            sum_ += power(wide(chunk_of(room, left, lane, layout, CHUNK, i, EVEN)), shift, RAISED)
        total = gl.sum(sum_, axis=0)
        if PARTS > 1:
            wait_until(read, turn * PARTS)
            # Store, then count, all by the same thread: the atomic releases the stores.
            gl.store(maxima + p, maximum)
            gl.store(sums + p, total)
            gl.atomic_add(told, 1, sem="release")
            wait_until(told, (turn + 1) * PARTS)
            # .cg reads L2, where the other programs' stores are: an L1 line could be stale.
            each = gl.load(maxima + which, mask=which < PARTS, other=float("-inf"), cache_modifier=".cg")
            parts_sums = gl.load(sums + which, mask=which < PARTS, other=0.0, cache_modifier=".cg")
            largest = gl.max(each, axis=0)
            shift = finite(largest)
            total = gl.sum(parts_sums * power(each, shift, -1), axis=0)
            BARRIER()  # all threads have read before one says so
            gl.atomic_add(read, 1, sem="release")
        following = items
        if RESIDENT:
            following = gl.atomic_add(counters, 1, sem="relaxed") if PARTS > 1 else item + gl.num_programs(0)
        inverse = 1.0 / total
        target = out + (row.to(gl.int64) * columns + p * part)
        for i in gl.static_range(CHUNKS):
            value = wide(chunk_of(room, left, lane, layout, CHUNK, i, EVEN))
            if RESIDENT:
                ask(room, x, following, items, columns, part, lane, PARTS, CHUNK, i, EVEN)
            result = (power(value, shift, RAISED) * inverse).to(out.dtype.element_ty)
            if EVEN:
                gl.store(target + lane + i * CHUNK, result)
            else:
                gl.store(target + lane + i * CHUNK, result, mask=lane + i * CHUNK < left)
        item = following
        going = item < items
    if PARTS > 1:
        leave(counters, RESET, SLOTS, few)


OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}
RAISED = {"float32": -1, "float16": 0, "bfloat16": 8}  # by how many powers of two exponentials are raised; -1: see `power`
MOST_PAIRS = 4096
SHARED = 227 * 1024  # of a multiprocessor from sm_90 on; a program takes 1 KiB more than it asks for


@dataclass(frozen=True)
class Plan:
    """How rows of `columns` elements of `dtype` are shared: at most `kib` KiB a program of `warps`, `resident` or a program a part."""

    columns: int
    dtype: str
    kib: int
    warps: int = 8
    vectors: int = 2  # of 16 bytes, of a thread's share of a chunk
    resident: bool = True

    @property
    def size(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def chunk(self) -> int:
        return self.warps * 32 * self.vectors * 16 // self.size

    @property
    def parts(self) -> int:
        return -(-self.columns // (self.kib * 1024 // self.size))

    @property
    def part(self) -> int:
        """Columns of a part but the last, in whole 16s, as Triton wants addresses."""
        return -(-self.columns // self.parts // 16) * 16

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


def build(x: Tensor, out: Tensor, plan: Plan) -> Bind | None:
    """None where the GPU has not the memory, or not the room for a row's programs, and where rows are too few to fill it."""
    rows, columns = x.shape
    items = rows * plan.parts
    aligned = columns % 16 == 0 and x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    if INTERPRETING or x.device.type != "cuda" or not aligned or not processors(x.device) <= items < 2**31 - 2**20:
        return None
    if torch.cuda.get_device_capability(x.device) < (9, 0) or (plan.parts > 1 and not plan.resident):
        return None
    lend = lender(plan.scratch_bytes, x.device, zeroed=plan.counter_bytes)
    memory = lend().memory.tensor
    samples = (x, out, memory.view(torch.int32), memory[plan.counter_bytes // 4 :], rows, columns, plan.part)
    programs = min(items, at_once(plan, staged_kernel.warmup(*samples, grid=(items, 1, 1), **plan.fixed)) * processors(x.device))
    if programs < plan.parts:
        return None
    ready = built(staged_kernel, (programs if plan.resident else items, 1, 1), *samples, **plan.fixed)
    if plan.parts == 1:  # no scratch is used: any address will do
        return lambda x, out: ready(x, out, x.data_ptr(), x.data_ptr(), rows, columns, plan.part)

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        address = scratch.memory.address
        return launched_with(scratch, ready(x, out, address, address + plan.counter_bytes, rows, columns, plan.part))

    return bind


def at_once(plan: Plan, compiled: Any) -> int:
    """Programs that a multiprocessor holds by its registers and its shared memory: the driver refuses a cooperative launch of more."""
    _ = compiled.run  # loads it, from when on its registers are known
    a_warp = -(-compiled.n_regs * 32 // 256) * 256
    by_registers = 4 * (16384 // a_warp) // plan.warps  # each of a multiprocessor's four quarters has 16384
    return int(min(by_registers, SHARED // (compiled.metadata.shared + 1024), 64 // plan.warps))


def specimens() -> dict[str, Specimen]:
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for label, plan in {
            "rows": Plan(32768 * 2 // (4 if dtype == "float32" else 2), dtype, 64),
            "shared rows": Plan(131072, dtype, 64),
            "shared rows, short last part": Plan(131104, dtype, 64),
        }.items():
            types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "counters": "*i32", "pairs": "*fp32"}
            options = {name: plan.fixed[name] for name in ("num_warps", "launch_cooperative_grid", *OPTIONS)}
            constants = {name: value for name, value in plan.fixed.items() if name not in options}
            sizes = dict.fromkeys(("rows", "columns", "part"), "i32")
            found[f"staged {label}, {dtype}"] = Specimen(staged_kernel, {**types, **sizes}, constants, options, ("rows",))
    return found
