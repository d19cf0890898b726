"""What is here: the machine's facts, and what each backend, the suite's own and the user's, is on its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from opwise import own
from opwise.runner.jobs import Entry
from opwise.runner.supervisor import Patience, Worker, WorkerLost

LOOK_S = 180.0
Told = tuple[Mapping[str, Any], Mapping[str, Entry]]  # the Record fields of a device, and what each backend is on it


def default_device() -> str:
    return "cuda:0" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Survey:
    """What is here: the Record fields of the device, and what each backend is on it."""

    device: str
    facts: Mapping[str, Any]
    catalogue: Mapping[str, Entry]
    own: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # of its workers: which of several GPUs is the device

    @property
    def setup(self) -> Callable[[], None] | None:
        """What must run first in a worker that is to know the user's own files."""
        return own.setup(self.own)


def survey(
    device: str, files: Mapping[str, Path] | None = None, patience_s: float = LOOK_S, environment: Mapping[str, str] | None = None,
    told: Told | None = None,
) -> Survey:  # fmt: skip
    """Asks a worker, since looking imports every GPU library, and for each of the user's own `files` another one: whatever such a file
    does is known of it alone. `told` is what a worker that sits there already has answered. Raises WorkerLost where even a look at the
    suite's own backends fails."""
    around = dict(environment or {})
    if told is None:
        with Worker(device, None, around) as worker:
            told = looked(worker)
    facts, catalogue = told
    files = dict(files or {})
    with ThreadPoolExecutor(max_workers=4) as pool:
        own_files = list(pool.map(lambda name: look(device, name, files[name], patience_s, around), files))
    return Survey(device, facts, {**catalogue, **{entry.backend: entry for entry in own_files}}, files, around)


def looked(worker: Worker) -> Told:
    """What a worker finds where it sits; after that it has imported every backend. Raises WorkerLost."""
    told: Told = worker.ask("catalogue", None, Patience(LOOK_S))
    return told


def look(device: str, name: str, path: Path, patience_s: float, environment: Mapping[str, str] | None = None) -> Entry:
    """What a user's file is here. One that cannot be imported keeps a cell an op, which says why."""
    try:
        with Worker(device, own.setup({name: path}), dict(environment or {})) as worker:
            entry: Entry = worker.ask("own", name, Patience(patience_s))
    except WorkerLost as lost:
        entry = Entry(name, reason=f"importing {path.name}: {lost.reason}", own=True, broken="timeout" if lost.timed_out else "failed")
    return entry if entry.available else replace(entry, variants={op: {"": ""} for op in own.declared(path)})
