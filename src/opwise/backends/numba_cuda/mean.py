"""mean over all elements, accumulated in float32. Reads x once.

The fast kernel is one launch. Each block writes the sum of its elements to scratch and exits; the block of the highest index polls scratch
for all sums and adds them. A word other than 0 means "ready" (a sum of +0 is written as -0). The last block resets each word to 0, so that
the next launch, or a replay of a CUDA graph, can use scratch again. The plain kernel is two launches, in which no block waits.

Some SMs read a fifth faster than others, so with one wave of equal shares the addresses being read would drift apart. Hence many short
blocks, which the hardware starts in address order as SMs free up; blocks of one step come last, so that SMs finish together. This makes the
time before a block's first load matter: unsigned values are zero-extended, and the first step is peeled off the loop, since LLVM
computes the unrolled loop's trip count before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwise.backends.cuda_src.plan import mean_steps
from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, types, uint32
from opwise.backends.numba_cuda.common.dtypes import DTYPES, f32, name_of
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.plain import FEW_BLOCKS, jit, plain
from opwise.backends.numba_cuda.common.reduce import block_sum_of, within_of
from opwise.backends.numba_on_cpu import gpu_of
from opwise.backends.protocol import Bind, Variant

PLAIN_THREADS, PLAIN_BLOCKS = 256, 1024
ZERO = f32(0.0)


@jit
def sums(x: Any, out: Any, n: Any) -> None:
    """out[block] = the sum of the block's share of x (a grid-stride loop), divided by n. out: (blocks,)."""
    partial = cuda.shared.array(0, float32)
    thread, total = cuda.threadIdx.x, ZERO
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += float32(x[i])
    partial[thread] = total
    half = PLAIN_THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            partial[thread] += partial[thread + half]
        half //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = partial[0] / float32(n)


def call(x: Any, partial: Any, out: Any, stream: Any) -> None:
    launched = PLAIN_THREADS, stream, 4 * PLAIN_THREADS
    sums[(partial.size, *launched)](x, partial, 1)
    sums[(1, *launched)](partial, out, x.size)


def partial_sums(x: Tensor) -> Tensor:
    blocks = min(-(-x.numel() // PLAIN_THREADS), PLAIN_BLOCKS if x.is_cuda else FEW_BLOCKS)
    return torch.empty(blocks, dtype=torch.float32, device=x.device)


build_plain = plain(call, flat=True, scratch=partial_sums)


class Shape(NamedTuple):
    """threads: of a block; loads: in flight in a thread; blocks: resident on an SM, which limits registers a thread."""

    threads: int
    loads: int
    blocks: int


SHAPE = Shape(512, 4, 3)  # best or level from 2 MiB to 1 GiB on an H200
AT_ONCE = 8  # words of scratch that a thread of the last block loads at a time


@cache
def fast_kernel(dtype: str, wide: bool, shape: Shape) -> Kernel:
    """Parameters: addresses of x and out; n: elements; many, large: the first `large` blocks take `many` steps of threads * loads vectors
    (elements if not `wide`), the others one; scratch: address of a uint32 a block, 0 before and after, unused with a single block."""
    load, load_one, store_one = ptx.LOAD[dtype, wide], ptx.LOAD[dtype, False], ptx.STORE[dtype, False]
    size = ptx.BYTES[dtype]
    each = ptx.ELEMENTS[dtype] if wide else 1
    shift = each.bit_length() - 1
    threads, loads, per_sm = shape
    step, count = each * size, loads * each
    warps = threads // 32
    within, block_sum = within_of(each), block_sum_of(warps)

    @inlined
    def take(address: Any, values: Any, sums: Any) -> None:
        for u in range(loads):
            load(address + u * (threads * step), values, u * each)
        for u in range(loads):
            sums[u] += within(values, u * each)

    def mean(x: Any, out: Any, n: Any, many: Any, large: Any, scratch: Any) -> None:
        values, sums = cuda.local.array(count, float32), cuda.local.array(loads, float32)
        of_warps = cuda.shared.array(warps, float32)
        thread, block, blocks = int64(uint32(cuda.threadIdx.x)), int64(uint32(cuda.blockIdx.x)), int64(uint32(cuda.gridDim.x))
        many, large = int64(uint32(many)), int64(uint32(large))
        vectors = n >> shift
        for u in range(loads):  # one accumulator a load: short dependency chains, and less rounding error than one sum
            sums[u] = ZERO
        at, left = block + large * (many - 1), int64(1)
        if block < large:
            at, left = block * many, many
        i = at * (threads * loads) + thread
        whole = vectors - threads * loads + thread  # the largest i of a complete step
        if i <= whole:
            take(x + i * step, values, sums)
            i += threads * loads
            left -= 1
        while left > 0 and i <= whole:
            take(x + i * step, values, sums)
            i += threads * loads
            left -= 1
        if left > 0:
            for u in range(loads):  # the step that the end cuts off
                if i + u * threads < vectors:
                    load(x + (i + u * threads) * step, values, 0)
                    sums[u] += within(values, 0)
        if each > 1 and block == 0 and thread < n - vectors * each:  # the elements after the last whole vector
            load_one(x + (vectors * each + thread) * size, values, 0)
            sums[0] += values[0]
        total = ZERO
        for u in range(loads):
            total += sums[u]
        total = block_sum(total, thread, of_warps)
        if thread == 0 and blocks > 1:
            bits = ptx.bits_of(total)
            ptx.store_word(scratch + block * 4, uint32(0x80000000) if bits == uint32(0) else bits)
        if block < blocks - 1:
            return
        if blocks > 1:  # the last block: others never wait for it, so they finish
            cuda.syncthreads()  # of_warps is reused
            total = ZERO
            words = cuda.local.array(AT_ONCE, uint32)
            i = thread
            while i < blocks:
                missing = True
                while missing:
                    missing = False
                    for u in range(AT_ONCE):
                        words[u] = uint32(0x80000000)
                        if i + u * threads < blocks:
                            words[u] = ptx.load_word(scratch + (i + u * threads) * 4)
                    for u in range(AT_ONCE):
                        if words[u] == uint32(0):
                            missing = True
                for u in range(AT_ONCE):
                    total += ptx.float_of(words[u])
                    if i + u * threads < blocks:
                        ptx.store_word(scratch + (i + u * threads) * 4, uint32(0))
                i += AT_ONCE * threads
            total = block_sum(total, thread, of_warps)
        if thread == 0:
            values[0] = total / float32(n)
            store_one(out, values, 0)

    return Kernel(mean, (int64,) * 6, threads, min_blocks=per_sm)


def build(x: Tensor, out: Tensor) -> Bind:
    dtype, n = name_of(x), x.numel()
    wide = x.data_ptr() % 16 == 0
    per_block = SHAPE.threads * SHAPE.loads * (ptx.ELEMENTS[dtype] if wide else 1)
    at_once = gpu_of(x.device).sms * SHAPE.blocks
    shared = mean_steps(-(-n // per_block), at_once)
    kernel, room = fast_kernel(dtype, wide, SHAPE), shared.scratch_bytes
    return kernel.fixed((shared.blocks, 1), n, shared.each, shared.large, device=x.device, scratch_bytes=room, zeroed=room)


def kernels() -> Mapping[str, Kernel]:
    return {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w, SHAPE) for d in DTYPES for w in (True, False)}


PLAIN = {
    "sums": (sums, lambda t: types.void(t[::1], float32[::1], int64)),
    "finish": (sums, lambda t: types.void(float32[::1], t[::1], int64)),
}

VARIANTS = {
    "": Variant(build, "one launch: the last block waits for the others' sums and adds them"),
    "plain": Variant(build_plain, "two launches of a grid-stride loop, sums in shared memory, no waiting"),
}
