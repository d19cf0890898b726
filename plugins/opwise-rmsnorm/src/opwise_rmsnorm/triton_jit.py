"""rmsnorm in Triton: a row a program, block after block. Its second read, of blocks that the first left in the cache, moves no bytes."""

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Variant
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.portable import narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise_rmsnorm.op import DTYPES, EPS

LONGEST = 8192  # columns of a block
EPSILON = tl.constexpr(EPS)


@triton.jit  # type: ignore[untyped-decorator]
def row_kernel(x, weight, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    start = tl.program_id(0).to(tl.int64) * columns  # beyond 2^31 elements an int32 would wrap
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = widen(tl.load(x + start + at, mask=at < columns, other=0.0))
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + EPSILON)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = widen(tl.load(x + start + at, mask=at < columns, other=0.0))
        result = value * scale * widen(tl.load(weight + at, mask=at < columns, other=0.0))
        tl.store(out + start + at, narrow(result, out.dtype.element_ty), mask=at < columns)


def block_of(columns: int) -> tuple[int, int]:  # its columns, its warps
    block = min(triton.next_power_of_2(columns), LONGEST)
    return block, max(block // 512, 1)


def build(x: Tensor, weight: Tensor, out: Tensor) -> Bind:
    rows, columns = x.shape
    block, warps = block_of(columns)
    bound = built(row_kernel, (rows, 1, 1), x, weight, out, columns, BLOCK=block, num_warps=warps)
    return lambda *tensors: bound(*tensors, columns)


VARIANTS = {"": Variant(build, "a row a program, in blocks of up to 8192 columns")}


def specimens(arch: str) -> dict[str, Specimen]:
    types = {d: {**dict.fromkeys(("x", "weight", "out"), POINTERS[d]), "columns": "i32"} for d in DTYPES}
    blocks = (block_of(columns) for columns in (128, 1024, LONGEST))
    kernels = ((n, d, Specimen(row_kernel, types[d], {"BLOCK": n}, {"num_warps": warps})) for n, warps in blocks for d in DTYPES)
    return {f"{columns} columns, {dtype}": kernel for columns, dtype, kernel in kernels}
