"""Start of a worker on its GPU: creates the context while the backends' libraries are imported, and builds and loads the roof kernels, as
the compile phase does for the jobs' kernels.

Each takes a second or two, and four workers that want a context at once wait for it. The backends' own probes would wait for the context
first and import then."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading

import torch

from opwise.backends import OURS
from opwise.early import uncollected
from opwise.ops import OPS

LIBRARIES = ("numba.cuda", "numba.cuda.extending", "cupy.cuda", "triton.language")  # none asks for a GPU while it is imported


def arrive(device: torch.device) -> None:
    """Creates the context, imports the backends and loads the roof kernels. Failures are ignored: the backend that needs the GPU reports
    them again."""
    context = threading.Thread(target=_make_context, args=(device,), daemon=True)
    context.start()
    with uncollected():
        for name in (*LIBRARIES, *(f"{module}.{op}" for module in OURS.values() for op in OPS)):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module("triton.runtime.cache").triton_key()  # a digest of all that Triton is, which it makes once in a process
    context.join()
    with contextlib.suppress(Exception):
        importlib.import_module("opwise.measure.limits").load_kernels(device)


def _make_context(device: torch.device) -> None:
    """The driver leaves the interpreter to the imports while it is waited for here; torch's own way to cuInit would not."""
    with contextlib.suppress(Exception):
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        torch.zeros(1, device=device)
