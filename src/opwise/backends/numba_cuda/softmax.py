"""softmax of each row, in float32: exp2((x - max) log2 e) / sum.

Up to 24576 columns a row is read once and stays in registers: a warp a row up to 1024 columns, a block a row beyond. Longer rows, in
16 bits from 16384 columns, from 8200 if they are many, are softmax_cluster.py's, and above 1 MiB, in 16 bits 512 KiB, softmax_stream.py's,
which read them once too. What neither takes (GPUs other than sm_90 beyond one block, rows above 5.5 MiB, odd lengths, unaligned storage) is
read twice, once for the running maximum and sum, once to write. Rows of odd length or unaligned storage take one element an access.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import cuda, float32, int64
from torch import Tensor

from opwise.backends.numba_cuda import portable, ptx
from opwise.backends.numba_cuda.launch import SIMULATED, Kernel
from opwise.backends.numba_cuda.reduce import warp_max, warp_sum
from opwise.backends.numba_cuda.softmax_cluster import cluster_kernel
from opwise.backends.numba_cuda.softmax_forms import Form
from opwise.backends.numba_cuda.softmax_offered import TABLE, WARP, own_threads, taken
from opwise.backends.numba_cuda.softmax_portable import build_portable, portable_kernel
from opwise.backends.numba_cuda.softmax_stream import stream_kernel
from opwise.backends.numba_cuda.softmax_streams import ALL_ZERO, STREAM, Share
from opwise.backends.protocol import Bind, Variant
from opwise.backends.tuned import look

WARP_ROWS = 4  # rows of a block where each warp has its own
LONG_THREADS, LONG_UNROLL = 1024, 4
LOG2_E = np.float32(math.log2(math.e))
ZERO, ONE, LEAST = np.float32(0.0), np.float32(1.0), np.float32(-math.inf)
# Of the kernels of long rows one of each kind and of each dtype: the others are this code with other numbers, and a second each to compile.
SPECIMENS = (("float16", Form(1, 512)), ("bfloat16", Form(2, 192)), ("float32", Form(16, 1024)))
STREAM_SPECIMENS = (("float32", 4), ("bfloat16", 2))


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
    """The kernel for rows of this length, by so many threads (as softmax_offered.Registers), and the rows of a block."""
    if threads == 0:
        return long_kernel(dtype, wide), 1
    per_thread = -(-columns // (threads * (ptx.ELEMENTS[dtype] if wide else 1)))
    return register_kernel(dtype, wide, per_thread, threads), WARP_ROWS if threads == WARP else 1


def build(x: Tensor, out: Tensor) -> Bind:
    if SIMULATED:
        return build_portable(x, out)
    rows, columns = x.shape
    dtype, aligned = portable.name_of(x), x.data_ptr() % 16 == 0 and out.data_ptr() % 16 == 0
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    way = taken(rows, columns, dtype, aligned, processors, torch.cuda.get_device_capability(x.device), look(TABLE, x.device))
    if isinstance(way, Share):
        return build_stream(x, way)
    if isinstance(way, Form):
        return build_cluster(x, way, processors)
    kernel, per_block = in_registers(dtype, columns, aligned and columns % ptx.ELEMENTS[dtype] == 0, way.threads)
    return kernel.fixed((-(-rows // per_block), 1), rows, columns, device=x.device)


def build_cluster(x: Tensor, form: Form, processors: int) -> Bind:
    """Rows of whole 16-byte pieces, read once, each by a cluster of its own."""
    (rows, columns), dtype = x.shape, portable.name_of(x)
    row_bytes = columns * ptx.BYTES[dtype]
    sizes = rows, columns, *form.apart(rows, row_bytes, processors)
    return cluster_kernel(dtype, form).fixed((rows * form.blocks, 1), *sizes, device=x.device, shared=form.shared_bytes(row_bytes))


def build_stream(x: Tensor, share: Share) -> Bind:
    """Rows of whole 16-byte pieces, read once, by blocks that all run at once."""
    (rows, columns), scratch_bytes = x.shape, share.scratch_bytes(STREAM)
    kernel = stream_kernel(portable.name_of(x), STREAM, -(-share.blocks // 32))
    grid = share.blocks, share.groups
    return kernel.fixed(grid, rows, columns, share.part, device=x.device, scratch_bytes=scratch_bytes, zeroed=ALL_ZERO)


def kernels() -> Mapping[str, Kernel]:
    found: dict[str, Kernel] = {}
    for dtype in portable.DTYPES:
        for columns in (931, 1024, 4096, *([32768] if dtype == "float32" else []), 131072):
            wide = columns % ptx.ELEMENTS[dtype] == 0
            found[f"{dtype} {columns} columns"] = in_registers(dtype, columns, wide, own_threads(columns, dtype, wide))[0]
        found[f"{dtype} any columns, unaligned"] = long_kernel(dtype, wide=False)
        found[f"{dtype} portable"] = portable_kernel(dtype)
    for dtype, form in SPECIMENS:
        found[f"{dtype} {form.blocks} blocks of {form.threads} a row"] = cluster_kernel(dtype, form)
    for dtype, reads in STREAM_SPECIMENS:
        found[f"{dtype} stream, up to {32 * reads} blocks a row"] = stream_kernel(dtype, STREAM, reads)
    return found


VARIANTS = {
    "": Variant(build, "the row in registers, a long one also in shared memory, of several blocks on Hopper: read once"),
    "portable": Variant(build_portable, "a block a row, three passes, shared memory"),
}
