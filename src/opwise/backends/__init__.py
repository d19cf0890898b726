"""The backends. BACKENDS maps each backend's name to its module, which is imported on first use and not by `import opwise`.

Installed packages add backends by entry points of the group `opwise.backends` (name -> module), and kernels of a backend by the group
`opwise.kernels` (as in `triton_jit/rmsnorm`, installed.py). `opwise.own` adds a user's file for one run.
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
    """The backend's library versions on this device. Raises BackendUnavailable with the remedy, KeyError for an unknown name."""
    found: Probe = importlib.import_module(BACKENDS[backend]).probe(device)
    return found


@cache
def implementations(backend: str, op: str, device_type: str) -> Mapping[str, Implementation]:
    """Variant name -> implementation, of one op in one backend; empty if the backend lacks the op. Raises as `probe` does.

    device_type: "cuda" or "cpu". The probe on that device decides whether kernels run on a GPU or in the CPU stand-in.
    """
    probe(backend, torch.device(device_type))
    found = _variants(BACKENDS[backend], op)
    return {variant: Implementation(backend, OPS[op], variant, source, device_type) for variant, source in found.items()}


def _variants(name: str, op: str) -> Mapping[str, Variant]:
    """The result of `variants(op)` if the backend's module has that function, else VARIANTS of its submodule `op`."""
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
        return {"": _broken(PACKAGES.modules[f"{name}.{op}"], problem)}  # must not hide the backend's other kernels


def _broken(point: EntryPoint, problem: Exception) -> Variant:
    """A variant whose build raises RuntimeError with the reason."""

    def build(*tensors: Tensor) -> Bind:
        raise RuntimeError(f"{point.value} cannot be imported: {type(problem).__name__}: {problem}") from problem

    return Variant(build, f"{point.value}, which cannot be imported")


def implementation(name: str, device: torch.device) -> Implementation:
    """The implementation written `triton_jit/softmax` or `torch_eager/square:pow`.

    Raises KeyError that lists the known names, BackendUnavailable if it cannot run on `device`.
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
