"""square in CUDA C++ compiled by nvcc through torch's load_inline. Run it beside the others:

opwise run square --with examples/my_cuda.py
"""

from functools import cache

import torch
from torch.utils.cpp_extension import load_inline

import opwise

CUDA = r"""
#include <cstdint>
#include <cuda_runtime.h>

__global__ void square_kernel(const float* x, float* out, int64_t n) {
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) out[i] = x[i] * x[i];
}

// Addresses and the stream come as integers, so that nothing here is torch's own.
void square(int64_t x, int64_t out, int64_t n, int64_t stream) {
    int blocks = int((n + 255) / 256 < 65535 ? (n + 255) / 256 : 65535);
    square_kernel<<<blocks, 256, 0, reinterpret_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const float*>(x), reinterpret_cast<float*>(out), n);
}
"""
CPP = "void square(int64_t x, int64_t out, int64_t n, int64_t stream);"


@cache
def extension():
    """Built at the first use, by nvcc; torch keeps it for the next time."""
    return load_inline("opwise_example_square", CPP, CUDA, functions=["square"])


@opwise.kernel("square", build=True)
def build(x: torch.Tensor, out: torch.Tensor):
    """A grid-stride loop."""
    if x.dtype != torch.float32:
        raise opwise.UnsupportedWorkload(f"the kernel is written for float32: given {x.dtype}")
    square = extension().square

    def bind(x: torch.Tensor, out: torch.Tensor):
        n = x.numel()

        def launch(keep: object = (x, out)) -> None:
            square(x.data_ptr(), out.data_ptr(), n, torch.cuda.current_stream().cuda_stream)

        return launch

    return bind
