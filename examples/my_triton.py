"""softmax in Triton, one row a program. Run it beside the others:

opwise run softmax --with examples/my_triton.py
"""

import torch
import triton
import triton.language as tl

import opwise


@triton.jit
def row_kernel(x, out, columns, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * columns  # past 2^31 elements an int32 would wrap
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + first + column, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + first + column, power / tl.sum(power, axis=0), mask=inside)


@opwise.kernel("softmax", build=True)
def build(x: torch.Tensor, out: torch.Tensor):
    """One row a program, the row in registers."""
    rows, columns = x.shape
    if columns > 32768:
        raise opwise.UnsupportedWorkload(f"the row is held in registers, and {columns} columns are too many: up to 32768 are taken")
    if x.dtype == torch.bfloat16 and not x.is_cuda:
        raise opwise.UnsupportedWorkload("Triton's interpreter cuts a float32 off where it becomes a bfloat16, and does not round it")
    block = triton.next_power_of_2(columns)
    warps = min(16, max(4, block // 512))

    def bind(x: torch.Tensor, out: torch.Tensor):
        return lambda: row_kernel[(rows,)](x, out, columns, BLOCK=block, num_warps=warps)

    return bind
