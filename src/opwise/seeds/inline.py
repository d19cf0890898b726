"""CUDA C++ compiled by torch's load_inline at the call: GPU MODE's square of a matrix on a 2x3 tensor, and CS336's GELU with an explicit
build_directory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from opwise.measure.validate import judge
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place

# One element a thread in blocks of 16x16, the bounds checked: 6 of 256 threads have work here.
SQUARE_KERNEL = r"""
__global__ void square_matrix_kernel(const float *matrix, float *result, int rows, int columns) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && column < columns) result[row * columns + column] = matrix[row * columns + column] * matrix[row * columns + column];
}
"""
SQUARE = r"""
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
# One element a thread, and the constants are float: with double ones, as classrooms have them, all of it is computed in double.
GELU_KERNEL = r"""
__global__ void gelu_kernel(const float *in, float *out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * in[i] * (1.0f + tanhf(0.79788456f * (in[i] + 0.044715f * in[i] * in[i] * in[i])));
}
"""
GELU = r"""
torch::Tensor gelu(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == torch::kFloat, "gelu takes a contiguous float32 CUDA tensor");
    auto y = torch::empty_like(x);
    const int n = x.numel(), threads = 1024;
    gelu_kernel<<<(n + threads - 1) / threads, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
WORKLOAD = Workload("gelu", (257, 1031), "float32")  # no multiple of a block


def square_matrix(place: Place) -> Findings:
    with _built(place, "square_matrix", SQUARE_KERNEL + SQUARE, "torch::Tensor square_matrix(torch::Tensor matrix);") as (
        module,
        seconds,
        _,
    ):
        x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device=place.device)
        out = module.square_matrix(x)
        place.wait()
    return Findings(f"built in {seconds:.0f} s", f"2x3 -> {out.tolist()}", torch.equal(out, x * x), figures={"build, s": seconds})


def gelu(place: Place) -> Findings:
    """Checks the result within the op's bound, and lists the files that load_inline leaves in its build_directory."""
    spec = OPS["gelu"]
    (x,) = spec.make_inputs(WORKLOAD, place.device, 0)
    with _built(place, "gelu", GELU_KERNEL + GELU, "torch::Tensor gelu(torch::Tensor x);") as (module, seconds, folder):
        out = module.gelu(x)
        place.wait()
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
    reference = spec.reference(x.double())
    verdict = judge(out, reference, spec.error_bound(WORKLOAD, reference, x.double()))
    right = "right within the bound" if verdict.ok else f"wrong: {verdict.reason}"
    return Findings(
        f"built in {seconds:.0f} s",
        f"{right} on {WORKLOAD.shape[0]}x{WORKLOAD.shape[1]}; build_directory holds {', '.join(files)}",
        verdict.ok and "build.ninja" in files,
        figures={"build, s": seconds, "largest error over its bound": verdict.error_ratio},
    )


@contextmanager
def _built(place: Place, function: str, cuda: str, declaration: str) -> Iterator[tuple[Any, float, Path]]:
    """The module, the seconds that its build took, and its build_directory, which goes at the end."""
    from torch.utils import cpp_extension

    from opwise.backends.torch_inline.extension import toolkit
    from opwise.backends.torch_inline.toolchain import toolchain

    tools = toolchain()
    tools.check_for_torch()
    major, minor = torch.cuda.get_device_capability(place.device)
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}"  # of this worker: else torch takes all it knows
    with tempfile.TemporaryDirectory(prefix="opwise-seeds-") as folder, toolkit(tools, Path(folder)) as runtime:
        began = time.perf_counter()
        module = cpp_extension.load_inline(  # type: ignore[no-untyped-call]
            f"opwise_{function}",
            declaration,
            cuda,
            functions=[function],
            build_directory=folder,
            with_cuda=True,
            extra_ldflags=[runtime],
        )
        yield module, time.perf_counter() - began, Path(folder)
