"""CUDA C++ compiled by nvcc into one extension of torch (torch.utils.cpp_extension), built on first use and cached on disk.

`load` is used instead of `load_inline`, which puts all CUDA sources into one file: here ninja compiles one file per unit, in parallel.
Kernels take addresses and torch's current stream as integers; only binding.cpp includes torch's headers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from opwise.backends import cuda_on_cpu
from opwise.backends.protocol import Probe, require_gpu


def probe(device: torch.device) -> Probe:
    """Versions of torch, nvcc and the host compiler, or on a CPU device those of the stand-in, which needs no nvcc.

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

    Raises BackendUnavailable without nvcc, RuntimeError with nvcc's message if it fails, ValueError for a bad arch.
    """
    from opwise.backends.torch_inline.toolchain import compile_units

    return compile_units(arch)
