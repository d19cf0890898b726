"""float32 matmul by FMAs on sm_90: TMA fills the ring, so threads only load from shared memory and multiply.

A block computes 128 x 128 outputs, a thread 8 x 16: rows 16 apart, groups of 4 columns 32 apart. A's tile has rows of 32 k, with 128-byte
swizzle; B's has unswizzled rows of 128 columns. Register read ports limit the speed. So the 16 FMAs of a row are consecutive and reuse A's
register; the next row runs in reverse order, so that it starts by reusing B's. A is loaded by scalars and sums are not grouped by four for
the stores, which leaves ptxas free to choose registers. The FMAs of TURN k are one piece of PTX, which loads the next k's factors
while it multiplies.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from opwise.backends.cuda_src.plan import FLOAT32, Matrix
from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import tensor
from opwise.backends.numba_cuda.common.compiler import cuda, float32, int32, int64, intrinsic, ir, types, uint8, uint32
from opwise.backends.numba_cuda.common.dtypes import f32
from opwise.backends.numba_cuda.common.launch import Kernel, inlined
from opwise.backends.numba_cuda.common.ptx import I64, assembly, element
from opwise.backends.numba_cuda.matmul.configurations import HopperTile
from opwise.backends.numba_cuda.matmul.kernels import wgmma_ptx as ptx
from opwise.backends.numba_cuda.matmul.kernels.pipeline import position_of, prepare

TILE, DEPTH, STAGES, THREADS = 128, 32, 3, 128
ROWS, COLUMNS, TURN = 8, 16, 8  # outputs of a thread; elements of k in an iteration
ORDER = *range(0, COLUMNS, 2), *range(1, COLUMNS, 2)  # of a row's FMAs: B's even registers, then its odd ones
LINES, FOURS = TILE // ROWS, TILE // COLUMNS  # between a thread's rows; threads that share a row of outputs
SUMS, HELD = ROWS * COLUMNS, ROWS * COLUMNS + ROWS + COLUMNS  # registers kept across iterations: sums, A's and B's of one k
BYTES = TILE * DEPTH * 4  # of A's tile, and of B's
ZERO = f32(0.0)


def matrices(tile: HopperTile, m: int, k: int, n: int) -> tuple[Matrix, Matrix]:
    return Matrix(m, k, TILE, DEPTH, FLOAT32), Matrix(k, n, DEPTH, TILE, FLOAT32)


def _of_a(row: int) -> str:
    return f"${SUMS + row}"


def _of_b(k: int, column: int) -> str:
    """B is double-buffered by the parity of k: one row is multiplied while the next is loaded."""
    return f"${SUMS + ROWS + column}" if k % 2 == 0 else f"b{column}"


def _load_a(row: int, at: str) -> str:
    return f"ld.shared.f32 {_of_a(row)}, [{at}+{row * LINES * DEPTH * 4}];"


def _load_b(k: int, at: str, beyond: int) -> list[str]:
    fours = [", ".join(_of_b(k, 4 * q + i) for i in range(4)) for q in range(COLUMNS // 4)]
    return [f"ld.shared.v4.f32 {{{four}}}, [{at}+{beyond + q * FOURS * 16}];" for q, four in enumerate(fours)]


def _changing(text: str, held: Any, words: int) -> tuple[Any, Any]:
    """(signature, codegen) of an intrinsic whose PTX updates `held` and takes `words` uint32 operands."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ptx.in_place(context, builder, signature, args, HELD, text, args[1:])
        return context.get_dummy_value()

    return types.void(held, *[types.uint32] * words), codegen


def _load() -> Any:
    """The intrinsic (held, a, b): loads the factors of the first k. a, b: shared addresses of the thread's first elements."""
    a, b = f"${2 * HELD}", f"${2 * HELD + 1}"
    text = "\n".join([*_load_b(0, b, 0), *(_load_a(r, a) for r in range(ROWS))])

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing: Any, held: Any, a: Any, b: Any) -> Any:
        return _changing(text, held, 2)

    return load


def _multiply() -> Any:
    """The intrinsic (held, a, b, next_a, next_b): adds the products of TURN k to the sums, and loads the factors of the k that follows.

    a, b: shared addresses of the thread's first elements of these k; next_a, next_b: of the next TURN k.
    """
    a, b, next_a, next_b = (f"${2 * HELD + i}" for i in range(4))
    lines = [f"{{ .reg .b32 at; .reg .f32 b<{COLUMNS}>;"]
    for k in range(TURN):
        last = k == TURN - 1
        lines += _load_b(k + 1, next_b, 0) if last else _load_b(k + 1, b, (k + 1) * TILE * 4)
        lines.append(f"mov.b32 at, {next_a};" if last else f"xor.b32 at, {a}, {4 * (k + 1)};")  # the swizzle
        for r in range(ROWS):
            for c in ORDER if r % 2 == 0 else reversed(ORDER):
                lines.append(f"fma.rn.f32 ${COLUMNS * r + c}, {_of_a(r)}, {_of_b(k, c)}, ${COLUMNS * r + c};")
            lines.append(_load_a(r, "at"))
    text = "\n".join([*lines, "}"])

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def multiply(typing: Any, held: Any, a: Any, b: Any, next_a: Any, next_b: Any) -> Any:
        return _changing(text, held, 4)

    return multiply


def _store() -> Any:
    """The intrinsic (c, pitch, sums, left, columns, as_it_is): stores a thread's sums to C.

    c: address of the thread's first output; pitch: bytes between its rows; left, columns: rows and columns of C from there to its end, may
    be negative; as_it_is: 0x3210, opaque to the compiler. prmt by it is the identity: it decouples a sum's register from the aligned
    quadruple that a vector store needs. Otherwise sums are moved into quadruples at every k, with the register parity of a factor.
    """
    c, pitch, left, columns, as_it_is = (f"${i}" for i in range(5))
    quarters = range(COLUMNS // 4)
    lines = ["{ .reg .pred in, has<4>, both; .reg .b64 to; .reg .b32 v<4>;", f"mov.b64 to, {c};"]
    lines += [f"setp.gt.s32 has{q}, {columns}, {q * FOURS * 4};" for q in quarters]
    for r in range(ROWS):
        lines.append(f"setp.gt.s32 in, {left}, {LINES * r};")
        for q in quarters:
            words = [f"${5 + COLUMNS * r + 4 * q + i}" for i in range(4)]
            lines += [f"prmt.b32 v{i}, {word}, {word}, {as_it_is};" for i, word in enumerate(words)]
            lines += [f"and.pred both, in, has{q};", f"@both st.global.v4.b32 [to+{q * FOURS * 16}], {{v0, v1, v2, v3}};"]
        lines.append(f"add.s64 to, to, {pitch};")
    text = "\n".join([*lines, "}"])
    constraints = ",".join(["l", "l", "r", "r", "r"] + ["r"] * SUMS)

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def store(typing: Any, c: Any, pitch: Any, sums: Any, left: Any, columns: Any, as_it_is: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            zero = ir.Constant(I64, 0)
            floats = [builder.load(element(context, builder, signature.args[2], args[2], zero, i)) for i in range(SUMS)]
            words = [builder.bitcast(x, ir.IntType(32)) for x in floats]
            assembly(builder, ir.VoidType(), text, constraints, [args[0], args[1], *args[3:], *words], effect=True)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, sums, types.int32, types.int32, types.uint32), codegen

    return store


@cache
def kernel(dtype: str, tile: HopperTile) -> Kernel:
    """Parameters: tensor maps of a (m, k) and b (k, n); c's address, 16-byte aligned; m, n, k, at most 2^30, n a multiple of 4."""
    load, multiply, store, position = _load(), _multiply(), _store(), position_of(TILE, TILE)

    @inlined
    def fill(ring: Any, full: Any, stage: Any, step: Any, a: Any, b: Any, row: Any, column: Any) -> None:
        """Starts the copies of a step into a stage."""
        at, landed = uint32(ring + stage * uint32(2 * BYTES)), uint32(full + stage * uint32(8))
        depth = uint32(step * uint32(DEPTH))
        barriers.expect(landed, uint32(2 * BYTES))
        ptx.box_load(at, a, depth, row, landed)
        ptx.box_load(uint32(at + uint32(BYTES)), b, column, depth, landed)

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        memory = cuda.shared.array(0, uint8)
        held = cuda.local.array(HELD, float32)
        ring = uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(STAGES * 2 * BYTES))
        thread = uint32(cuda.threadIdx.x)
        prepare(full, STAGES, 0)  # no `empty` mbarriers: syncthreads frees a stage

        steps = uint32((k + DEPTH - 1) // DEPTH)
        tiles_m, tiles_n = uint32((m + TILE - 1) // TILE), uint32((n + TILE - 1) // TILE)
        row, column = position(uint32(cuda.blockIdx.x), tiles_m, tiles_n)
        warp, lane = barriers.same_in_warp(uint32(thread >> uint32(5))), uint32(thread & uint32(31))
        if warp == 0 and barriers.elected() != 0:
            for step in range(min(steps, uint32(STAGES))):
                fill(ring, full, uint32(step), uint32(step), a, b, row, column)
        for i in range(HELD):
            held[i] = ZERO
        # A warp covers 8 rows and 4 groups of 4 columns; a half-warp reads 8 rows of A and 2 groups of B.
        x = uint32((warp & uint32(1)) * uint32(4) + (lane & uint32(1)) + (lane >> uint32(4)) * uint32(2))
        y = uint32((warp >> uint32(1)) * uint32(8) + ((lane >> uint32(1)) & uint32(7)))
        of_a = uint32(y * uint32(DEPTH * 4) + (y & uint32(7)) * uint32(16))
        of_b = uint32(uint32(BYTES) + x * uint32(16))
        stage, phase = uint32(0), uint32(0)
        barriers.wait(full, phase)
        from_a, from_b = uint32(ring + of_a), uint32(ring + of_b)
        load(held, from_a, from_b)
        for step in range(steps):
            this = stage
            for turn in range(DEPTH // TURN):
                if turn < DEPTH // TURN - 1:
                    depth = uint32((turn + 1) * TURN)
                    at = uint32(ring + this * uint32(2 * BYTES))
                    next_a, next_b = uint32(at + (of_a ^ (depth * uint32(4)))), uint32(from_b + uint32(TURN * TILE * 4))
                else:  # after the last step this loads stale data, which is not used
                    stage = uint32(stage + uint32(1))
                    if stage == STAGES:
                        stage, phase = uint32(0), uint32(phase ^ uint32(1))
                    if step + 1 < steps:
                        barriers.wait(uint32(full + stage * uint32(8)), phase)
                    at = uint32(ring + stage * uint32(2 * BYTES))
                    next_a, next_b = uint32(at + of_a), uint32(at + of_b)
                multiply(held, from_a, from_b, next_a, next_b)
                from_a, from_b = next_a, next_b
            cuda.syncthreads()  # all threads have read the stage
            ahead = uint32(step + STAGES)
            if warp == 0 and ahead < steps and barriers.elected() != 0:
                fill(ring, full, this, ahead, a, b, row, column)
        i, j = int64(row) + int64(y), int64(column) + int64(x) * 4
        as_it_is = uint32(0x3210) if m > 0 else uint32(0)
        store(c + (i * n + j) * 4, n * (4 * LINES), held, int32(m - i), int32(n - j), as_it_is)

    shared = STAGES * (2 * BYTES + 8) + 1024
    return Kernel(matmul, (int64,) * 6, THREADS, min_blocks=2, dynamic_shared=shared, maps=2, only="sm_90")
