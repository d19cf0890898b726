"""mean in Triton, in one launch: each program sums its steps and tells the sum; the last one waits for all sums and adds them.

Reads n elements. The order of every sum is fixed by n and the GPU alone, so ten runs are bit-equal. A sum is told by a word other than 0
(+0 as -0) in scratch memory of the binding's own; the last program leaves 0 in each place, for the next launch, the next binding or a
graph's replay. It alone waits and nobody waits for it, so the others come to their ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.cuda_src.plan import Steps, mean_steps
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.scratch import Scratch, launched_with, lender
from opwise.backends.triton_jit.common.launch import INTERPRETING, built, called, processors
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.tuned import look

PLAIN_BLOCK = 1024


@triton.jit
def plain_kernel(x, partials, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """GPU MODE, lecture 1: one partial sum a program; summing the partials is left to torch."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partials + program, tl.sum(widen(tl.load(x + at, mask=at < n, other=0.0)), axis=0))


def build_plain(x: Tensor, out: Tensor) -> Bind:
    """Two launches, and an allocation in each run: torch's sum of the partials is a tensor of its own."""

    def bind(x: Tensor, out: Tensor) -> Launch:
        n, programs = x.numel(), -(-x.numel() // PLAIN_BLOCK)
        partials = torch.empty(programs, dtype=torch.float32, device=x.device)
        first = called(plain_kernel, (programs, 1, 1), x, partials, n, BLOCK=PLAIN_BLOCK)

        def launch() -> None:
            first()
            out.copy_(partials.sum() / n)

        return launch

    return bind


NEGATIVE_ZERO = tl.constexpr(-(1 << 31))  # its bits


@triton.jit
def mean_kernel(x, out, words, n, each, large, programs, BLOCK: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
                LOADS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A step is LOADS blocks, a load of 16 bytes a thread each. Programs begin in order of memory, so that none is far ahead of the others:
    `large` of `each` consecutive steps, then ones of a single step, `programs` in all; and one more, which adds."""
    program = tl.program_id(0)
    if WIDE:  # an index can pass 2^31
        n = tl.cast(n, tl.int64)
    if program < programs:
        lane = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        first, end = program + large * (each - 1), program + large * (each - 1) + 1
        if program < large:
            first, end = program * each, program * each + each
        for step in range(first, end):
            start = step * (BLOCK * LOADS)
            if WIDE:
                start = tl.cast(step, tl.int64) * (BLOCK * LOADS)
            if start + BLOCK * LOADS <= n:
                for i in tl.static_range(LOADS):
                    total += widen(tl.load(x + start + i * BLOCK + lane))
            else:
                for i in tl.static_range(LOADS):
                    at = start + i * BLOCK + lane
                    total += widen(tl.load(x + at, mask=at < n, other=0.0))
        bits = tl.sum(total, axis=0).to(tl.int32, bitcast=True)
        tl.store(words + program, tl.where(bits == 0, NEGATIVE_ZERO, bits))
    else:
        which = tl.arange(0, LANES)
        parts = tl.zeros((LANES,), tl.float32)
        for base in range(0, programs, LANES):
            at = base + which
            # Volatile: from L2, where the other programs' stores are. The word is all that is told, so no order is asked for.
            word = tl.load(words + at, mask=at < programs, other=NEGATIVE_ZERO, volatile=True)
            while tl.max((word == 0).to(tl.int32), axis=0) == 1:
                word = tl.load(words + at, mask=at < programs, other=NEGATIVE_ZERO, volatile=True)
            parts += word.to(tl.float32, bitcast=True)
            tl.store(words + at, 0, mask=at < programs)
        count = tl.zeros((), tl.float32) + n
        tl.store(out, narrow(tl.div_rn(tl.sum(parts, axis=0), count), out.dtype.element_ty))


TABLE = "triton_jit/mean"  # of opwise tune
THREADS, LOADS = 512, 4
PROGRAMS_A_PROCESSOR = 4  # 2048 threads a processor: with 2 of them, not all of a thread's four loads were in flight, and 1 to 4 % slower
LONGER = ((4, 2), (8, 4), (16, 8))  # steps a program, from so many turns on: at 1 GiB 4 are 0.7 % slower than 8 on an H200
LANES_A_THREAD = 4  # words that a thread of the last program asks for
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

    def steps(self, n: int, element_size: int, multiprocessors: int) -> Steps:
        """How programs share those of n elements."""
        return mean_steps(-(-n // (self.block(element_size) * self.loads)), self.at_once * multiprocessors, LONGER)


SHIPPED, SMALL = Share(THREADS, LOADS, PROGRAMS_A_PROCESSOR), Share(THREADS // 2, LOADS, 2 * PROGRAMS_A_PROCESSOR)
# What opwise tune chooses among: 1024 or 2048 threads a multiprocessor at once.
SHARES = tuple(dict.fromkeys((SHIPPED, SMALL, *(Share(t, loads, at_once // t) for at_once in (1024, 2048) for t in (256, 512, 1024)
                                                for loads in (2, 4, 8)))))  # fmt: skip


def shipped(n: int, element_size: int, multiprocessors: int) -> Share:
    """Half as large programs where there would be less than two a multiprocessor: on an H200 4 % quicker at 4 MiB, 1 % slower at 16."""
    return SMALL if n <= SHIPPED.block(element_size) * LOADS * 2 * multiprocessors else SHIPPED


def tuned(x: Tensor) -> Share:
    """What was measured to be the quickest on this GPU for x's size, or the nearest; else the shipped one."""
    dtype, by_name = str(x.dtype).removeprefix("torch."), {str(share): share for share in SHARES}
    name = look(TABLE, x.device).pick(dtype, (x.numel(),), by_name)
    return shipped(x.numel(), x.element_size(), processors(x.device)) if name is None else by_name[name]


def build(x: Tensor, out: Tensor) -> Bind:
    n = x.numel()
    share = tuned(x)
    block, steps = share.block(x.element_size()), share.steps(n, x.element_size(), processors(x.device))
    (each, large, programs), room = steps, steps.scratch_bytes
    lend = lender(room, x.device, zeroed=room)
    ready = built(
        mean_kernel, (programs + 1, 1, 1), x, out, _words(lend()), n, each, large, programs, BLOCK=block, LOADS=share.loads,
        LANES=LANES_A_THREAD * share.threads, WIDE=n > 2**31 - 4 * block * share.loads, num_warps=share.threads // 32, **OPTIONS,
    )  # fmt: skip

    def bind(x: Tensor, out: Tensor) -> Launch:
        scratch = lend()
        if INTERPRETING:
            return ready(x, out, _words(scratch), n, each, large, programs)
        return launched_with(scratch, ready(x, out, scratch.memory.address, n, each, large, programs))

    return bind


def _words(scratch: Scratch) -> Tensor:
    """One a program that has steps: at most 64 KiB, on 16 bytes."""
    return scratch.memory.tensor.view(torch.int32)


VARIANTS = {
    "": Variant(build, "one launch, the last program waits for the others' sums and adds them"),
    "plain": Variant(build_plain, "kernel[grid](...), a partial sum a block of 1024, summed by torch"),
}


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    options = {"num_warps": THREADS // 32, **OPTIONS}
    for dtype in ("float32", "float16", "bfloat16"):
        for label, n, odd in (("", "i32", ()), (", unaligned", "i32", ("x", "n")), (", beyond 2^31", "i64", ())):
            told = {"each": "i32", "large": "i32", "programs": "i32"}
            types = {"x": POINTERS[dtype], "out": POINTERS[dtype], "words": "*i32", "n": n, **told}
            block = THREADS * 16 // (4 if dtype == "float32" else 2)
            constants = {"BLOCK": block, "LANES": LANES_A_THREAD * THREADS, "WIDE": n == "i64", "LOADS": LOADS}
            found[dtype + label] = Specimen(mean_kernel, types, constants, options, (*odd, *told))
        plain = {"x": POINTERS[dtype], "partials": "*fp32", "n": "i32"}
        found[f"plain, {dtype}"] = Specimen(plain_kernel, plain, {"BLOCK": PLAIN_BLOCK})
    return found
