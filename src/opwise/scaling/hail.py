"""Tells a Dask cluster's workers to import torch, and to start the processes that their kernels' workers are forked from, while this
process imports torch itself.

Only the standard library and distributed may be imported here, and the function is sent by value: by name it would be looked up in opwise,
which imports torch first. Errors are reported later, by joining.py."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

RESOURCE = "GPU"  # or GPU-<model>
ANSWER_S = 2.0


def located(address: str) -> str:
    """A scheduler's address, or that in a scheduler file of this name. Raises OSError, ValueError, KeyError or TypeError."""
    return str(json.loads(Path(address).read_text())["address"]) if address.endswith(".json") else address


def hail(address: str, preloaded: Sequence[str]) -> None:
    """Returns when the workers have been told, before they are done."""
    with contextlib.suppress(Exception):
        from distributed import Client

        with Client(located(address), timeout=ANSWER_S, set_as_default=False, name="opwise") as client:  # type: ignore[no-untyped-call]
            everyone = client.scheduler_info(n_workers=-1)["workers"]
            ours = [name for name, told in everyone.items() if any(word.startswith(RESOURCE) for word in told["resources"])]
            if ours:
                client.run(_beginner(tuple(preloaded)), workers=ours, on_error="ignore")


def _beginner(preloaded: Sequence[str]) -> Callable[[], None]:
    def begin() -> None:
        import importlib
        import multiprocessing
        import sys
        import threading
        from multiprocessing import forkserver

        if multiprocessing.current_process().daemon:  # it cannot be used, and is told so later
            return
        # A process that is forked imports what this one was started by, as multiprocessing has it: of `dask` a quarter of a second.
        main = getattr(sys.modules["__main__"].__spec__, "name", "")
        started = [name for name in ("dask.__main__", main) if name in sys.modules]
        multiprocessing.get_context("forkserver").set_forkserver_preload([*started, *preloaded])
        forkserver.ensure_running()

        def load() -> None:
            with contextlib.suppress(Exception):
                importlib.import_module("opwise.scaling.post")

        threading.Thread(target=load, daemon=True).start()

    return begin
