"""GPU MODE, lecture 1: a CUDA kernel that squares a matrix, compiled by torch's load_inline at the call, on a 2x3 tensor."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch

from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

# One element a thread in blocks of 16x16, the bounds checked: 6 of 256 threads have work here.
CUDA = r"""
__global__ void square_matrix_kernel(const float *matrix, float *result, int rows, int columns) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && column < columns) result[row * columns + column] = matrix[row * columns + column] * matrix[row * columns + column];
}

torch::Tensor square_matrix(torch::Tensor matrix) {
    TORCH_CHECK(matrix.is_cuda() && matrix.is_contiguous() && matrix.scalar_type() == torch::kFloat, "square_matrix takes a contiguous "
                "float32 CUDA matrix");
    auto result = torch::empty_like(matrix);
    const int rows = matrix.size(0), columns = matrix.size(1);
    const dim3 threads(16, 16), blocks((columns + 15) / 16, (rows + 15) / 16);
    square_matrix_kernel<<<blocks, threads>>>(matrix.data_ptr<float>(), result.data_ptr<float>(), rows, columns);
    return result;
}
"""
DECLARATION = "torch::Tensor square_matrix(torch::Tensor matrix);"


def square_matrix(place: Place) -> Findings:
    from torch.utils import cpp_extension

    from opwise.backends.torch_inline.extension import toolkit
    from opwise.backends.torch_inline.toolchain import toolchain

    tools = toolchain()
    tools.check_for_torch()
    major, minor = torch.cuda.get_device_capability(place.device)
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}"  # of this worker, which builds nothing else: else torch takes all it knows
    with tempfile.TemporaryDirectory(prefix="opwise-seeds-") as folder, toolkit(tools, Path(folder)) as runtime:
        began = time.perf_counter()
        module = cpp_extension.load_inline(  # type: ignore[no-untyped-call]
            "opwise_square_matrix",
            DECLARATION,
            CUDA,
            functions=["square_matrix"],
            build_directory=folder,
            with_cuda=True,
            extra_ldflags=[runtime],
        )
        seconds = time.perf_counter() - began
        x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device=place.device)
        out = module.square_matrix(x)
        place.wait()
    right = torch.equal(out, x * x)
    return Findings(f"built in {seconds:.0f} s", f"2x3 -> {out.tolist()}", right, figures={"build, s": seconds})
