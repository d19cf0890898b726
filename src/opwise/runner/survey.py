"""The machine's facts, and the state of each backend, the suite's and the user's, on its device."""

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
    """The Record fields of the device, and each backend's state on it."""

    device: str
    facts: Mapping[str, Any]
    catalogue: Mapping[str, Entry]
    own: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # of its workers: which of several GPUs is the device

    @property
    def setup(self) -> Callable[[], None] | None:
        """What runs first in a worker that uses the user's files."""
        return own.setup(self.own)


def survey(
    device: str, files: Mapping[str, Path] | None = None, patience_s: float = LOOK_S, environment: Mapping[str, str] | None = None,
    told: Told | None = None,
) -> Survey:  # fmt: skip
    """Asks a worker, since probing imports every GPU library, and another one for each of the user's `files`, to isolate them. `told`: the
    answer of a running worker. Raises WorkerLost if even the suite's own backends cannot be probed."""
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
    """A worker's facts and backends; it has then imported every backend. Raises WorkerLost."""
    told: Told = worker.ask("catalogue", None, Patience(LOOK_S))
    return told


def look(device: str, name: str, path: Path, patience_s: float, environment: Mapping[str, str] | None = None) -> Entry:
    """A user's file as a backend. One that cannot be imported has a cell per op, which says why."""
    try:
        with Worker(device, own.setup({name: path}), dict(environment or {})) as worker:
            entry: Entry = worker.ask("own", name, Patience(patience_s))
    except WorkerLost as lost:
        entry = Entry(name, reason=f"importing {path.name}: {lost.reason}", own=True, broken="timeout" if lost.timed_out else "failed")
    return entry if entry.available else replace(entry, variants={op: {"": ""} for op in own.declared(path)})
