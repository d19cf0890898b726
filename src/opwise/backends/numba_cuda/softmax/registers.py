"""softmax of rows held in registers, read once (lanes of a warp or a block a row); and of rows of any length, read twice."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from opwise.backends.numba_cuda.common import ptx, words
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.reduce import over_lanes, warp_max, warp_sum
from opwise.backends.numba_cuda.softmax.cluster import LEAST, LOG2_E, ONE, ZERO
from opwise.backends.numba_cuda.softmax.plan import WARP

WARP_THREADS = 128  # block size where a row takes at most a warp
EIGHT = np.float32(8.0)
LONG_THREADS, LONG_UNROLL = 1024, 4


def power_of(dtype: str) -> Any:
    """Device function (value, shift) -> c exp(value - shift); c cancels in dividing by the sum. float32: c = 1. 16 bits: c = 2^8, by the
    flushing exp2, half the instructions. Only exp below 2^-134 is flushed, half of bfloat16's smallest subnormal."""

    @inlined
    def power(value: Any, shift: Any) -> Any:
        return ptx.exp2((value - shift) * LOG2_E)

    @inlined
    def scaled(value: Any, shift: Any) -> Any:
        return words.exp2_flushed(words.fma(value - shift, LOG2_E, EIGHT))

    return power if dtype == "float32" else scaled


@cache
def register_kernel(dtype: str, wide: bool, per_thread: int, threads: int) -> Kernel:
    """Parameters: addresses of x, out; rows, columns. threads: of a row; up to 32, rows share a block. per_thread: loads of a thread."""
    load, store = ptx.LOAD[dtype, wide], ptx.STORE[dtype, wide]
    each = ptx.ELEMENTS[dtype] if wide else 1
    size = ptx.BYTES[dtype]
    count, step = per_thread * each, each * size
    within_warp = threads <= WARP
    warps, block = threads // WARP, WARP_THREADS if within_warp else threads
    per_block, power, (max_of_lanes, sum_of_lanes) = block // threads, power_of(dtype), over_lanes(min(threads, WARP))

    def softmax(x: Any, out: Any, rows: Any, columns: Any) -> None:
        values = cuda.local.array(count, float32)
        of_warps = cuda.shared.array(64, float32)  # 32 maxima, 32 sums: separate, so that two barriers are enough
        thread = uint32(cuda.threadIdx.x)  # 32-bit: a comparison is one instruction
        row, lane = int64(cuda.blockIdx.x) * per_block + int64(thread // uint32(threads)), uint32(thread % uint32(threads))
        vectors = uint32(columns // each if row < rows else 0)  # all lanes join the shuffles; past the last row they hold -inf
        source, target = x + row * columns * size + int64(lane) * step, out + row * columns * size + int64(lane) * step
        for k in range(count):
            values[k] = LEAST  # beyond the row: exp gives 0
        for u in range(per_thread):
            if uint32(lane + uint32(u * threads)) < vectors:
                load(source + u * threads * step, values, u * each)

        largest = values[0]
        for k in range(1, count):
            largest = ptx.greater(largest, values[k])
        largest = max_of_lanes(largest)
        if not within_warp:
            if lane % WARP == 0:
                of_warps[lane // WARP] = largest
            cuda.syncthreads()
            largest = warp_max(of_warps[lane % WARP % warps])

        total = ZERO
        for k in range(count):
            values[k] = power(values[k], largest)
            total += values[k]
        total = sum_of_lanes(total)
        if not within_warp:
            if lane % WARP == 0:
                of_warps[WARP + lane // WARP] = total
            cuda.syncthreads()
            total = warp_sum(of_warps[WARP + lane % WARP] if lane % WARP < warps else ZERO)

        scale = ONE / total
        for k in range(count):
            values[k] *= scale
        for u in range(per_thread):
            if uint32(lane + uint32(u * threads)) < vectors:
                store(target + u * threads * step, values, u * each)

    return Kernel(softmax, (int64,) * 4, block)


@cache
def long_kernel(dtype: str, wide: bool) -> Kernel:
    """A block for each row, of any length, in two passes: an online maximum and sum, then the results. Reads x twice, partly from L2."""
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
            shift = here if here > LEAST else ZERO  # only -inf so far: -inf - -inf is nan
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
    """(kernel, rows a block) for rows of `columns` elements. threads: of a row, as in plan.Registers; 0 selects long_kernel."""
    if threads == 0:
        return long_kernel(dtype, wide), 1
    per_thread = -(-columns // (threads * (ptx.ELEMENTS[dtype] if wide else 1)))
    return register_kernel(dtype, wide, per_thread, threads), WARP_THREADS // threads if threads <= WARP else 1
