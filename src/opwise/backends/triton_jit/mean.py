"""mean in Triton, in one launch: each program sums its share into a partial, and the one that finishes last sums the partials.

Reads n elements. The order of every sum is fixed by n alone, so ten runs are bit-equal. The count of finished programs lives in
scratch memory of the binding's own; the last program sets it back to zero, for the next launch, the next binding or a graph's replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.scratch import COUNTER_BYTES, Scratch, launched_with, lender
from opwise.backends.triton_jit.launch import INTERPRETING, built, processors
from opwise.backends.triton_jit.portable import narrow, widen
from opwise.backends.triton_jit.specimen import POINTERS, Specimen
from opwise.backends.tuned import look


@triton.jit
def mean_kernel(x, out, partials, finished, n, PROGRAMS: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
                LOADS: tl.constexpr, LATE: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """PROGRAMS programs share steps of LOADS blocks; LOADS loads of 16 bytes are in flight a thread.

    Of ROWS rows of programs the first walks most of the way, and each further one LATE turns more, its programs starting as processors
    become free: 1 % of 16 bits at 1 GiB."""
    program, row = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    if WIDE:  # an index can pass 2^31
        n = tl.cast(n, tl.int64)
    first, end = program, tl.cdiv(n, BLOCK * LOADS)
    if ROWS > 1:
        upto = (n // (BLOCK * LOADS * PROGRAMS) - LATE * (ROWS - 1 - row)).to(tl.int32)
        if row > 0:
            first += (upto - LATE) * PROGRAMS
        if row < ROWS - 1:
            end = (upto * PROGRAMS).to(end.dtype)
    for step in range(first, end, PROGRAMS):
        start = step * BLOCK * LOADS
        if WIDE:
            start = tl.cast(step, tl.int64) * BLOCK * LOADS
        if start + BLOCK * LOADS <= n:
            for i in tl.static_range(LOADS):
                total += widen(tl.load(x + start + i * BLOCK + lane))
        else:
            for i in tl.static_range(LOADS):
                at = start + i * BLOCK + lane
                total += widen(tl.load(x + at, mask=at < n, other=0.0))
    # Store, then count, both by the same thread: the atomic releases the store and acquires those of all that counted before.
    tl.store(partials + row * PROGRAMS + program, tl.sum(total, axis=0))
    if tl.atomic_add(finished, 1, sem="acq_rel", scope="gpu") == PROGRAMS * ROWS - 1:
        which = tl.arange(0, PADDED)
        # .cg reads L2, where the other programs' stores are: an L1 line could be stale.
        parts = tl.load(partials + which, mask=which < PROGRAMS * ROWS, other=0.0, cache_modifier=".cg")
        count = tl.zeros((), tl.float32) + n
        tl.store(out, narrow(tl.div_rn(tl.sum(parts, axis=0), count), out.dtype.element_ty))
        tl.store(finished, 0)


@triton.jit
def textbook_kernel(x, partials, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """GPU MODE, lecture 1: one partial sum a program; summing the partials is left to torch."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partials + program, tl.sum(widen(tl.load(x + at, mask=at < n, other=0.0)), axis=0))


TABLE = "triton_jit/mean"  # of opwise tune
THREADS, LOADS = 512, 4
PROGRAMS_A_PROCESSOR = 4  # 2048 threads a processor: with 2 of them, not all of a thread's four loads were in flight, and 1 to 4 % slower
LATE_TURNS, TURNS_PER_ROW, MOST_ROWS = 2, 16, 8  # of late programs: from 16 turns on, 264 MiB on an H200
TEXTBOOK_BLOCK = 1024
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}


class Share(NamedTuple):
    """How the work is shared: threads a program, loads of 16 bytes in flight a thread, programs a multiprocessor at most."""

    threads: int
    loads: int
    at_once: int

    def __str__(self) -> str:
        return f"{self.threads}x{self.loads}x{self.at_once}"

    def block(self, element_size: int) -> int:
        return self.threads * 16 // element_size

    def programs(self, n: int, element_size: int, multiprocessors: int) -> int:
        return min(-(-n // (self.block(element_size) * self.loads)), self.at_once * multiprocessors)

    def rows(self, n: int, element_size: int, programs: int) -> int:
        return 1 + min(n // (self.block(element_size) * self.loads * programs) // TURNS_PER_ROW, MOST_ROWS)


SHIPPED = Share(THREADS, LOADS, PROGRAMS_A_PROCESSOR)
# What opwise tune chooses among: 1024 or 2048 threads a multiprocessor at once.
SHARES = tuple(dict.fromkeys((SHIPPED, *(Share(t, loads, at_once // t) for at_once in (1024, 2048) for t in (256, 512, 1024)
                                         for loads in (2, 4, 8)))))  # fmt: skip


def tuned(x: Tensor) -> Share:
    """What was measured to be the quickest on this GPU for x's size, or the nearest; else the shipped one."""
    dtype, by_name = str(x.dtype).removeprefix("torch."), {str(share): share for share in SHARES}
    name = look(TABLE, x.device).pick(dtype, dtype, (x.numel(),), by_name)
    return SHIPPED if name is None else by_name[name]


def build(x: Tensor, out: Tensor) -> Bind:
    n = x.numel()
    share = tuned(x)
    block, programs = share.block(x.element_size()), share.programs(n, x.element_size(), processors(x.device))
    rows = share.rows(n, x.element_size(), programs)
    lend = lender(COUNTER_BYTES + 4 * programs * rows, x.device)
    partials, finished = _parts(lend())
    ready = built(
        mean_kernel, (programs, rows, 1), x, out, partials, finished, n, PROGRAMS=programs, ROWS=rows,
        PADDED=triton.next_power_of_2(programs * rows), BLOCK=block, LOADS=share.loads, LATE=LATE_TURNS,
        WIDE=n > 2**31 - 2 * block * share.loads, num_warps=share.threads // 32, **OPTIONS,
    )  # fmt: skip

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        if INTERPRETING:
            return ready(x, out, *_parts(scratch), n)
        address = scratch.memory.address
        return launched_with(scratch, ready(x, out, address + COUNTER_BYTES, address, n))

    return bind


def _parts(scratch: Scratch) -> tuple[Tensor, Tensor]:
    """A partial a program and the count of finished ones: at most a few KiB. Both start on 16 bytes, as the kernel was compiled."""
    return scratch.memory.tensor[COUNTER_BYTES // 4 :], scratch.memory.tensor[:1].view(torch.int32)


def build_textbook(x: Tensor, out: Tensor) -> Bind:
    """Two launches, and an allocation in each run: torch's sum of the partials is a tensor of its own."""
    n = x.numel()
    programs = -(-n // TEXTBOOK_BLOCK)
    partials = torch.empty(programs, dtype=torch.float32, device=x.device)
    ready = built(textbook_kernel, (programs, 1, 1), x, partials, n, BLOCK=TEXTBOOK_BLOCK, num_warps=4, **OPTIONS)

    def bind(x: Tensor, out: Tensor) -> Launch:
        partials = torch.empty(programs, dtype=torch.float32, device=x.device)
        first = ready(x, partials, n)

        def launch() -> None:
            first()
            out.copy_(partials.sum() / n)

        return launch

    return bind


VARIANTS = {
    "": Variant(build, "one launch, the program that finishes last sums the partials"),
    "textbook": Variant(build_textbook, "a partial sum a block of 1024, summed by torch"),
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    options = {"num_warps": THREADS // 32, **OPTIONS}
    for dtype in ("float32", "float16", "bfloat16"):
        for label, n, odd in (("", "i32", ()), (", unaligned", "i32", ("x", "n")), (", beyond 2^31", "i64", ())):
            types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "partials": "*fp32", "finished": "*i32", "n": n}
            block = THREADS * 16 // (4 if dtype == "float32" else 2)
            constants = {"PROGRAMS": 528, "ROWS": 5, "PADDED": 4096, "BLOCK": block, "LOADS": LOADS, "LATE": LATE_TURNS, "WIDE": n == "i64"}
            found[dtype + label] = Specimen(mean_kernel, types, constants, options, odd)
        textbook = {"x": POINTERS[dtype], "partials": "*fp32", "n": "i32"}
        found[f"textbook, {dtype}"] = Specimen(textbook_kernel, textbook, {"BLOCK": TEXTBOOK_BLOCK}, {"num_warps": 4, **OPTIONS})
    return found
