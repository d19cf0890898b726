"""CUDA C++ on the CPU: the stand-in in which torch_inline and cupy_raw run their kernels without a GPU.

The host's C++ compiler compiles the sources of cuda_src unchanged, with headers that replace CUDA's (`include`). Three things that a header
cannot express are rewritten in the preprocessed text (`rewrite`): inline PTX, __shared__ variables, the table of kernels. The result
behaves as an sm_80 GPU (`runtime.cpp`): one fibre per CUDA thread, warp-synchronous operations, blocks on several cores. It reports errors
that a GPU does not: a barrier that not all threads reach, shared memory accessed out of bounds or read before it is written.
docs/checking.md lists the errors it cannot find and the kernels it cannot run.
"""

from __future__ import annotations

import torch

from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import Probe

STAND_IN = "fibres"
CAPABILITY = (8, 0)  # for the plans: tensor cores by mma.sync, no clusters, no wgmma
PROCESSORS = 2  # SMs, for the plans; few, so that one-wave grids are small
MACHINE = Machine(PROCESSORS, CAPABILITY, 163 * 1024)

# Op -> (its kernels that the stand-in cannot run, why). compile_only compiles them for their architectures.
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
    """Versions of torch and the C++ compiler. Builds nothing. Raises BackendUnavailable, with the remedy, without a C++20 compiler."""
    from opwise.backends.cuda_on_cpu.build import compiler

    return Probe({"torch": torch.__version__, "c++": compiler().version}, STAND_IN)
