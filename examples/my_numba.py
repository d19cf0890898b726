"""square in Numba CUDA, a grid-stride loop. Run it beside the others:

opwise run square --with examples/my_numba.py
"""

import torch
from numba import cuda

import opwise


@cuda.jit
def square(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = x[i] * x[i]


@opwise.kernel("square", build=True)
def build(x: torch.Tensor, out: torch.Tensor):
    """A grid-stride loop over arrays."""
    if x.dtype == torch.bfloat16:
        raise opwise.UnsupportedWorkload("Numba's arrays have no bfloat16")
    threads, blocks = 256, min(-(-x.numel() // 256), 65535)

    def bind(x: torch.Tensor, out: torch.Tensor):
        flat = x.view(-1), out.view(-1)
        if not x.is_cuda:  # opwise runs the kernel's Python
            return lambda: square[blocks, threads](*(t.numpy() for t in flat))
        arrays = [cuda.as_cuda_array(t, sync=False) for t in flat]

        def launch() -> None:
            stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
            square[blocks, threads, stream](*arrays)

        return launch

    return bind
