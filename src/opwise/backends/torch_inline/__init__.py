"""CUDA C++ compiled by nvcc into one extension of torch, built on first use and kept: torch.utils.cpp_extension, as load_inline does it.

`load` is called instead of `load_inline` because the latter puts all CUDA sources into one file: here ninja compiles one an op, in
parallel. Kernels are handed addresses and torch's current stream as integers; binding.cpp alone includes headers of torch's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from opwise.backends import cuda_on_cpu
from opwise.backends.protocol import Probe, require_gpu


def probe(device: torch.device) -> Probe:
    """Versions of torch, nvcc and the host compiler; on a CPU device kernels run in a stand-in, which the host compiler alone compiles.

    Builds nothing. Raises BackendUnavailable with the remedy.
    """
    if device.type == "cpu":
        return cuda_on_cpu.probe()
    require_gpu(device)
    from opwise.backends.torch_inline.toolchain import toolchain

    found = toolchain()
    found.check_for_torch()
    return Probe({"torch": torch.__version__, "nvcc": found.nvcc_version, "c++": found.cxx_version})


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel for `arch` (as "sm_90") without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without nvcc, RuntimeError with nvcc's message where it refuses, ValueError on a bad arch.
    """
    from opwise.backends.torch_inline.toolchain import compile_units

    return compile_units(arch)
