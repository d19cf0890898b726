"""CUDA C++ compiled by NVRTC and loaded by CuPy's RawModule. CuPy allocates no memory: kernels get addresses of torch's tensors and run on
torch's current stream."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch

from opwise.backends import cuda_on_cpu
from opwise.backends.protocol import BackendUnavailable, Probe, require_gpu

INSTALL = "pip install 'opwise[cuda13]' (or cuda12), which holds CuPy"


def probe(device: torch.device) -> Probe:
    """Versions of CuPy and NVRTC, or on a CPU device those of the stand-in, which needs neither. Raises BackendUnavailable."""
    if device.type == "cpu":
        return cuda_on_cpu.probe()
    require_gpu(device)
    _import_cupy()
    from opwise.backends.cupy_raw.module import nvrtc_version

    return Probe({"cupy": importlib.import_module("cupy").__version__, "nvrtc": nvrtc_version()})


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel for `arch` (as "sm_90") without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without CuPy or NVRTC, RuntimeError with NVRTC's message if it fails, ValueError for a bad arch.
    """
    _import_cupy()
    from opwise.backends.cupy_raw.module import compile_units

    return compile_units(arch)


def _import_cupy() -> None:
    try:
        importlib.import_module("cupy.cuda").nvrtc.getVersion()
    except ModuleNotFoundError as error:
        raise BackendUnavailable("CuPy is not installed", INSTALL) from error
    except Exception as error:  # a library that CuPy loads is missing
        raise BackendUnavailable(f"CuPy does not work here ({error})", INSTALL) from error
