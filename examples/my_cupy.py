"""softmax in CUDA C++ through cupy.RawKernel, one row a block. Run it beside the others:

opwise run softmax --with examples/my_cupy.py
"""

import cupy
import torch

import opwise

SOURCE = r"""
// The larger of, or the sum over, all threads of a block of 256; everyone gets it.
__device__ float over_block(float value, bool largest) {
    __shared__ float part[8];
    for (int step = 16; step; step /= 2) {
        float other = __shfl_xor_sync(~0u, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    __syncthreads();  // part may still be read from the call before
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = part[0];
    for (int i = 1; i < 8; ++i) value = largest ? fmaxf(value, part[i]) : value + part[i];
    return value;
}

extern "C" __global__ void softmax(const float* x, float* out, long long columns) {
    x += blockIdx.x * columns;
    out += blockIdx.x * columns;
    float top = -1.0f / 0.0f, sum = 0;
    for (long long i = threadIdx.x; i < columns; i += 256) top = fmaxf(top, x[i]);
    top = over_block(top, true);
    for (long long i = threadIdx.x; i < columns; i += 256) sum += expf(x[i] - top);
    sum = over_block(sum, false);
    for (long long i = threadIdx.x; i < columns; i += 256) out[i] = expf(x[i] - top) / sum;
}
"""
softmax = cupy.RawKernel(SOURCE, "softmax")  # compiled at its first launch


@opwise.kernel("softmax", build=True)
def build(x: torch.Tensor, out: torch.Tensor):
    """One row a block of 256, three passes over it."""
    if x.dtype != torch.float32:
        raise opwise.UnsupportedWorkload(f"the kernel is written for float32: given {x.dtype}")
    rows, columns = x.shape

    def bind(x: torch.Tensor, out: torch.Tensor):
        arguments = x.data_ptr(), out.data_ptr(), columns

        def launch(keep: object = (x, out)) -> None:
            with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
                softmax((rows,), (256,), arguments)

        return launch

    return bind
