"""Runs in a Dask worker: a post, which has one GPU of that machine and its own worker process on it.

The kernels run in that process, never in Dask's, so that a kernel that faults or hangs costs only its own cell. A post is made when a
client first asks the worker, takes a GPU that CUDA_VISIBLE_DEVICES allows and nobody has locked, and is kept for the next client."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opwise import provenance
from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.record import Record
from opwise.runner.jobs import Entry, Job
from opwise.runner.prepare import Unit
from opwise.runner.seat import JobLost, Seat
from opwise.runner.supervisor import WorkerLost
from opwise.runner.survey import LOOK_S, Survey, looked, survey
from opwise.scaling import gpus
from opwise.scaling.crew import Place, placed


class NoPost(RuntimeError):
    """The worker has no GPU to run jobs on; the message says why and what to do."""


@dataclass(frozen=True)
class Told:
    """A post's report: its machine, its backends, and a digest of its sources."""

    host: str
    device: str
    gpu: str
    facts: dict[str, Any]
    catalogue: dict[str, Entry]
    sources: str = ""
    shared: str = ""

    @property
    def place(self) -> str:
        return f"{self.host} {self.gpu}".strip()

    @property
    def survey(self) -> Survey:
        return Survey(self.device, self.facts, self.catalogue)


@dataclass(frozen=True)
class Answer:
    """The records of a job; if the GPU's worker was lost with no implementation to blame, also the rest of the job, and why."""

    records: tuple[Record, ...] = ()
    left: Job | None = None
    reason: str = ""


@dataclass
class Post:
    """A locked GPU of this machine, or else the CPU with its stand-ins."""

    share: bool = False
    seat: Seat = field(init=False)
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        """Raises NoPost."""
        if multiprocessing.current_process().daemon:
            raise NoPost("it is a daemon process, which may not start the one that has the GPU: start it with --no-nanny, or with "
                         "DASK_DISTRIBUTED__WORKER__DAEMON=False in its environment")  # fmt: skip
        self._claim, self.place = _free_gpu(self.share)
        greetings = {} if self.place.device == "cpu" else {"greet": self.place.gpu}
        self.seat = Seat(self.place.device, environment=self.place.environment, greetings=greetings)

    def look(self) -> Told:
        """The post's report. Raises WorkerLost."""
        found = survey(self.place.device, patience_s=LOOK_S, told=looked(self.seat.start()))
        self.seat.facts = {**found.facts, "gpu": self.place.gpu, "shared": self.place.shared}
        return Told(socket.gethostname(), found.device, self.place.gpu, dict(found.facts), dict(found.catalogue), sources(),
                    self.place.shared)  # fmt: skip

    def prepare(self, found: Sequence[Unit]) -> tuple[str, ...]:
        """Builds the units; returns the implementations that hung, of which nothing more is built."""
        hung: list[str] = []
        for unit in found:
            if unit.implementation in hung:
                continue
            try:
                self.seat.start().ask("prepare", unit, self.seat.patience)
            except WorkerLost as lost:  # its own cell will say why
                self.seat.kill()
                if lost.timed_out:
                    hung.append(unit.implementation)
        return tuple(hung)

    def run(self, job: Job) -> Answer:
        records: list[Record] = []
        try:
            for event in self.seat.run(job):
                records += [placed(self.place, r) for r in event.records]
        except JobLost as lost:
            return Answer(tuple(records), lost.job, lost.reason)
        return Answer(tuple(records))

    def limits(self) -> dict[str, float]:
        return self.seat.limits()

    def close(self) -> None:
        """Releases the GPU. A running job is lost."""
        self.seat.kill()
        if self._claim is not None:
            self._claim.release()


def _free_gpu(share: bool) -> tuple[gpus.Claim | None, Place]:
    found = gpus.listed()
    if not found:
        return None, Place(socket.gethostname())
    reasons = []
    for gpu in found:
        try:
            claim = gpus.claim(str(gpu), gpu.uuid, share=share and len(found) == 1)
        except (gpus.Busy, OSError) as busy:
            reasons.append(str(busy))
            continue
        return claim, replace(Place.on(gpu, claim.shared), name=f"{socket.gethostname()} GPU {gpu.index}")
    raise NoPost("; ".join(reasons))


def sources() -> str:
    """One digest of every kernel's sources, to detect a cluster that runs others than the client."""
    return ",".join(provenance.source(backend, op) for backend in sorted(BACKENDS) for op in sorted(OPS))


# -- what is sent to Dask's workers ---------------------------------------------------------------------------------------------


def look(make: Callable[[], Any]) -> Any:
    """The report of this Dask worker's post, which is made if missing. Raises what that raises."""
    worker = _dask_worker()
    if getattr(worker, "opwise_post", None) is None:
        worker.opwise_post = make()
    try:
        return worker.opwise_post.look()
    except Exception:
        close(worker)
        raise


def run(job: Job) -> Any:
    return _post().run(job)


def prepare(found: Sequence[Unit]) -> tuple[str, ...]:
    hung: tuple[str, ...] = _post().prepare(found)
    return hung


def limits() -> dict[str, float]:
    found: dict[str, float] = _post().limits()
    return found


def close(dask_worker: Any) -> None:
    """Releases the post; may run while the worker is busy."""
    post, dask_worker.opwise_post = getattr(dask_worker, "opwise_post", None), None
    if post is not None:
        post.close()


def _post() -> Any:
    post = getattr(_dask_worker(), "opwise_post", None)
    if post is None:
        raise NoPost("the worker was restarted")
    return post


def _dask_worker() -> Any:
    from distributed import get_worker

    return get_worker()
