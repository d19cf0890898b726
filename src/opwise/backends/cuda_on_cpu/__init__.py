"""CUDA C++ on the CPU: the stand-in that torch_inline and cupy_raw run in where there is no GPU.

The sources of cuda_src are compiled as they are, by the host's C++ compiler, against a header that stands in for CUDA (`include`). Three
things that no header can express are rewritten in the preprocessed text (`rewrite`): inline PTX, __shared__ variables, kernels by name.
The result runs as an sm_80 GPU would (`runtime.cpp`): a fibre a CUDA thread, warps that meet, blocks spread over the cores. What a GPU
tolerates in silence is an error here: a barrier that not all threads reach, shared memory out of bounds or read before it was written.
docs/checking.md says what it cannot see, and which kernels it cannot run.
"""

from __future__ import annotations

import torch

from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import Probe

STAND_IN = "fibres"
CAPABILITY = (8, 0)  # what a plan is told: tensor cores by mma.sync, no clusters, no wgmma
PROCESSORS = 2  # few, so that grids which are one wave have several blocks at small sizes, and little to do besides
MACHINE = Machine(PROCESSORS, CAPABILITY, 163 * 1024)

# What no stand-in runs: op -> which of its kernels, and why. They are compiled for their architectures, by compile_only.
NOT_RUN = {
    "softmax": (
        "softmax_*_cluster2 to _cluster16, softmax_*_stream",
        "thread block clusters and distributed shared memory, blocks that wait for each other: sm_90 and later",
    ),
    "matmul": (
        "matmul_wgmma_* and matmul_ffma_* and matmul_cluster_* and matmul_extra_cluster_* and matmul_unaligned_tma_*",
        "wgmma, clusters, tensor maps and the copies of TMA, sm_90 alone",
    ),
}


def probe() -> Probe:
    """What the stand-in compiles with. Builds nothing. Raises BackendUnavailable, with the remedy, without a compiler for C++20."""
    from opwise.backends.cuda_on_cpu.build import compiler

    return Probe({"torch": torch.__version__, "c++": compiler().version}, STAND_IN)
