"""matmul in TF32 with wgmma (sm_90a only): row-major float32 factors, which TMA rounds to TF32 while copying to shared memory.

For TF32, wgmma reads shared memory in K-major order only, and a row-major B is not K-major. So the kernel computes C' = B' A': the right
factor A' comes from shared memory, where A is K-major, and the left factor B' from registers, loaded column by column. A warpgroup
computes 64 columns of C and all rows of the tile. The ring, producer and consumers are as in wgmma.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import TFLOAT32, Matrix
from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import tensor
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int32, int64, intrinsic, ir, types, uint8, uint32
from opwise.backends.numba_cuda.common.launch import Kernel
from opwise.backends.numba_cuda.common.ptx import I32, I64, assembly, element
from opwise.backends.numba_cuda.matmul.configurations import HopperTile
from opwise.backends.numba_cuda.matmul.kernels import wgmma_ptx as ptx
from opwise.backends.numba_cuda.matmul.kernels.pipeline import position_of, prepare

CONSUMERS = 2
COLUMNS, DEPTH = 64 * CONSUMERS, 32  # columns of a tile; elements of k in a stage, 128 bytes of a row of A
BOX = DEPTH * 128  # bytes of 32 rows and 32 columns of B


def matrices(tile: HopperTile, m: int, k: int, n: int) -> tuple[Matrix, Matrix]:
    return Matrix(m, k, tile.rows, DEPTH, TFLOAT32), Matrix(k, n, DEPTH, 32, TFLOAT32)


def _step(rows: int) -> Any:
    """The intrinsic (sums, a, b, add): sums (64 x rows) += b' (64 x 32) a' (32 x rows); without `add` it is =. It waits for the result.

    a: shared address of A's tile; b: of the thread's first element of B. sums: laid out as in wgmma_ptx.step.
    """
    count = rows // 2
    registers = ", ".join(f"${i}" for i in range(count))
    a, b, add = (f"${2 * count + i}" for i in range(3))
    lines = [
        "{ .reg .pred add, always; .reg .b32 low, high, right, below, both, f<16>; .reg .b64 a;",
        f"setp.ne.b32 add, {add}, 0; setp.eq.b32 always, 0, 0; mov.b32 high, {1024 // 16 | 1 << 30};",
        # Swizzled addresses: 8 columns to the right flip bit 1 of the chunk index, 4 rows down flip bit 2.
        f"xor.b32 right, {b}, 32; xor.b32 below, {b}, 64; xor.b32 both, {b}, 96;",
    ]
    for half in (0, 2) if rows == 256 else (None,):  # the 256-row tile lacks registers for all of B's elements at once
        steps = range(4) if half is None else range(half, half + 2)
        for i in steps:
            for j, (place, down) in enumerate(((b, 0), ("right", 0), ("below", 4), ("both", 4))):
                lines.append(f"ld.shared.b32 f{4 * i + j}, [{place}+{(8 * i + down) * 128}];")
        lines.append("wgmma.fence.sync.aligned;")
        for i in steps:
            lines += [
                f"add.u32 low, {a}, {2 * i}; mov.b64 a, {{low, high}};",
                f"wgmma.mma_async.sync.aligned.m64n{rows}k8.f32.tf32.tf32 {{{registers}}},",
                f"{{f{4 * i}, f{4 * i + 1}, f{4 * i + 2}, f{4 * i + 3}}}, a, {'always' if i else 'add'}, 1, 1;",
            ]
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;")
    text = "\n".join([*lines, "}"])

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, sums: Any, a: Any, b: Any, add: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            low = builder.lshr(args[1], ir.Constant(I32, 4))
            ptx.in_place(context, builder, signature, args, count, text, [low, args[2], args[3]])
            return context.get_dummy_value()

        return types.void(sums, types.uint32, types.uint32, types.uint32), codegen

    return multiply


def _store(rows: int) -> Any:
    """The intrinsic (c, pitch, sums, left, first, second): stores a thread's sums to C.

    c: address of the thread's first output; pitch: row stride in bytes; left: rows of C from there to its end, may be negative;
    first, second: nonzero if the thread's column, and the one 8 to its right, are within C.
    """
    count = rows // 2
    c, pitch, left, first, second = (f"${i}" for i in range(5))
    lines = [
        "{ .reg .pred in, in_first, in_second, has_first, has_second; .reg .b64 to, six;",
        f"setp.ne.b32 has_first, {first}, 0; setp.ne.b32 has_second, {second}, 0; mov.b64 to, {c}; mul.lo.s64 six, {pitch}, 6;",
    ]
    for i in range(count // 4):
        for e in range(2):
            lines += [
                f"setp.gt.s32 in, {left}, {8 * i + e}; and.pred in_first, in, has_first; and.pred in_second, in, has_second;",
                f"@in_first st.global.f32 [to], ${5 + 4 * i + e}; @in_second st.global.f32 [to+32], ${5 + 4 * i + 2 + e};",
                f"add.s64 to, to, {pitch};",
            ]
        lines.append("add.s64 to, to, six;")
    text = "\n".join([*lines, "}"])
    constraints = ",".join(["l", "l", "r", "r", "r"] + ["f"] * count)

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, c: Any, pitch: Any, sums: Any, left: Any, first: Any, second: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zero = ir.Constant(I64, 0)
            floats = [builder.load(element(context, builder, signature.args[2], args[2], zero, i)) for i in range(count)]
            values = [args[0], args[1], *args[3:], *floats]
            assembly(builder, ir.VoidType(), text, constraints, values, effect=True)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, sums, types.int32, types.uint32, types.uint32), codegen

    return store


@cache
def kernel(dtype: str, chosen: HopperTile) -> Kernel:
    """Parameters: tensor maps of a (m, k) and b (k, n) as `matrices` describes; c's address; m, n, k, each at most 2^30."""
    rows, stages, bytes_a, boxes = chosen.rows, chosen.stages, chosen.rows * 128, COLUMNS // 32
    stage_bytes = bytes_a + boxes * BOX
    shared = stages * (stage_bytes + 16) + 1024  # the ring, two mbarriers a stage, padding to align it to 1024
    multiply, store, position, sums_count = _step(rows), _store(rows), position_of(rows, COLUMNS), rows // 2

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(sums_count, float32)
        ring = uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(stages * stage_bytes))
        empty = uint32(full + uint32(8 * stages))
        prepare(full, stages, 4 * CONSUMERS)

        thread, depth_end = uint32(cuda.threadIdx.x), uint32(k)
        tiles_m, tiles_n = uint32((m + rows - 1) // rows), uint32((n + COLUMNS - 1) // COLUMNS)
        count, stride = uint32(tiles_m * tiles_n), uint32(cuda.gridDim.x)
        tile = uint32(cuda.blockIdx.x)
        stage, phase = uint32(0), uint32(0)
        warpgroup = barriers.same_in_warp(uint32(thread >> uint32(7)))
        if warpgroup == CONSUMERS:
            if barriers.elected() != 0:
                while tile < count:
                    row, column = position(tile, tiles_m, tiles_n)
                    depth = uint32(0)
                    while depth < depth_end:
                        at, landed = uint32(ring + stage * uint32(stage_bytes)), uint32(full + stage * uint32(8))
                        barriers.wait(uint32(empty + stage * uint32(8)), uint32(phase ^ uint32(1)))
                        barriers.expect(landed, uint32(stage_bytes))
                        ptx.box_load(at, a, depth, row, landed)
                        for box in range(boxes):
                            to = uint32(at + uint32(bytes_a + box * BOX))
                            ptx.box_load(to, b, uint32(column + uint32(32 * box)), depth, landed)
                        depth = uint32(depth + uint32(DEPTH))
                        stage = uint32(stage + uint32(1))
                        if stage == stages:
                            stage, phase = uint32(0), uint32(phase ^ uint32(1))
                    tile = uint32(tile + stride)
        else:
            lane, warp = uint32(thread & uint32(31)), uint32((thread >> uint32(5)) & uint32(3))
            quarter, eighth = uint32(lane & uint32(3)), uint32(lane >> uint32(2))
            # The thread's first element of B is at row `quarter`, column 16 warp + eighth of its warpgroup's 64.
            chunk = uint32((warp & uint32(1)) * uint32(4) + (eighth >> uint32(2))) ^ quarter
            of_b = uint32(uint32(bytes_a) + (warpgroup * uint32(2) + (warp >> uint32(1))) * uint32(BOX))
            of_b = uint32(of_b + quarter * uint32(128) + chunk * uint32(16) + (eighth & uint32(3)) * uint32(4))
            across = int64(warpgroup * uint32(64) + warp * uint32(16) + eighth)
            while tile < count:
                row, column = position(tile, tiles_m, tiles_n)
                depth = uint32(0)
                while depth < depth_end:
                    at = uint32(ring + stage * uint32(stage_bytes))
                    barriers.wait(uint32(full + stage * uint32(8)), phase)
                    multiply(sums, at, uint32(at + of_b), depth)
                    if lane == 0:
                        barriers.arrive(uint32(empty + stage * uint32(8)))
                    depth = uint32(depth + uint32(DEPTH))
                    stage = uint32(stage + uint32(1))
                    if stage == stages:
                        stage, phase = uint32(0), uint32(phase ^ uint32(1))
                i, j = int64(row) + int64(quarter) * 2, int64(column) + across
                store(c + (i * n + j) * 4, n * 4, sums, int32(m - i), uint32(j < n), uint32(j + 8 < n))
                tile = uint32(tile + stride)

    return Kernel(matmul, (int64,) * 6, chosen.threads, dynamic_shared=shared, maps=2, only="sm_90")
