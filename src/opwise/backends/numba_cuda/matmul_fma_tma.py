"""matmul in plain float32 on Hopper: the copy engine fills the ring, so threads do nothing but load factors and multiply.

A block computes 128 x 128, a thread 8 x 8, its rows 16 apart, its columns in two fours 64 apart. A lies in shared memory by rows of 32 k,
swizzled by 128 bytes: a thread reads 4 k of a row at once. B lies as it is, rows of 128 columns. Per 4 k that is 16 reads of 16 bytes for
256 multiply-adds. They are written out as PTX for a whole stage, for ptxas to schedule.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import cuda, float32, int32, int64, types, uint8, uint32
from numba.cuda.extending import intrinsic

from opwise.backends.cuda_src.plan import FLOAT32, Matrix
from opwise.backends.numba_cuda import matmul_wgmma_ptx as ptx
from opwise.backends.numba_cuda import portable, tensor
from opwise.backends.numba_cuda.launch import Kernel, inlined
from opwise.backends.numba_cuda.matmul_wgmma import position_of, prepare, wait
from opwise.backends.numba_cuda.ptx import I64, assembly, element

TILE, DEPTH, STAGES, THREADS = 128, 32, 3, 256
BYTES = TILE * DEPTH * 4  # of A's tile, and of B's
ZERO = portable.f32(0.0)


def described(m: int, n: int, k: int) -> tuple[Matrix, Matrix]:
    """A and B as the kernel takes them."""
    return Matrix(m, k, TILE, DEPTH, FLOAT32), Matrix(k, n, DEPTH, TILE, FLOAT32)


def _multiply() -> Any:
    """The intrinsic (sums, a, b): sums (8 x 8 of this thread) += a stage's products; a, b: where the thread's elements begin."""
    a, b = "$128", "$129"
    lines = ["{ .reg .b32 at; .reg .f32 a<32>, b<8>;"]
    for k in range(DEPTH):
        if k % 4 == 0:
            lines.append(f"xor.b32 at, {a}, {4 * k};")  # the swizzle
            for r in range(8):
                lines.append(f"ld.shared.v4.f32 {{a{4 * r}, a{4 * r + 1}, a{4 * r + 2}, a{4 * r + 3}}}, [at+{16 * DEPTH * 4 * r}];")
        for q in range(2):
            lines.append(f"ld.shared.v4.f32 {{b{4 * q}, b{4 * q + 1}, b{4 * q + 2}, b{4 * q + 3}}}, [{b}+{(k * TILE + 64 * q) * 4}];")
        for r in range(8):
            for c in range(8):
                lines.append(f"fma.rn.f32 ${8 * r + c}, a{4 * r + k % 4}, b{c}, ${8 * r + c};")
    text = "\n".join([*lines, "}"])

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, sums: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ptx.in_place(context, builder, signature, args, 64, text, args[1:])
            return context.get_dummy_value()

        return types.void(sums, types.uint32, types.uint32), codegen

    return multiply


def _store() -> Any:
    """The intrinsic (c, pitch, sums, left, first, second): a thread's sums to C.

    c: the address of the thread's first element; pitch: bytes between its rows, 16 apart; left: rows of C from there on, which may be
    negative; first, second: are the first four columns within C, are those 64 on?
    """
    c, pitch, left, first, second = (f"${i}" for i in range(5))
    lines = [
        "{ .reg .pred in, in_first, in_second, has_first, has_second; .reg .b64 to;",
        f"setp.ne.b32 has_first, {first}, 0; setp.ne.b32 has_second, {second}, 0; mov.b64 to, {c};",
    ]
    for r in range(8):
        words = [f"${5 + 8 * r + i}" for i in range(8)]
        lines += [
            f"setp.gt.s32 in, {left}, {16 * r}; and.pred in_first, in, has_first; and.pred in_second, in, has_second;",
            f"@in_first st.global.v4.f32 [to], {{{', '.join(words[:4])}}};",
            f"@in_second st.global.v4.f32 [to+256], {{{', '.join(words[4:])}}};",
            f"add.s64 to, to, {pitch};",
        ]
    text = "\n".join([*lines, "}"])
    constraints = ",".join(["l", "l", "r", "r", "r"] + ["f"] * 64)

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, c: Any, pitch: Any, sums: Any, left: Any, first: Any, second: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zero = ir.Constant(I64, 0)
            floats = [builder.load(element(context, builder, signature.args[2], args[2], zero, i)) for i in range(64)]
            assembly(builder, ir.VoidType(), text, constraints, [args[0], args[1], *args[3:], *floats], effect=True)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, sums, types.int32, types.uint32, types.uint32), codegen

    return store


@cache
def fma_tma_kernel() -> Kernel:
    """Tensor maps of a (m, k) and b (k, n), `described`; c's address, on 16 bytes; m, n, k, each up to 2^30, n a multiple of 4."""
    multiply, store, position = _multiply(), _store(), position_of(TILE, TILE)

    @inlined
    def fill(ring: Any, full: Any, slot: Any, step: Any, a: Any, b: Any, row: Any, column: Any) -> None:
        """Starts the copies of a step into a slot."""
        at, landed = uint32(ring + slot * uint32(2 * BYTES)), uint32(full + slot * uint32(8))
        depth = uint32(step * uint32(DEPTH))
        ptx.expect(landed, uint32(2 * BYTES))
        ptx.box_load(at, a, depth, row, landed)
        ptx.box_load(uint32(at + uint32(BYTES)), b, column, depth, landed)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        sums = cuda.local.array(64, float32)
        ring = uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(STAGES * 2 * BYTES))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, STAGES, 0)  # who reads a slot is told to leave it by the block's barrier

        steps = uint32((k + DEPTH - 1) // DEPTH)
        tiles_m, tiles_n = uint32((m + TILE - 1) // TILE), uint32((n + TILE - 1) // TILE)
        row, column = position(uint32(cuda.blockIdx.x), tiles_m, tiles_n)
        warp, lane = ptx.same_in_warp(uint32(thread >> uint32(5))), uint32(thread & uint32(31))
        if warp == 0 and ptx.elected() != 0:
            for step in range(min(steps, uint32(STAGES))):
                fill(ring, full, uint32(step), uint32(step), a, b, row, column)
        for i in range(64):
            sums[i] = ZERO
        x = uint32((warp & uint32(1)) * uint32(8) + (lane & uint32(7)))
        y = uint32((warp >> uint32(1)) * uint32(4) + (lane >> uint32(3)))
        of_a = uint32(y * uint32(DEPTH * 4) + (y & uint32(7)) * uint32(16))
        of_b = uint32(uint32(BYTES) + x * uint32(16))
        slot, phase = uint32(0), uint32(0)
        for step in range(steps):
            at, landed = uint32(ring + slot * uint32(2 * BYTES)), uint32(full + slot * uint32(8))
            wait(landed, phase)
            multiply(sums, uint32(at + of_a), uint32(at + of_b))
            cuda.syncthreads()  # everybody has left the slot
            ahead = uint32(step + STAGES)
            if warp == 0 and ahead < steps and ptx.elected() != 0:
                fill(ring, full, slot, ahead, a, b, row, column)
            slot = uint32(slot + uint32(1))
            if slot == STAGES:
                slot, phase = uint32(0), uint32(phase ^ uint32(1))
        i, j = int64(row) + int64(y), int64(column) + int64(x) * 4
        store(c + (i * n + j) * 4, n * 64, sums, int32(m - i), uint32(j < n), uint32(j + 64 < n))

    shared = STAGES * (2 * BYTES + 8) + 1024
    return Kernel(matmul, (int64,) * 6, THREADS, min_blocks=2, dynamic_shared=shared, maps=2, only="sm_90")
