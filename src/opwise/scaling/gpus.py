"""The GPUs of this machine as the driver names them, and exclusive use of one.

A GPU is pinned by its UUID: indices depend on CUDA_VISIBLE_DEVICES and on CUDA's own order. To measure on one, a process holds a lock named
by its UUID, and checks which other processes compute there. It asks NVML, never CUDA, since a context of this process would disturb
others."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwise.locks import Lock, Taken
from opwise.measure import device as machine

SETTLE_S = 2.0  # a process that has just ended may still be listed
HIDDEN_BYTES = 2 << 30  # more than a driver keeps for itself: somebody in another container, who is in no list


class NoSuchGpu(ValueError):
    """The message says what was given and which GPUs there are."""


class Busy(RuntimeError):
    """Another process uses the GPU; the message names it and says what to do."""


@dataclass(frozen=True)
class Gpu:
    """`index` as CUDA counts them in this process, `uuid` with its prefix, `name` as in records."""

    index: int
    uuid: str
    name: str

    @property
    def short(self) -> str:
        return machine.short_uuid(self.uuid)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.short})"


def listed() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES allows, in its order; none without NVML."""
    nvml = machine._nvml()
    if nvml is None:
        return []
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    found = [Gpu(i, _text(nvml.nvmlDeviceGetUUID(h)), _text(nvml.nvmlDeviceGetName(h))) for i, h in enumerate(handles)]
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(found: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """The GPUs that CUDA shows under this CUDA_VISIBLE_DEVICES: up to the first entry that names none, renumbered."""
    if setting is None:
        return list(found)
    kept: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        fitting = [gpu for gpu in found if (entry.isdigit() and gpu.index == int(entry)) or (len(entry) > 4 and gpu.uuid.startswith(entry))]
        if len(fitting) != 1:
            break
        kept.append(Gpu(len(kept), fitting[0].uuid, fitting[0].name))
    return kept


def chosen(text: str, found: Sequence[Gpu]) -> list[Gpu]:
    """`all`, or indices and beginnings of UUIDs, separated by commas. All must be of one model, since a run has one.

    Raises NoSuchGpu."""
    if not found:
        raise NoSuchGpu(f"--gpus {text}: no GPU is seen (nvidia-ml-py asks the driver for them; CUDA_VISIBLE_DEVICES may hide them)")
    kept: dict[str, Gpu] = {}
    for entry in [gpu.uuid for gpu in found] if text == "all" else [part.strip() for part in text.split(",")]:
        fitting = [gpu for gpu in found if entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry))]
        if len(fitting) != 1:
            raise NoSuchGpu(f"--gpus {text}: {entry!r} is none of {', '.join(map(str, found))}: give all, indices or UUIDs")
        kept[fitting[0].uuid] = fitting[0]
    models = list(dict.fromkeys(gpu.name for gpu in kept.values()))
    if len(models) > 1:
        raise NoSuchGpu(f"--gpus {text}: these are {' and '.join(models)}, a run is of one model: make one run of each")
    return list(kept.values())


# -- alone on it ---------------------------------------------------------------------------------------------------------------


@dataclass
class Claim:
    """The right to measure on a GPU. `shared`: tolerated other users; `doubt`: what cannot be determined."""

    name: str
    lock: Lock | None
    shared: str = ""
    doubt: str = ""

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
        self.lock = None


def claim(name: str, uuid: str, share: bool = False, settle_s: float | None = None) -> Claim:
    """Takes the lock and checks for other users. Raises Busy; with `share` only if the folder of the locks is not to be trusted."""
    remedy = "wait for it, take another GPU, or --share it, which marks the records"
    lock, shared = None, []
    try:
        lock = Lock(runtime_folder() / f"{uuid}.lock", f"opwise process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")
    except Taken as taken:
        holder = taken.holder or "another opwise"
        if not share:
            raise Busy(f"{name} is being measured on by {holder}: {remedy}") from taken
        shared.append(holder)
    others, doubt = neighbours(uuid)
    deadline = time.monotonic() + (SETTLE_S if settle_s is None else settle_s)
    while others and time.monotonic() < deadline:
        time.sleep(0.2)
        others, doubt = neighbours(uuid)
    if others and not share:
        if lock is not None:
            lock.release()
        raise Busy(f"{name} is computed on by {others}: {remedy}")
    return Claim(name, lock, "; ".join([*shared, *([others] if others else [])]), doubt)


def neighbours(uuid: str, nvml: Any = None, own: Mapping[int, int] | None = None) -> tuple[str, str]:
    """(other processes on the GPU, reason to doubt that there are none); "" and "" if it is unused, or nothing is known.

    In a container the driver may name processes by numbers of the host, or none at all. A number that no process here has is somebody
    else's, except for one if this process itself has a context. `own`: child -> parent of the processes here, for tests."""
    nvml = nvml or machine._nvml()
    if nvml is None:
        return "", ""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        pids = sorted({int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
        used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except (AttributeError, nvml.NVMLError):
        return "", ""
    parents = _parents() if own is None else own
    hidden = [pid for pid in pids if pid not in parents]
    if hidden and torch.cuda.is_initialized() and os.getpid() not in pids:  # type: ignore[no-untyped-call]
        hidden.pop()
    others = [pid for pid in pids if pid in parents and not _is_own(pid, parents)]
    told = [f"process {pid}{_command(pid)}" for pid in others] + [f"process {pid} outside of this container" for pid in hidden]
    if told:
        return ", ".join(told), ""
    if not pids and used > HIDDEN_BYTES:
        return (
            "",
            f"{used / 2**30:.1f} GiB of its memory are in use and no process is seen there: one in another container may compute on it",
        )
    return "", ""


def _parents() -> dict[int, int]:
    """Every process that can be seen here -> its parent."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return found


def _is_own(pid: int, parents: Mapping[int, int]) -> bool:
    """This process, or one that descends from it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    return f" ({words})" if words else ""


def runtime_folder() -> Path:
    """The folder of the locks: per user and host, deleted at boot. OPWISE_RUNTIME_DIR overrides it. Raises Busy if the folder belongs to
    somebody else."""
    given = os.environ.get("OPWISE_RUNTIME_DIR")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if given:
        folder = Path(given)
    elif session and Path(session).is_dir():
        folder = Path(session) / "opwise"
    else:
        folder = Path(tempfile.gettempdir()) / f"opwise-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Busy(f"{folder} belongs to another user and cannot hold this user's locks: set OPWISE_RUNTIME_DIR to a folder of your own")
    return folder


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
