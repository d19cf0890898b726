"""How an op is computed. BACKENDS is the one list of backends; each is imported on first use, never by importing opwise."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import cache

import torch

from opwise.backends.protocol import Implementation, Probe, variants_of
from opwise.ops import OPS

BACKENDS: Mapping[str, str] = {
    "torch_eager": "opwise.backends.torch_eager",
    "torch_inline": "opwise.backends.torch_inline",
    "cupy_raw": "opwise.backends.cupy_raw",
    "numba_cuda": "opwise.backends.numba_cuda",
    "triton_jit": "opwise.backends.triton_jit",
}


def probe(backend: str, device: torch.device) -> Probe:
    """What the backend runs with on this device. Raises BackendUnavailable with the remedy, KeyError for an unknown name."""
    found: Probe = importlib.import_module(BACKENDS[backend]).probe(device)
    return found


@cache
def implementations(backend: str, op: str, device_type: str) -> Mapping[str, Implementation]:
    """Variant name -> implementation, of one op in one backend; empty where the backend has no such op.

    `device_type` is part of the key, not of the answer: a process runs a backend on GPUs or in its stand-in, and the probe that
    must come first decides which. Raises what `probe` raises.
    """
    probe(backend, torch.device(device_type))
    name = f"{BACKENDS[backend]}.{op}"
    if importlib.util.find_spec(name) is None:
        return {}
    module = importlib.import_module(name)
    return {variant: Implementation(backend, OPS[op], variant, source, device_type) for variant, source in variants_of(module).items()}


def implementation(name: str, device: torch.device) -> Implementation:
    """The implementation written `triton_jit/softmax` or `torch_eager/square:pow`.

    Raises KeyError listing the known names, BackendUnavailable where it cannot run on `device`.
    """
    backend, _, rest = name.partition("/")
    op, _, variant = rest.partition(":")
    if backend not in BACKENDS:
        raise KeyError(f"unknown backend {backend!r} in {name!r}: known are {', '.join(BACKENDS)}")
    if op not in OPS:
        raise KeyError(f"unknown op {op!r} in {name!r}: known are {', '.join(OPS)}")
    found = implementations(backend, op, device.type)
    if variant not in found:
        known = ", ".join(sorted(key or "(unnamed)" for key in found)) or "none"
        raise KeyError(f"{backend}/{op} has no variant {variant!r}: known are {known}")
    return found[variant]
