"""mean in Triton, in one launch: each program writes the sum of its steps to scratch; the last one waits for all sums and adds them.

Reads n elements. The order of summation depends only on n and the GPU, so all runs give the same bits. A program writes its sum as a
nonzero 32-bit word (+0 as -0) to its own place in scratch; the last program waits until no word is 0, and resets all to 0 for the next
launch or graph replay. No program waits for the last one, so all others finish and it cannot deadlock.
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
    """One partial sum a program, as in GPU MODE, lecture 1; torch sums the partials."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partials + program, tl.sum(widen(tl.load(x + at, mask=at < n, other=0.0)), axis=0))


def build_plain(x: Tensor, out: Tensor) -> Bind:
    """Launches the kernel, then torch's sum, division and copy; torch allocates in each run."""

    def bind(x: Tensor, out: Tensor) -> Launch:
        n, programs = x.numel(), -(-x.numel() // PLAIN_BLOCK)
        partials = torch.empty(programs, dtype=torch.float32, device=x.device)
        first = called(plain_kernel, (programs, 1, 1), x, partials, n, BLOCK=PLAIN_BLOCK)

        def launch() -> None:
            first()
            out.copy_(partials.sum() / n)

        return launch

    return bind


NEGATIVE_ZERO = tl.constexpr(-(1 << 31))  # the bits of -0.0


@triton.jit
def mean_kernel(x, out, words, n, each, large, programs, BLOCK: tl.constexpr, LANES: tl.constexpr, WIDE: tl.constexpr,
                LOADS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A step is LOADS blocks; a thread loads 16 bytes of each. The first `large` programs have `each` consecutive steps, the others one
    each, `programs` in all, in order of memory, so that concurrent programs read nearby addresses. One more program adds the sums."""
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
            # Volatile, so that it reads the L2, where the other programs' stores are. The word is the only data, so no ordering is needed.
            word = tl.load(words + at, mask=at < programs, other=NEGATIVE_ZERO, volatile=True)
            while tl.max((word == 0).to(tl.int32), axis=0) == 1:
                word = tl.load(words + at, mask=at < programs, other=NEGATIVE_ZERO, volatile=True)
            parts += word.to(tl.float32, bitcast=True)
            tl.store(words + at, 0, mask=at < programs)
        count = tl.zeros((), tl.float32) + n
        tl.store(out, narrow(tl.div_rn(tl.sum(parts, axis=0), count), out.dtype.element_ty))


TABLE = "triton_jit/mean"  # name of the table of opwise tune
THREADS, LOADS = 512, 4
PROGRAMS_A_PROCESSOR = 4  # an SM; 2048 threads. With 2, not all of a thread's four loads were in flight, 1 to 4 % slower
LONGER = ((4, 2), (8, 4), (16, 8))  # (waves from which on, steps of a program). At 1 GiB 4 steps are 0.7 % slower than 8 on an H200
LANES_A_THREAD = 4  # words that a thread of the last program loads at once
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False, "num_stages": 1}


class Share(NamedTuple):
    """A launch configuration: threads of a program, 16-byte loads in flight of a thread, programs of an SM at most."""

    threads: int
    loads: int
    at_once: int

    def __str__(self) -> str:
        return f"{self.threads}x{self.loads}x{self.at_once}"

    def block(self, element_size: int) -> int:
        return self.threads * 16 // element_size

    def steps(self, n: int, element_size: int, multiprocessors: int) -> Steps:
        """How programs share the steps of n elements."""
        return mean_steps(-(-n // (self.block(element_size) * self.loads)), self.at_once * multiprocessors, LONGER)


SHIPPED, SMALL = Share(THREADS, LOADS, PROGRAMS_A_PROCESSOR), Share(THREADS // 2, LOADS, 2 * PROGRAMS_A_PROCESSOR)
# What opwise tune chooses among: 1024 or 2048 resident threads an SM.
SHARES = tuple(dict.fromkeys((SHIPPED, SMALL, *(Share(t, loads, at_once // t) for at_once in (1024, 2048) for t in (256, 512, 1024)
                                                for loads in (2, 4, 8)))))  # fmt: skip


def shipped(n: int, element_size: int, multiprocessors: int) -> Share:
    """SMALL if there would be at most two programs an SM: on an H200 it is 4 % faster at 4 MiB, 1 % slower at 16 MiB."""
    return SMALL if n <= SHIPPED.block(element_size) * LOADS * 2 * multiprocessors else SHIPPED


def tuned(x: Tensor) -> Share:
    """The fastest one in the table of opwise tune for x's size or the nearest size; else the shipped one."""
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
    """Scratch as int32 words, one a program that has steps."""
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
