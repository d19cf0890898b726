"""softmax of rows in registers, read once: a warp a row, a block a row; and of any row in two passes, read twice."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int64

from opwise.backends.numba_cuda.common import ptx
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.common.reduce import warp_max, warp_sum
from opwise.backends.numba_cuda.softmax.cluster import LEAST, LOG2_E, ONE, ZERO
from opwise.backends.numba_cuda.softmax.plan import WARP

WARP_ROWS = 4  # rows of a block where each warp has its own
LONG_THREADS, LONG_UNROLL = 1024, 4


@cache
def register_kernel(dtype: str, wide: bool, per_thread: int, threads: int) -> Kernel:
    """x, out: addresses of (rows, columns). `per_thread` accesses hold a thread's part of its row; 32 threads: four rows a block."""
    load, store = ptx.LOAD[dtype, wide], ptx.STORE[dtype, wide]
    each = ptx.ELEMENTS[dtype] if wide else 1
    size = ptx.BYTES[dtype]
    count = per_thread * each
    a_warp_a_row = threads == 32
    warps = threads // 32
    block = 32 * WARP_ROWS if a_warp_a_row else threads

    def softmax(x: Any, out: Any, rows: Any, columns: Any) -> None:
        values = cuda.local.array(count, float32)
        of_warps = cuda.shared.array(64, float32)  # 32 maxima, then 32 sums: apart, so that two barriers are enough
        if a_warp_a_row:
            row = int64(cuda.blockIdx.x) * WARP_ROWS + cuda.threadIdx.x // 32
            lane = int64(cuda.threadIdx.x) % 32
        else:
            row = int64(cuda.blockIdx.x)
            lane = int64(cuda.threadIdx.x)
        if row < rows:  # whole warps or the whole block, so the shuffles and barriers below see everybody
            vectors = columns // each
            source = x + row * columns * size
            for k in range(count):
                values[k] = LEAST  # beyond the row: exp gives 0
            for u in range(per_thread):
                if lane + u * threads < vectors:
                    load(source + (lane + u * threads) * (each * size), values, u * each)

            largest = values[0]
            for k in range(1, count):
                largest = ptx.greater(largest, values[k])
            largest = warp_max(largest)
            if not a_warp_a_row:
                if lane % 32 == 0:
                    of_warps[lane // 32] = largest
                cuda.syncthreads()
                largest = warp_max(of_warps[lane % 32 % warps])

            total = ZERO
            for k in range(count):
                values[k] = ptx.exp2((values[k] - largest) * LOG2_E)
                total += values[k]
            total = warp_sum(total)
            if not a_warp_a_row:
                if lane % 32 == 0:
                    of_warps[32 + lane // 32] = total
                cuda.syncthreads()
                total = warp_sum(of_warps[32 + lane % 32] if lane % 32 < warps else ZERO)

            scale = ONE / total
            for k in range(count):
                values[k] *= scale
            target = out + row * columns * size
            for u in range(per_thread):
                if lane + u * threads < vectors:
                    store(target + (lane + u * threads) * (each * size), values, u * each)

    return Kernel(softmax, (int64,) * 4, block)


@cache
def long_kernel(dtype: str, wide: bool) -> Kernel:
    """A block a row of any length, in two passes: reads x twice (the second time partly from L2), writes out once."""
    load, store = ptx.LOAD[dtype, wide], ptx.STORE[dtype, wide]
    each = ptx.ELEMENTS[dtype] if wide else 1
    unroll = LONG_UNROLL if each < 8 else LONG_UNROLL // 2
    size = ptx.BYTES[dtype]
    count = unroll * each
    threads, warps = LONG_THREADS, LONG_THREADS // 32

    def softmax(x: Any, out: Any, rows: Any, columns: Any) -> None:
        values = cuda.local.array(count, float32)
        of_warps = cuda.shared.array(64, float32)
        lane, row = int64(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        vectors = columns // each
        source, target = x + row * columns * size, out + row * columns * size

        largest, total = LEAST, ZERO
        i = lane
        while i < vectors:
            for k in range(count):
                values[k] = LEAST
            for u in range(unroll):
                if i + u * threads < vectors:
                    load(source + (i + u * threads) * (each * size), values, u * each)
            here = largest
            for k in range(count):
                here = ptx.greater(here, values[k])
            shift = here if here > LEAST else ZERO  # only -inf so far: -inf - -inf would be nan, and stay
            total *= ptx.exp2((largest - shift) * LOG2_E)
            for k in range(count):
                total += ptx.exp2((values[k] - shift) * LOG2_E)
            largest = here
            i += unroll * threads

        highest = warp_max(largest)
        if lane % 32 == 0:
            of_warps[lane // 32] = highest
        cuda.syncthreads()
        highest = warp_max(of_warps[lane % 32 % warps])
        shift = highest if highest > LEAST else ZERO
        total = warp_sum(total * ptx.exp2((largest - shift) * LOG2_E))
        if lane % 32 == 0:
            of_warps[32 + lane // 32] = total
        cuda.syncthreads()
        scale = ONE / warp_sum(of_warps[32 + lane % 32] if lane % 32 < warps else ZERO)

        i = lane
        while i < vectors:
            for u in range(unroll):
                if i + u * threads < vectors:
                    load(source + (i + u * threads) * (each * size), values, u * each)
            for k in range(count):
                values[k] = ptx.exp2((values[k] - highest) * LOG2_E) * scale
            for u in range(unroll):
                if i + u * threads < vectors:
                    store(target + (i + u * threads) * (each * size), values, u * each)
            i += unroll * threads

    return Kernel(softmax, (int64,) * 4, threads)


def in_registers(dtype: str, columns: int, wide: bool, threads: int) -> tuple[Kernel, int]:
    """The kernel for rows of this length, by so many threads (as plan.Registers), and the rows of a block."""
    if threads == 0:
        return long_kernel(dtype, wide), 1
    per_thread = -(-columns // (threads * (ptx.ELEMENTS[dtype] if wide else 1)))
    return register_kernel(dtype, wide, per_thread, threads), WARP_ROWS if threads == WARP else 1
