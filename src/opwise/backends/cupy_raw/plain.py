"""The variant `plain`: a kernel and its launch as in CuPy's manual, `cupy.RawKernel(...)` and `kernel(grid, block, arguments)`.

CuPy has no bfloat16, and compiles a RawKernel with -ftz=true: subnormal float32 numbers are flushed to zero. Without a GPU the kernels run
in the stand-in (cuda_on_cpu).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from opwise.backends.cuda_src import plain
from opwise.backends.cupy_raw.launch import built
from opwise.backends.protocol import Bind, Launch, UnsupportedWorkload, Variant

FLUSHED = "CuPy compiles a RawKernel with -ftz=true: float32 numbers that are subnormal count as 0"
TYPES = {torch.float32: "float", torch.float16: "__half"}


@cache
def kernel(op: str, dtypes: tuple[torch.dtype, ...]) -> Any:
    import cupy

    return cupy.RawKernel("#include <cuda_fp16.h>\n" + plain.typed(op, op, tuple(TYPES[dtype] for dtype in dtypes)), op)


def run(op: str, *tensors: Tensor) -> None:
    """Launches the op's kernels on torch's current stream. tensors: the inputs and the output."""
    import cupy

    with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
        for step in plain.steps(op, *tensors):
            kernel(op, step.dtypes)(step.grid, step.block, (*(t.data_ptr() for t in step.tensors), *step.sizes))


def variant(op: str) -> Variant:
    stand_in = plain.on_cpu(op, built)
    flushed = torch.cuda.is_available()  # the stand-in's compiler flushes nothing

    def build(*tensors: Tensor) -> Bind:
        if tensors[-1].dtype not in TYPES:
            raise UnsupportedWorkload(f"{op}:plain takes float32 and float16, given {tensors[-1].dtype}: CuPy has no bfloat16")
        return stand_in(*tensors) if tensors[-1].device.type == "cpu" else on_gpu(*tensors)

    def on_gpu(*tensors: Tensor) -> Bind:
        plain.steps(op, *tensors)  # raises UnsupportedWorkload

        def bind(*tensors: Tensor) -> Launch:
            return lambda: run(op, *tensors)

        return bind

    return Variant(build, plain.SUMMARIES[op], fault=FLUSHED if flushed else None)
