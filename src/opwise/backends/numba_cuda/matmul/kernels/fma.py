"""float32 matmul by FMAs on any GPU from sm_80 on; a thread computes 8 x 8 outputs, or fewer with small tiles.

cp.async copies tiles of A and B through a ring of stages in shared memory. There a row holds elements of one k; a factor with
k contiguous is transposed by the copies. A step of K is one fully unrolled piece of LLVM IR, whose shared loads have constant offsets:
otherwise, at 4 x 4 outputs a thread, half of the step's time is not FMAs. On sm_90 the blocks of a cluster may split K (cluster_reduce.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.numba_cuda.common import ptx, tensor
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int64, intrinsic, ir, making, types, uint8, uint32
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.ptx import FLOAT, I64, assembly, element
from opwise.backends.numba_cuda.matmul.configurations import BY_ELEMENT, FmaTile
from opwise.backends.numba_cuda.matmul.kernels.cluster_reduce import cluster_reduce, shared_bytes

DEPTH, GROUP = 16, 8
ZERO = f32(0.0)


@making
def multiplier(depth: int, rows: int, columns: int, high: int, wide: int, pitches: tuple[int, int]) -> Any:
    """The intrinsic (a, b, sums): sums (high x wide) += the thread's products of `depth` k. a, b: shared addresses of the thread's
    first values. In each row it reads vectors of 4, rows / (high / 4) elements apart in A and columns / (wide / 4) in B. pitches: row
    strides of A's and B's tiles, in floats."""
    below, beside = rows // (high // 4), columns // (wide // 4)

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, a: Any, b: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def fours(address: Any, p: int, pitch: int, apart: int, count: int) -> list[Any]:
                found = []
                for g in range(count // 4):
                    text = f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{(p * pitch + g * apart) * 4}];"
                    four = assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, "=f,=f,=f,=f,r", [address], effect=True)
                    found += [builder.extract_value(four, e) for e in range(4)]
                return found

            zero = ir.Constant(I64, 0)
            places = [element(context, builder, signature.args[2], args[2], zero, i) for i in range(high * wide)]
            held = [builder.load(place) for place in places]
            for p in range(depth):
                left, right = fours(args[0], p, pitches[0], below, high), fours(args[1], p, pitches[1], beside, wide)
                held = [builder.fma(left[i // wide], right[i % wide], total) for i, total in enumerate(held)]
            for place, total in zip(places, held, strict=True):
                builder.store(total, place)
            return context.get_dummy_value()

        return types.void(types.uint32, types.uint32, sums), codegen

    return multiply


def transposer(depth: int, width: int, threads: int, pitch: int, at: int) -> Any:
    """Device function bring(stage, factor, length, k, first, k0, thread): 4-byte copies of a tile of a (length, k) factor, k contiguous.
    Rows first .. first + width become columns at byte offset `at` of the stage. A copy beyond an edge reads nothing and writes zeros."""
    high = threads // depth  # rows that all threads copy at a time

    @inlined
    def bring(stage: Any, factor: Any, length: Any, k: Any, first: Any, k0: Any, thread: Any) -> None:
        r, c = thread // depth, thread % depth
        left = length - first - r if k0 + c < k else int64(0)
        source, to = factor + ((first + r) * k + k0 + c) * 4, stage + uint32(at + (c * pitch + r) * 4)
        for j in range(width // high):
            tensor.copy4(to + uint32(j * high * 4), source, uint32(4 if left > j * high else 0))
            source += k * (4 * high)

    return bring


def copier(depth: int, width: int, threads: int, pitch: int, at: int, aligned: bool) -> Any:
    """As transposer, for a (k, length) factor whose rows keep their layout. `aligned`: 16-byte copies, else 4-byte ones."""
    each = 4 if aligned else 1  # elements a copy
    row = width // each
    abreast, high = max(row // threads, 1), max(threads // row, 1)  # copies of a thread in a row; rows that all threads copy at a time

    @inlined
    def bring(stage: Any, factor: Any, length: Any, k: Any, first: Any, k0: Any, thread: Any) -> None:
        r = thread // row
        for beside in range(abreast):
            c = thread % row + beside * threads
            left = k - k0 - r if first + c * each < length else int64(0)
            source, to = factor + ((k0 + r) * length + first + c * each) * 4, stage + uint32(at + (r * pitch + c * each) * 4)
            for j in range(depth // high):
                if aligned:
                    tensor.copy16(to + uint32(j * high * pitch * 4), source, uint32(16 if left > j * high else 0))
                else:
                    tensor.copy4(to + uint32(j * high * pitch * 4), source, uint32(4 if left > j * high else 0))
                source += length * (4 * high)

    return bring


@cache
def fma_kernel(tile: FmaTile, aligned: bool) -> Kernel:
    """Parameters: addresses of a (m, k), b (k, n), c (m, n), float32, a, b stored as by tile.layout; m, n, k. `aligned`: rows of c, and of
    factors not transposed by the copies, start at multiples of 16 bytes. Grid: tile.split consecutive blocks for each tile."""
    rows, columns, high, wide, stages, split = tile.rows, tile.columns, tile.high, tile.wide, tile.stages, tile.split
    threads, side = tile.threads, columns // wide
    a_by_element, b_by_element = (by == alone for by, alone in zip(tile.layout, BY_ELEMENT, strict=True))
    # Row strides in floats. 4 more of a transposed tile keep its rows 16-byte aligned and make bank conflicts of copies 2-way.
    pitches = rows + 4 * a_by_element, columns + 4 * b_by_element
    a_bytes, b_bytes = (DEPTH * pitch * 4 for pitch in pitches)
    stage_bytes = a_bytes + b_bytes
    store, store_one = ptx.STORE["float32", True], ptx.STORE["float32", False]
    wait = tensor.wait_for_all_but(stages - 2)
    # A thread's outputs are 4 x 4 squares, `below` rows and `beside` columns apart.
    groups_down, groups_across = high // 4, wide // 4
    below, beside = rows // groups_down, columns // groups_across
    count, units = high * wide, high * wide // 4  # a unit: four adjacent outputs of a row
    each, room, share_of, add_up, owned, leave = cluster_reduce(split, threads, units)
    shift = split.bit_length() - 1

    of_a, of_b = (DEPTH, rows, threads, pitches[0], 0), (DEPTH, columns, threads, pitches[1], a_bytes)
    bring_a = transposer(*of_a) if a_by_element else copier(*of_a, aligned)
    bring_b = transposer(*of_b) if b_by_element else copier(*of_b, aligned)
    multiply = multiplier(DEPTH, rows, columns, high, wide, pitches)

    @inlined
    def fill(stage: Any, a: Any, b: Any, m: Any, n: Any, k: Any, m0: Any, n0: Any, k0: Any, thread: Any) -> None:
        bring_a(stage, a, m, k, m0, k0, thread)
        bring_b(stage, b, n, k, n0, k0, thread)

    @inlined
    def store_unit(c: Any, m: Any, n: Any, row: Any, column: Any, values: Any, at: Any) -> None:
        target = c + (row * n + column) * 4
        if row < m:
            if aligned:  # n is a multiple of 4
                if column < n:
                    store(target, values, at)
            else:
                for e in range(4):
                    if column + e < n:
                        store_one(target + e * 4, values, at + e)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(count, float32)
        shared = tensor.shared_address(memory)
        thread = int64(cuda.threadIdx.x)
        down, across = thread // side * 4, thread % side * 4  # first row and column of this thread's first 4 x 4 square

        tiles_m, tiles_n = (m + rows - 1) // rows, (n + columns - 1) // columns
        block = int64(cuda.blockIdx.x) >> shift
        first = block // (GROUP * tiles_n) * GROUP
        height = min(tiles_m - first, int64(GROUP))
        within = block % (GROUP * tiles_n)
        m0, n0 = (first + within % height) * rows, (within // height) * columns

        for i in range(count):
            sums[i] = ZERO
        begin, steps = int64(0), (k + DEPTH - 1) // DEPTH
        if split > 1:
            begin, steps = share_of(steps)
        k0 = begin * DEPTH
        for s in range(stages - 1):
            if s < steps:
                fill(shared + uint32(s * stage_bytes), a, b, m, n, k, m0, n0, k0 + s * DEPTH, thread)
            tensor.commit()
        reading, writing = int64(0), int64(stages - 1)
        for t in range(steps):
            wait()
            cuda.syncthreads()  # tile t has landed for all threads, and all have read the stage that is refilled next
            if t + stages - 1 < steps:
                fill(shared + uint32(writing * stage_bytes), a, b, m, n, k, m0, n0, k0 + (t + stages - 1) * DEPTH, thread)
            tensor.commit()
            a_tile = shared + uint32(reading * stage_bytes + down * 4)
            b_tile = shared + uint32(reading * stage_bytes + a_bytes + across * 4)
            multiply(a_tile, b_tile, sums)
            reading = reading + 1 if reading < stages - 1 else int64(0)
            writing = writing + 1 if writing < stages - 1 else int64(0)

        if split > 1:
            parts = cuda.local.array(room, float32)
            add_up(shared, sums, parts, thread)
            for i in range(each):
                unit, whose = owned(thread, i)
                r, g = unit // groups_across, unit % groups_across
                row = m0 + whose // side * 4 + (r & 3) + (r >> 2) * below
                if unit < units:
                    store_unit(c, m, n, row, n0 + whose % side * 4 + g * beside, parts, 4 * split * i)
            leave()
        else:
            for i in range(high):
                row = m0 + down + (i % 4) + (i // 4) * below
                for g in range(groups_across):
                    store_unit(c, m, n, row, n0 + across + g * beside, sums, i * wide + 4 * g)

    shared = shared_bytes(stages * stage_bytes, split, threads, units)
    only = "sm_90" if split > 1 else None
    return Kernel(matmul, (int64,) * 6, threads, min_blocks=tile.ctas_per_sm, dynamic_shared=shared, only=only, cluster=split)
