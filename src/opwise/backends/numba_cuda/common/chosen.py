"""Which Numba compiles the kernels of this process. Nothing here imports either of them."""

from __future__ import annotations

import importlib.util
import os
from functools import cache

NAMES = {"cuda": "numba-cuda", "mlir": "numba-cuda-mlir"}


@cache
def successor() -> bool:
    """Is it numba-cuda-mlir, the successor of numba-cuda? OPWISE_NUMBA says so (cuda, mlir); else it is where it is the only one installed.

    Raises ValueError on another word.
    """
    word = os.environ.get("OPWISE_NUMBA", "")
    if word not in ("", *NAMES):
        raise ValueError(f"OPWISE_NUMBA={word} names no Numba: write {' or '.join(NAMES)}, or leave it out")
    if word:
        return word == "mlir"
    return importlib.util.find_spec("numba") is None and importlib.util.find_spec("numba_cuda_mlir") is not None


def package() -> str:
    """Its name, as pip knows it."""
    return NAMES["mlir" if successor() else "cuda"]
