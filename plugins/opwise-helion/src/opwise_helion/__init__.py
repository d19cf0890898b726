"""Kernels written in Helion, PyTorch's language of tiles, which writes Triton. On a CPU device Triton's interpreter runs what it wrote.

Nothing here imports Helion before `probe` does: it imports Triton, and Triton reads at its import whether it interprets.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from opwise.backends import triton_jit
from opwise.backends.protocol import BackendUnavailable, Probe
from opwise.ops import OPS


def probe(device: torch.device) -> Probe:
    """Versions of helion, triton and torch. Raises BackendUnavailable with the remedy: without Helion, and wherever Triton cannot run."""
    found = triton_jit.probe(device)
    return Probe({"helion": _imported(), **found.versions}, stand_in=found.stand_in)


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel for `arch` (as "sm_90") without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without Helion or Triton, RuntimeError in a process that runs the interpreter, ValueError on a bad arch.
    """
    _imported()
    from opwise.backends.triton_jit.common.launch import INTERPRETING

    from opwise_helion.planning import report
    from opwise_helion.specimens import of

    if INTERPRETING:
        raise RuntimeError("Triton's interpreter replaces the compiler in this process: unset TRITON_INTERPRET and use a fresh one")

    return {f"{op}: {name}": report(plan, arch) for op in OPS for name, plan in of(op)}


def _imported() -> str:
    try:
        importlib.import_module("triton")  # which Helion can be imported without
        compat: Any = importlib.import_module("torch._inductor.runtime.triton_compat")
        if not hasattr(compat, "IntelGPUError"):  # Helion imports it, to tell an error of an Intel GPU; torch 2.11 has none yet
            compat.IntelGPUError = type("IntelGPUError", (Exception,), {})
        importlib.import_module("helion")
        return version("helion")
    except ImportError as error:
        raise BackendUnavailable(f"helion cannot be imported ({error})", "pip install 'helion>=1.5.1,<2' 'triton>=3.6'") from error
