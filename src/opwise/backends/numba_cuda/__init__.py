"""Kernels written in Python and compiled by Numba's CUDA target; without a GPU the same Python runs in fibres (numba_on_cpu).

numba-cuda's successor, numba-cuda-mlir, compiles the same kernels where OPWISE_NUMBA=mlir asks for it (common/chosen.py). Nothing here
imports either before `probe` does.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from opwise.backends import numba_on_cpu
from opwise.backends.numba_cuda.common.chosen import package, successor
from opwise.backends.protocol import BackendUnavailable, Probe, require_gpu
from opwise.ops import OPS

INSTALL = "pip install 'opwise[cuda13]' (or cuda12), which holds numba-cuda"
INSTALL_SUCCESSOR = "pip install 'numba-cuda-mlir[cu13]' (or cu12), or leave OPWISE_NUMBA out"


def probe(device: torch.device) -> Probe:
    """Versions of Numba's packages. On a CPU device the kernels run in fibres. Raises BackendUnavailable with the remedy."""
    on_cpu = device.type == "cpu"
    if not on_cpu:
        require_gpu(device)
    _import_numba(compiling=not on_cpu)
    if on_cpu:
        if importlib.util.find_spec("greenlet") is None:
            raise BackendUnavailable("greenlet is not installed, which runs the kernels on a CPU", numba_on_cpu.INSTALL)
        numba_on_cpu.take_plain_launches()
    versions = {name: version(name) for name in ([package()] if successor() else ["numba", "numba-cuda"])}
    return Probe(versions, stand_in=numba_on_cpu.STAND_IN if on_cpu else None)


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel that `arch` (as "sm_90") can run, without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without Numba's CUDA target, ValueError on a bad arch.
    """
    _import_numba()
    found: dict[str, str] = {}
    for op in OPS:
        if importlib.util.find_spec(f"{__name__}.{op}") is None:
            continue
        module = importlib.import_module(f"{__name__}.{op}")
        for name, kernel in module.kernels().items():
            if kernel.runs_on(arch):
                found[f"{op}: {name}"] = kernel.report(arch)
    return found


def _import_numba(compiling: bool = True) -> None:
    """compiling: with what numba-cuda imports when it first compiles, which fails beside a numpy that it does not fit."""
    if successor():
        try:
            importlib.import_module("numba_cuda_mlir.cuda")
        except (ImportError, OSError) as error:
            raise BackendUnavailable(f"numba-cuda-mlir cannot be imported ({error})", INSTALL_SUCCESSOR) from error
        return
    try:
        version("numba-cuda")
        if importlib.import_module("numba.core.config").ENABLE_CUDASIM:
            raise BackendUnavailable("NUMBA_ENABLE_CUDASIM puts Numba's simulator in the place of its compiler", "unset it")
        importlib.import_module("numba.cuda")
        importlib.import_module("numba.cuda.np.arrayobj" if compiling else "numba.cuda.extending")
    except PackageNotFoundError as error:
        raise BackendUnavailable("numba-cuda is not installed", INSTALL) from error
    except (ImportError, AttributeError) as error:  # numba-cuda 0.30 asks for numpy.row_stack, gone since numpy 2.5
        import numpy

        if not hasattr(numpy, "row_stack"):
            raise BackendUnavailable(
                f"numba-cuda does not work with numpy {numpy.__version__} ({error})", "pip install 'numpy<2.5'"
            ) from error
        raise BackendUnavailable(f"numba.cuda cannot be imported ({error})", INSTALL) from error
