"""Triton kernels for the roofs: they only move bytes, multiply and add, or start. Imports Triton: import it on use.

x, y: 1-D float32 tensors, contiguous. Every launcher returns a bound launch for one pair of buffers. Offsets are 64-bit: 4 GiB hold 2^30
elements, and a tail block reaches past them."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

Launch = Callable[[], None]

# (elements a program, warps): from one access of 16 bytes a thread to four. Which is best depends on the number of bytes; all are tried.
SHAPES = ((512, 4), (1024, 4), (2048, 4), (4096, 8))
LONG_READERS = ((2048, 4), (4096, 8))  # also as a grid that stays resident, each program reading many blocks
WARPS_PER_SM = 64
NEVER = tl.constexpr(1e30)  # no sum of N(0, 1) numbers
FMA_CHAINS = 1024  # elements a program: 8 independent chains a thread of 4 warps, twice the 4 cycles that an FMA takes
FMA_UNROLLED = 64
FMA_TURNS = 256
FMA_PROGRAMS_PER_SM = 64  # four waves of 16 programs of 4 warps


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    """Reads 4 n bytes, writes 4 n."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def write_kernel(y, n, BLOCK: tl.constexpr):
    """Writes 4 n bytes."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.full((BLOCK,), 1.0, tl.float32), mask=at < n)


@triton.jit
def read_kernel(x, y, n, programs, BLOCK: tl.constexpr):
    """Reads 4 n bytes. The sums are stored only if they equal NEVER, which keeps every load alive without a reduction or a write."""
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), programs):
        at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + tl.arange(0, BLOCK), total, mask=total == NEVER)


@triton.jit
def fma_kernel(y, a, b, turns, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):
    """2 * turns * UNROLLED flops an element, each FMA waiting for the one before it in its own chain only."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = at.to(tl.float32)
    for _turn in range(turns):
        for _step in tl.static_range(UNROLLED):
            x = x * a + b
    tl.store(y + at, x)


@triton.jit
def empty_kernel(y):
    """Does nothing: the time of a launch alone."""


def copies(x: Tensor, y: Tensor) -> Iterator[tuple[str, Launch]]:
    n = x.numel()
    for block, warps in SHAPES:
        yield f"triton {block}", _bound(copy_kernel, triton.cdiv(n, block), (x, y, n), BLOCK=block, num_warps=warps)


def writes(y: Tensor) -> Iterator[tuple[str, Launch]]:
    n = y.numel()
    for block, warps in SHAPES:
        yield f"triton {block}", _bound(write_kernel, triton.cdiv(n, block), (y, n), BLOCK=block, num_warps=warps)


def reads(x: Tensor) -> Iterator[tuple[str, Launch]]:
    n = x.numel()
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    y = torch.empty(max(block for block, _ in SHAPES), device=x.device)
    for block, warps in SHAPES:
        blocks = triton.cdiv(n, block)
        resident = min(blocks, sms * WARPS_PER_SM // warps)
        for programs in sorted({blocks, resident} if (block, warps) in LONG_READERS else {blocks}):
            yield f"triton {block}x{programs}", _bound(read_kernel, programs, (x, y, n, programs), BLOCK=block, num_warps=warps)


def fma(device: torch.device) -> tuple[Launch, float]:
    """A launch of FMA chains, and its flops. The factor keeps values near 1, without overflow or subnormals."""
    programs = torch.cuda.get_device_properties(device).multi_processor_count * FMA_PROGRAMS_PER_SM
    y = torch.empty(programs * FMA_CHAINS, device=device)
    launch = _bound(fma_kernel, programs, (y, 0.5, 0.5, FMA_TURNS), BLOCK=FMA_CHAINS, UNROLLED=FMA_UNROLLED, num_warps=4)
    return launch, 2.0 * FMA_TURNS * FMA_UNROLLED * y.numel()


def empty(device: torch.device) -> Launch:
    return _bound(empty_kernel, 1, (torch.empty(1, device=device),), num_warps=1)


def _bound(kernel, programs, arguments, **options) -> Launch:
    def launch() -> None:
        kernel[(programs,)](*arguments, **options)

    return launch
