"""Cost of a backend's first call: each in a separate process, once with empty compiler caches, once with full ones."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
    """Measures all available backends, each in its own processes. With empty caches all at once, since compilers use the CPU and no GPU
    time is taken then. With full ones one after another, since a compiler running beside doubles the time.

    The first op of a backend includes the import of its library; torch_inline builds one extension for all ops, so its first op includes
    the whole build. A backend whose worker is lost is left out. `setup` runs first in every worker, in `environment`."""
    backends = [name for name, entry in catalogue.items() if entry.available and entry.stand_in is None]
    with ExitStack() as opened, ThreadPoolExecutor(max_workers=len(backends) or 1) as pool:
        asking = {name: opened.enter_context(_own_caches(device, setup, environment or {})) for name in backends}

        def answer(backend: str) -> Mapping[str, float]:
            entry = catalogue[backend]
            workloads = tuple(spec.workloads["core"][0] for op, spec in OPS.items() if "" in entry.variants.get(op, {}))
            try:
                found: Mapping[str, float] = asking[backend]("first_call", (backend, workloads))
            except WorkerLost:
                return {}
            return found

        cold = dict(zip(backends, pool.map(answer, backends), strict=True))
        cached = {backend: answer(backend) for backend in backends if cold[backend]}
    return {(backend, op): (cold[backend][op], s) for backend, found in cached.items() for op, s in found.items()}


def cold_then_cached(
    device: str, setup: Callable[[], None] | None, kind: str, payload: Any, around: Mapping[str, str] | None = None
) -> tuple[Any, Any]:
    """The answers of two fresh workers to one request: the first begins with empty compiler caches, the second with the first's.

    `around`: further environment variables. Raises WorkerLost."""
    with _own_caches(device, setup, around or {}) as ask:
        return ask(kind, payload), ask(kind, payload)


@contextmanager
def _own_caches(device: str, setup: Callable[[], None] | None, around: Mapping[str, str]) -> Iterator[Callable[[str, Any], Any]]:
    """What asks a fresh worker each time; all of them have the same caches, empty at first."""
    with tempfile.TemporaryDirectory(prefix="opwise-first-call-") as folder:
        environment = {**around} | {name: str(Path(folder) / name.lower()) for name in CACHES}

        def ask(kind: str, payload: Any) -> Any:
            with Worker(device, partial(_keeping_bytecode, str(Path(folder) / "bytecode"), setup), environment) as worker:
                return worker.ask(kind, payload, Patience(900.0))

        yield ask


def _keeping_bytecode(folder: str, setup: Callable[[], None] | None) -> None:
    """The interpreter is a compiler, too. Images forbid it to write, and would have it compile a library's source in each process."""
    sys.pycache_prefix, sys.dont_write_bytecode = folder, False
    if setup is not None:
        setup()
