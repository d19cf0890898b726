"""Kernels written in Python and compiled by Numba's CUDA target; without a GPU the same Python runs in Numba's simulator.

Its successor, numba-cuda-mlir, compiles the same kernels where OPWISE_NUMBA=mlir asks for it (common/chosen.py), and has no simulator.

The simulator is chosen by an environment variable that Numba reads once, at its first import: `probe` sets it for a CPU device and
refuses where it comes too late. Nothing here imports Numba before `probe` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from opwise.backends.numba_cuda.common.chosen import in_fibres, package, successor
from opwise.backends.protocol import BackendUnavailable, Probe, require_gpu
from opwise.ops import OPS

INSTALL = "pip install 'opwise[cuda13]' (or cuda12), which holds numba-cuda"
INSTALL_SUCCESSOR = "pip install 'numba-cuda-mlir[cu13]' (or cu12), or leave OPWISE_NUMBA out"


def probe(device: torch.device) -> Probe:
    """Versions of numba and numba-cuda. On a CPU device the kernels run in the simulator. Raises BackendUnavailable with the remedy."""
    simulate = device.type == "cpu"
    if successor():
        return _probe_successor(device)
    if not simulate:
        require_gpu(device)
    if simulate and "numba" not in sys.modules:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    _import_numba()
    simulating = _simulating()
    if simulate and not simulating:
        raise BackendUnavailable(
            "numba was imported before this process asked for its simulator", "set NUMBA_ENABLE_CUDASIM=1, or use a fresh process"
        )
    if simulating and not simulate:
        raise BackendUnavailable("this process runs Numba's simulator", "unset NUMBA_ENABLE_CUDASIM and start a fresh process")
    versions = {name: version(name) for name in ("numba", "numba-cuda")}
    return Probe(versions, stand_in="simulator" if simulating else None)


def _probe_successor(device: torch.device) -> Probe:
    if device.type == "cpu":
        _import_numba()
        if in_fibres():
            return Probe({package(): version(package())}, stand_in="simulator")
        raise BackendUnavailable("numba-cuda-mlir has no simulator", "leave OPWISE_NUMBA out, or use a GPU; opwise check compiles without")
    require_gpu(device)
    _import_numba()
    return Probe({package(): version(package())})


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel that `arch` (as "sm_90") can run, without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without Numba's CUDA target, RuntimeError in a process that runs the simulator, ValueError on a bad arch.
    """
    _import_numba()
    if _simulating():
        raise RuntimeError("Numba's simulator replaces the compiler in this process: unset NUMBA_ENABLE_CUDASIM and use a fresh one")
    found: dict[str, str] = {}
    for op in OPS:
        if importlib.util.find_spec(f"{__name__}.{op}") is None:
            continue
        module = importlib.import_module(f"{__name__}.{op}")
        for name, kernel in module.kernels().items():
            if kernel.runs_on(arch):
                found[f"{op}: {name}"] = kernel.report(arch)
    return found


def _simulating() -> bool:
    if successor():
        return False
    from numba import config

    return bool(config.ENABLE_CUDASIM)


def _import_numba() -> None:
    if successor():
        try:
            importlib.import_module("numba_cuda_mlir.cuda")
        except (ImportError, OSError) as error:
            raise BackendUnavailable(f"numba-cuda-mlir cannot be imported ({error})", INSTALL_SUCCESSOR) from error
        return
    try:
        version("numba-cuda")
        importlib.import_module("numba.cuda")
        importlib.import_module("numba.cuda.extending")
    except PackageNotFoundError as error:
        raise BackendUnavailable("numba-cuda is not installed", INSTALL) from error
    except (ImportError, AttributeError) as error:  # numba-cuda 0.30 asks for numpy.row_stack, gone since numpy 2.5
        import numpy

        if not hasattr(numpy, "row_stack"):
            raise BackendUnavailable(f"numba-cuda does not work with numpy {numpy.__version__}", "pip install 'numpy<2.5'") from error
        raise BackendUnavailable(f"numba.cuda cannot be imported ({error})", INSTALL) from error
