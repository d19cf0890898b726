"""softmax of short rows of any alignment. A block stages its consecutive rows in shared memory, so that global memory is read and written
in 16-byte pieces although rows are unaligned."""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends import staged_rows
from opwise.backends.numba_cuda.common import ptx, tensor, words
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, uint8, uint32
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.common.reduce import over_lanes
from opwise.backends.numba_cuda.softmax.cluster import LEAST, ONE, ZERO
from opwise.backends.numba_cuda.softmax.registers import power_of


@cache
def short_kernel(dtype: str, lanes: int, elements: int) -> Kernel:
    """Parameters: 16-byte aligned addresses of x and out (rows, columns); rows; columns; height: rows a block, such that each block starts
    16-byte aligned; turn: rows between adjacent groups of lanes. A row takes `lanes` lanes of `elements` elements each."""
    threads = staged_rows.THREADS
    groups, power, (max_of_row, sum_of_row) = threads // lanes, power_of(dtype), over_lanes(lanes)
    load, store = ptx.LOAD[dtype, False], ptx.STORE[dtype, False]
    load_shared, store_shared = ptx.LOAD_SHARED[dtype], ptx.STORE_SHARED[dtype]
    each, size = ptx.ELEMENTS[dtype], ptx.BYTES[dtype]

    def softmax(x: Any, out: Any, rows: Any, columns: Any, height: Any, turn: Any) -> None:
        values, piece = cuda.local.array(elements, float32), cuda.local.array(4, uint32)
        tile = tensor.shared_address(cuda.shared.array(0, uint8))
        thread = uint32(cuda.threadIdx.x)
        first = int64(cuda.blockIdx.x) * height
        width, mine = uint32(columns), uint32(min(height, rows - first))
        count = uint32(mine * width)  # elements
        whole = uint32(count // uint32(each))  # 16-byte pieces; the last block may end in part of one
        source, target = x + first * columns * size, out + first * columns * size
        i = thread
        while i < whole:
            tensor.copy16(uint32(tile + i * uint32(16)), source + int64(i) * 16, uint32(16))
            i = uint32(i + uint32(threads))
        i = uint32(whole * uint32(each) + thread)
        while i < count:
            load(source + int64(i) * size, values, 0)
            store_shared(uint32(tile + i * uint32(size)), values, 0)
            i = uint32(i + uint32(threads))
        words.copies_done()
        cuda.syncthreads()

        lane = uint32(thread % uint32(lanes))
        row = uint32(uint32(thread // uint32(lanes)) * uint32(turn) % uint32(groups))
        above = uint32(0)
        while above < mine:  # all lanes join the shuffles; past the last row they hold -inf
            here = width if row < mine else uint32(0)
            start = uint32(tile + row * width * uint32(size))
            for k in range(elements):
                values[k] = LEAST
                column = uint32(lane + uint32(k * lanes))
                if column < here:
                    load_shared(uint32(start + column * uint32(size)), values, k)
            largest = values[0]
            for k in range(1, elements):
                largest = ptx.greater(largest, values[k])
            largest = max_of_row(largest)
            total = ZERO
            for k in range(elements):
                values[k] = power(values[k], largest)
                total += values[k]
            scale = ONE / sum_of_row(total)
            for k in range(elements):
                column = uint32(lane + uint32(k * lanes))
                if column < here:
                    values[k] *= scale
                    store_shared(uint32(start + column * uint32(size)), values, k)
            row = uint32(row + uint32(groups))
            above = uint32(above + uint32(groups))
        cuda.syncthreads()

        i = thread
        while i < whole:
            words.load_shared_words(uint32(tile + i * uint32(16)), piece, 0)
            words.store_words(target + int64(i) * 16, piece, 0)
            i = uint32(i + uint32(threads))
        i = uint32(whole * uint32(each) + thread)
        while i < count:
            load_shared(uint32(tile + i * uint32(size)), values, 0)
            store(target + int64(i) * size, values, 0)
            i = uint32(i + uint32(threads))

    return Kernel(softmax, (int64,) * 6, threads, dynamic_shared=staged_rows.MOST_BYTES)
