"""How an op is computed. BACKENDS is the one list of backends; each is imported on first use, never by importing opwise.

Installed packages add to it by entry points: in the group `opwise.backends`, a backend's name leads to its module; in `opwise.kernels`,
`triton_jit/rmsnorm` leads to that backend's kernels of an op (installed.py). A file of a user's own is added for the time of a run
(opwise.own).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint

import torch
from torch import Tensor

from opwise.backends import installed
from opwise.backends.protocol import Bind, Implementation, Probe, Variant, variants_of
from opwise.ops import OPS
from opwise.ops.installed import offered

OURS: Mapping[str, str] = {
    "torch_eager": "opwise.backends.torch_eager",
    "torch_inline": "opwise.backends.torch_inline",
    "cupy_raw": "opwise.backends.cupy_raw",
    "numba_cuda": "opwise.backends.numba_cuda",
    "triton_jit": "opwise.backends.triton_jit",
}
BACKENDS: Mapping[str, str] = {**OURS, **{name: point.value for name, point in offered("opwise.backends", OURS).items()}}
PACKAGES = installed.install(BACKENDS)


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
    found = _variants(BACKENDS[backend], op)
    return {variant: Implementation(backend, OPS[op], variant, source, device_type) for variant, source in found.items()}


def _variants(name: str, op: str) -> Mapping[str, Variant]:
    """Of a backend's module: what its function `variants(op)` gives, where it is one file; else VARIANTS of its module for the op."""
    backend = importlib.import_module(name)
    if hasattr(backend, "variants"):
        found: Mapping[str, Variant] = backend.variants(op)
        return found
    try:
        if not hasattr(backend, "__path__") or importlib.util.find_spec(f"{name}.{op}") is None:
            return {}
        return variants_of(importlib.import_module(f"{name}.{op}"))
    except Exception as problem:
        if f"{name}.{op}" not in PACKAGES.modules:
            raise
        return {"": _broken(PACKAGES.modules[f"{name}.{op}"], problem)}  # a package's trouble, and not the backend's


def _broken(point: EntryPoint, problem: Exception) -> Variant:
    """What fails with the reason wherever it is wanted."""

    def build(*tensors: Tensor) -> Bind:
        raise RuntimeError(f"{point.value} cannot be imported: {type(problem).__name__}: {problem}") from problem

    return Variant(build, f"{point.value}, which cannot be imported")


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
