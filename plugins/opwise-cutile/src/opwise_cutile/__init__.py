"""Kernels written in cuTile Python, NVIDIA's language of tiles. There is no stand-in: without a GPU they are compiled, and not run."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import torch
from opwise.backends.protocol import BackendUnavailable, Probe, require_gpu
from opwise.ops import OPS

DRIVER = 13000  # r580, as cuDriverGetVersion says it: the first that launches what Tile IR was compiled to


def probe(device: torch.device) -> Probe:
    """Versions of cuda-tile, tileiras and torch. Raises BackendUnavailable with the remedy: without a GPU of sm_80 or later, a driver r580
    or later, cuda-tile, or both tileiras and cubins that it made elsewhere."""
    require_gpu(device)
    cuda_tile = _imported()
    from cuda.bindings import driver

    status, found = driver.cuDriverGetVersion()
    if status or found < DRIVER:
        raise BackendUnavailable(f"the driver is of CUDA {found // 1000}.{found % 1000 // 10}", "install a driver r580 or later")
    from opwise_cutile.tileiras import compiler_version

    return Probe({"cuda-tile": cuda_tile, "tileiras": compiler_version(), "torch": torch.__version__})


def compile_only(arch: str) -> Mapping[str, str]:
    """Compiles every kernel for `arch` (as "sm_90") without a GPU: kernel -> "N registers, M bytes spilled, K instructions".

    Raises BackendUnavailable without cuda-tile or tileiras, RuntimeError where tileiras refuses a kernel or knows no such arch.
    """
    _imported()
    from opwise_cutile.tileiras import cubin, report

    found = {
        (op, specimen): None
        for op in OPS
        if importlib.util.find_spec(f"{__name__}.{op}") is not None
        for specimen in importlib.import_module(f"{__name__}.{op}").specimens()
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # they wait for tileiras
        lines = pool.map(lambda key: (f"{key[0]}: {cubin(key[1], arch)[1]}", report(key[1], arch)), found)
        return dict(lines)


def _imported() -> str:
    try:
        importlib.import_module("cuda.tile")
        return version("cuda-tile")
    except ImportError as error:
        raise BackendUnavailable(f"cuda.tile cannot be imported ({error})", "pip install 'cuda-tile>=1.6'") from error
