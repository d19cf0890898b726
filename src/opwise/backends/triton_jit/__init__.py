"""Kernels written in Triton. On a CPU device the same kernels run in Triton's interpreter: it tests results, not times.

Triton reads the environment variable that selects the interpreter once, on import: `probe` sets it for a CPU device, and raises if Triton
was imported before. Nothing here imports Triton before `probe` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping

import torch

from opwise.backends.protocol import BackendUnavailable, Probe, require_gpu
from opwise.ops import OPS

INSTALL = "pip install 'opwise[cuda13]' (or cuda12), which holds triton"


def probe(device: torch.device) -> Probe:
    """Versions of triton and torch. Selects the interpreter for a CPU device. Raises BackendUnavailable with the remedy."""
    interpret = device.type == "cpu"
    if not interpret:
        require_gpu(device)
    if interpret and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    version = _import_triton()
    if interpret and not _interpreting():
        raise BackendUnavailable(
            "triton was imported before this process asked for its interpreter", "set TRITON_INTERPRET=1, or use a fresh process"
        )
    if _interpreting() and not interpret:
        raise BackendUnavailable("this process runs Triton's interpreter", "unset TRITON_INTERPRET and start a fresh process")
    versions = {"triton": version, "torch": torch.__version__}
    return Probe(versions, stand_in="interpreter" if interpret else None)


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel for `arch` (as "sm_90") without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without Triton, RuntimeError in a process that runs the interpreter, ValueError on a bad arch.
    """
    _import_triton()
    if _interpreting():
        raise RuntimeError("Triton's interpreter replaces the compiler in this process: unset TRITON_INTERPRET and use a fresh one")
    from opwise.backends.triton_jit.common.specimen import report

    found: dict[str, str] = {}
    for op in OPS:
        if importlib.util.find_spec(f"{__name__}.{op}") is None:
            continue
        module = importlib.import_module(f"{__name__}.{op}")
        for name, specimen in module.specimens(arch).items():
            found[f"{op}: {name}"] = report(specimen, arch)
    return found


def _interpreting() -> bool:
    """Was Triton's library imported for the interpreter, and is the knob still set? The environment may have changed since the import."""
    from triton import knobs
    from triton.language import sum as library_function
    from triton.runtime.jit import JITFunction

    return bool(knobs.runtime.interpret) and not isinstance(library_function, JITFunction)


def _import_triton() -> str:
    try:
        import triton
    except ImportError as error:
        raise BackendUnavailable(f"triton cannot be imported ({error})", INSTALL) from error
    if not hasattr(triton, "knobs"):
        raise BackendUnavailable(f"triton {triton.__version__} is older than 3.4", "pip install 'triton>=3.6'")
    return str(triton.__version__)
