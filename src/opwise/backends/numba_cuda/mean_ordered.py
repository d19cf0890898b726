"""mean of a large x whose pieces lie on 16 bytes: blocks that begin in order of memory.

Some multiprocessors read a fifth faster than others, and the equal shares of one wave drift apart in memory. Here blocks are short, and the
hardware begins them in order as it finds room; those of one step come last, and let all multiprocessors end together. The last block has
none: it begins before the others end, waits for their sums and adds them, several at once. Sums are told as in mean.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64, uint32

from opwise.backends.numba_cuda import portable, ptx
from opwise.backends.numba_cuda.launch import Kernel
from opwise.backends.numba_cuda.reduce import block_sum_of, within_of

ZERO = portable.f32(0.0)
AT_ONCE = 8  # words that a thread of the last block asks for


@cache
def ordered_kernel(dtype: str, shape: tuple[int, int, int]) -> Kernel:
    """shape: threads, loads in flight a thread, blocks a multiprocessor. x, out: addresses; n elements; many, large: the first `large`
    blocks have `many` steps of threads * loads vectors, the others one; scratch: the address of a word a block that has steps, 0 before
    and after. The last block of more than one has none."""
    load, load_one, store_one = ptx.LOAD[dtype, True], ptx.LOAD[dtype, False], ptx.STORE[dtype, False]
    size, each = ptx.BYTES[dtype], ptx.ELEMENTS[dtype]
    threads, loads, per_sm = shape
    step, count = each * size, loads * each
    warps = threads // 32
    within, block_sum = within_of(each), block_sum_of(warps)

    def mean_ordered(x: Any, out: Any, n: Any, many: Any, large: Any, scratch: Any) -> None:
        values, sums = cuda.local.array(count, float32), cuda.local.array(loads, float32)
        of_warps = cuda.shared.array(warps, float32)
        thread, block, last = int64(cuda.threadIdx.x), int64(cuda.blockIdx.x), int64(cuda.gridDim.x) - 1
        vectors = n // each
        if last == 0 or block < last:
            for u in range(loads):  # as many running sums as loads in flight: short chains, and a smaller error than one sum's
                sums[u] = ZERO
            at, left = block + large * (many - 1), int64(1)
            if block < large:
                at, left = block * many, many
            i = at * (threads * loads) + thread
            while left > 0 and i - thread + threads * loads <= vectors:
                for u in range(loads):
                    load(x + (i + u * threads) * step, values, u * each)
                for u in range(loads):
                    sums[u] += within(values, u * each)
                i += threads * loads
                left -= 1
            if left > 0:
                for u in range(loads):  # the step that the end cuts off
                    if i + u * threads < vectors:
                        load(x + (i + u * threads) * step, values, 0)
                        sums[u] += within(values, 0)
            if block == 0 and thread < n - vectors * each:  # the elements after the last whole vector
                load_one(x + (vectors * each + thread) * size, values, 0)
                sums[0] += values[0]
            total = ZERO
            for u in range(loads):
                total += sums[u]
            total = block_sum(total, thread, of_warps)
            if thread == 0:
                if last == 0:
                    values[0] = total / float32(n)
                    store_one(out, values, 0)
                else:
                    bits = ptx.bits_of(total)
                    ptx.store_word(scratch + block * 4, uint32(0x80000000) if bits == uint32(0) else bits)
        else:  # nobody waits for it, so the others come to their ends
            total = ZERO
            words = cuda.local.array(AT_ONCE, uint32)
            i = thread
            while i < last:
                missing = True
                while missing:
                    missing = False
                    for u in range(AT_ONCE):
                        words[u] = uint32(0x80000000)
                        if i + u * threads < last:
                            words[u] = ptx.load_word(scratch + (i + u * threads) * 4)
                    for u in range(AT_ONCE):
                        if words[u] == uint32(0):
                            missing = True
                for u in range(AT_ONCE):
                    total += ptx.float_of(words[u])
                    if i + u * threads < last:
                        ptx.store_word(scratch + (i + u * threads) * 4, uint32(0))
                i += AT_ONCE * threads
            total = block_sum(total, thread, of_warps)
            if thread == 0:
                values[0] = total / float32(n)
                store_one(out, values, 0)

    return Kernel(mean_ordered, (int64,) * 6, threads, min_blocks=per_sm)
