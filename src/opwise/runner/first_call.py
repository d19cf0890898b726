"""What the first call of a backend costs: every backend in a process of its own, once with empty compiler caches, once with full ones."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from opwise.ops import OPS
from opwise.runner.jobs import Entry
from opwise.runner.supervisor import Patience, Worker, WorkerLost

FirstCalls = Mapping[tuple[str, str], tuple[float, float]]  # (backend, op) -> seconds (cold, cached)

# Where each compiler keeps what it built. One folder an experiment, so that nothing compiled before can help.
CACHES = ("TORCH_EXTENSIONS_DIR", "OPWISE_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR",
          "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")  # fmt: skip


def first_calls(
    catalogue: Mapping[str, Entry], device: str, setup: Callable[[], None] | None = None, environment: Mapping[str, str] | None = None
) -> FirstCalls:
    """Measures all available backends at once, one process each: compilers use the CPU, and no time is taken on the GPU meanwhile.

    The first op of a backend carries the import of its library; torch_inline builds one extension for all ops, so that op carries
    the whole build. A backend whose worker is lost is left out. `setup` runs first in every worker, in `environment`.
    """
    backends = [name for name, entry in catalogue.items() if entry.available and entry.stand_in is None]
    with ThreadPoolExecutor(max_workers=len(backends) or 1) as pool:
        pairs = list(pool.map(lambda backend: _cold_then_cached(catalogue[backend], device, setup, environment or {}), backends))
    return {(backend, op): pair for backend, both in zip(backends, pairs, strict=True) for op, pair in both.items()}


def _cold_then_cached(
    entry: Entry, device: str, setup: Callable[[], None] | None, around: Mapping[str, str]
) -> Mapping[str, tuple[float, float]]:
    workloads = tuple(spec.workloads["core"][0] for op, spec in OPS.items() if "" in entry.variants.get(op, {}))
    try:
        cold, cached = cold_then_cached(device, setup, "first_call", (entry.backend, workloads), around)
    except WorkerLost:
        return {}
    return {op: (cold[op], cached[op]) for op in cold}


def cold_then_cached(
    device: str, setup: Callable[[], None] | None, kind: str, payload: Any, around: Mapping[str, str] | None = None
) -> tuple[Any, Any]:
    """What two fresh workers answer to one request: the first begins with empty compiler caches, the second with what the first left.

    `around`: what else is in their environment. Raises WorkerLost.
    """
    with tempfile.TemporaryDirectory(prefix="opwise-first-call-") as folder:
        environment = {**(around or {})} | {name: str(Path(folder) / name.lower()) for name in CACHES}
        answers = []
        for _ in ("cold", "cached"):
            with Worker(device, partial(_keeping_bytecode, str(Path(folder) / "bytecode"), setup), environment) as worker:
                answers.append(worker.ask(kind, payload, Patience(900.0)))
    return answers[0], answers[1]


def _keeping_bytecode(folder: str, setup: Callable[[], None] | None) -> None:
    """The interpreter is a compiler, too. Images forbid it to write, and would have it compile a library's source in each process."""
    sys.pycache_prefix, sys.dont_write_bytecode = folder, False
    if setup is not None:
        setup()
