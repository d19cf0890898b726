"""mean over all elements, accumulated in float32. Reads x once.

The fast kernel is one launch: each block sums its share, leaves the sum in scratch and ends; the grid's last block waits for all sums and
adds them up. A sum is told by a word other than 0 (+0 as -0), and the last block leaves 0 in each place, so that the next launch, or a
replay of a CUDA graph, finds scratch as this one did. Here one wave of blocks shares x; a large x goes to mean_ordered. The portable kernel
is two launches, in which no block waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from numba import cuda, float32, int64, uint32
from torch import Tensor

from opwise.backends.cuda_src.plan import mean_steps
from opwise.backends.numba_cuda import portable, ptx
from opwise.backends.numba_cuda.launch import SIMULATED, Kernel
from opwise.backends.numba_cuda.mean_ordered import ordered_kernel
from opwise.backends.numba_cuda.reduce import block_sum_of, within_of
from opwise.backends.protocol import Bind, Launch, Variant


class Shape(NamedTuple):
    """threads a block, loads in flight a thread, blocks a multiprocessor: held to the registers that let so many run at once."""

    threads: int
    loads: int
    blocks: int


SHAPE = Shape(512, 4, 3)  # best or level from 64 MiB to 1 GiB on an H200, and ahead of four blocks at 64
PORTABLE_THREADS, PORTABLE_BLOCKS = (8, 2) if SIMULATED else (256, 1024)
ZERO = portable.f32(0.0)


@cache
def fast_kernel(dtype: str, wide: bool, shape: Shape) -> Kernel:
    """x, out: addresses; n elements; scratch: the address of a word a block, 0 before and after."""
    load, load_one, store_one = ptx.LOAD[dtype, wide], ptx.LOAD[dtype, False], ptx.STORE[dtype, False]
    size = ptx.BYTES[dtype]
    each = ptx.ELEMENTS[dtype] if wide else 1
    threads, loads, per_sm = shape
    step, count = each * size, loads * each
    warps = threads // 32
    within, block_sum = within_of(each), block_sum_of(warps)

    def mean(x: Any, out: Any, n: Any, scratch: Any) -> None:
        values, sums = cuda.local.array(count, float32), cuda.local.array(loads, float32)
        of_warps = cuda.shared.array(warps, float32)
        thread, block, blocks = int64(cuda.threadIdx.x), int64(cuda.blockIdx.x), int64(cuda.gridDim.x)
        vectors = n // each
        for u in range(loads):  # as many running sums as loads in flight: short chains, and a smaller error than one sum's
            sums[u] = ZERO
        i = block * (threads * loads) + thread
        while i + (loads - 1) * threads < vectors:
            for u in range(loads):
                load(x + (i + u * threads) * step, values, u * each)
            for u in range(loads):
                sums[u] += within(values, u * each)
            i += blocks * (threads * loads)
        for u in range(loads):  # what is left of this thread's last stride
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
        if thread == 0:
            bits = ptx.bits_of(total)
            ptx.store_word(scratch + block * 4, uint32(0x80000000) if bits == uint32(0) else bits)
        if block == blocks - 1:  # nobody waits for it, so the others come to their ends
            cuda.syncthreads()  # of_warps is written again
            total = ZERO
            i = thread
            while i < blocks:
                bits = uint32(0)
                while bits == uint32(0):
                    bits = ptx.load_word(scratch + i * 4)
                ptx.store_word(scratch + i * 4, uint32(0))
                total += ptx.float_of(bits)
                i += threads
            total = block_sum(total, thread, of_warps)
            if thread == 0:
                values[0] = total / float32(n)
                store_one(out, values, 0)

    return Kernel(mean, (int64,) * 4, threads, min_blocks=per_sm)


@cache
def portable_kernel(source: str, target: str) -> Kernel:
    """Each block writes the sum of its share of `source`, divided by `by`, to target[block]. n elements."""
    load, store = portable.LOAD[source], portable.STORE[target]
    threads = PORTABLE_THREADS

    def sums(x: Any, out: Any, n: Any, by: Any) -> None:
        partial = cuda.shared.array(0, float32)
        thread = cuda.threadIdx.x
        total = ZERO
        i = int64(cuda.blockIdx.x) * threads + thread
        while i < n:
            total += load(x, i)
            i += int64(cuda.gridDim.x) * threads
        partial[thread] = total
        half = threads // 2
        while half > 0:
            cuda.syncthreads()
            if thread < half:
                partial[thread] += partial[thread + half]
            half //= 2
        if thread == 0:
            store(out, int64(cuda.blockIdx.x), partial[0] / float32(by))

    return Kernel(sums, (portable.pointer(source), portable.pointer(target), int64, int64), threads, dynamic_shared=4 * threads)


def build_portable(x: Tensor, out: Tensor) -> Bind:
    dtype, n = portable.name_of(x), x.numel()
    blocks = min(-(-n // PORTABLE_THREADS), PORTABLE_BLOCKS)
    first, second = portable_kernel(dtype, "float32"), portable_kernel("float32", dtype)

    def bind(x: Tensor, out: Tensor) -> Launch:
        partial = torch.empty(blocks, dtype=torch.float32, device=x.device)
        share = first.bind((blocks, 1), x, partial, n, 1, device=x.device)
        finish = second.bind((1, 1), partial, out, blocks, n, device=x.device)

        def launch() -> None:
            share()
            finish()

        return launch

    return bind


def build(x: Tensor, out: Tensor) -> Bind:
    if SIMULATED:
        return build_portable(x, out)
    dtype, n = portable.name_of(x), x.numel()
    wide = x.data_ptr() % 16 == 0
    per_block = SHAPE.threads * SHAPE.loads * (ptx.ELEMENTS[dtype] if wide else 1)
    at_once = torch.cuda.get_device_properties(x.device).multi_processor_count * SHAPE.blocks
    steps = -(-n // per_block)
    shared = mean_steps(steps, at_once)
    if wide and shared.each > 1:  # as CUDA C++ has it
        ordered, room = ordered_kernel(dtype, SHAPE), shared.scratch_bytes
        return ordered.fixed((shared.blocks + 1, 1), n, shared.each, shared.large, device=x.device, scratch_bytes=room, zeroed=room)
    kernel, blocks = fast_kernel(dtype, wide, SHAPE), min(steps, at_once)
    return kernel.fixed((blocks, 1), n, device=x.device, scratch_bytes=4 * at_once, zeroed=4 * at_once)


def kernels() -> Mapping[str, Kernel]:
    found = {f"{d} {'vector' if w else 'scalar'}": fast_kernel(d, w, SHAPE) for d in portable.DTYPES for w in (True, False)}
    found |= {f"{d} vector, in order": ordered_kernel(d, SHAPE) for d in portable.DTYPES}
    found |= {f"{d} portable sums": portable_kernel(d, "float32") for d in portable.DTYPES}
    return found | {f"{d} portable finish": portable_kernel("float32", d) for d in portable.DTYPES}


VARIANTS = {
    "": Variant(build, "one launch: the last block waits for the others' sums and adds them"),
    "portable": Variant(build_portable, "two launches, sums in shared memory, no waiting"),
}
