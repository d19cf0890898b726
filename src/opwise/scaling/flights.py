"""One task at a time on each worker of a Dask cluster; the client chooses the worker and learns when the task returns or is lost.

Dask would hand a dead worker's task to another, a number of times set by the scheduler's owner, and not tell. Here a task belongs to one
worker. If that leaves the cluster, the task is lost, and the sender decides."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from distributed import Client, Future

POLL_S = 1.0
ROSTER_S = 5.0  # between two looks at who is there, however much comes back
RESULT_S = 20.0  # a worker that finished a task and died holds the only copy of what came out


class SchedulerGone(RuntimeError):
    """The scheduler no longer answers."""


@dataclass(frozen=True)
class Seen:
    """A worker as the scheduler reports it."""

    name: str
    host: str
    threads: int
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Landed:
    """A task that returned `answer`, or failed or was lost for `reason`."""

    address: str
    tag: Any
    answer: Any = None
    reason: str = ""
    error: BaseException | None = None


class Flights:
    """The running tasks. `tag`: data that the sender gets back with the answer."""

    def __init__(self, client: Client, resource: str) -> None:
        self.client, self.resource = client, resource
        self.up: dict[str, tuple[Future[Any], Any]] = {}
        self._heard: SimpleQueue[tuple[str, Future[Any]]] = SimpleQueue()
        self._polled = time.monotonic()

    def roster(self) -> dict[str, Seen]:
        """Address -> worker, of those with the resource. Raises SchedulerGone."""
        return {address: seen for address, seen in self.everyone().items() if seen.resources.get(self.resource, 0) >= 1}

    def everyone(self) -> dict[str, Seen]:
        try:
            found = self.client.run_on_scheduler(_teller())  # type: ignore[no-untyped-call]
        except Exception as error:
            raise SchedulerGone(f"{type(error).__name__}: {error}") from error
        return {address: Seen(*told) for address, told in found.items()}

    def send(self, address: str, function: Callable[..., Any], *arguments: Any, tag: Any = None) -> None:
        """Sends a task to an idle worker. Raises SchedulerGone."""
        key = f"opwise-{function.__name__}-{uuid.uuid4().hex}"
        try:
            future = self.client.submit(function, *arguments, key=key, pure=False, workers=[address], allow_other_workers=False,
                                        resources={self.resource: 1})  # fmt: skip
        except Exception as error:
            raise SchedulerGone(f"{type(error).__name__}: {error}") from error
        self.up[address] = future, tag
        future.add_done_callback(lambda done: self._heard.put((address, done)))  # type: ignore[no-untyped-call]

    def landed(self) -> Landed | None:
        """The next task that returns, or is lost; None after a timeout. Raises SchedulerGone."""
        if time.monotonic() - self._polled > ROSTER_S and (missing := self._missing()) is not None:
            return missing
        try:
            address, future = self._heard.get(timeout=POLL_S)
        except Empty:
            return self._missing()
        flight = self.up.get(address)
        if flight is None or flight[0] is not future:
            return None  # given up before
        if future.status in ("cancelled", "lost"):  # not by us: the scheduler has forgotten it
            self.everyone()
            raise SchedulerGone("the scheduler was restarted")
        del self.up[address]
        try:
            return Landed(address, flight[1], answer=future.result(timeout=RESULT_S))
        except Exception as error:
            return Landed(address, flight[1], reason=f"{type(error).__name__}: {error}", error=error)

    def _missing(self) -> Landed | None:
        there = self.everyone()
        self._polled = time.monotonic()
        for address, (future, tag) in self.up.items():
            if address not in there:
                del self.up[address]
                future.cancel()  # type: ignore[no-untyped-call]
                return Landed(address, tag, reason="its worker left the cluster")
        return None


def _teller() -> Callable[..., dict[str, tuple[Any, ...]]]:
    """Asks the scheduler, which need not have opwise: a nested function is sent as code, not by name."""

    def told(dask_scheduler: Any) -> dict[str, tuple[Any, ...]]:
        return {address: (str(w.name), w.host, w.nthreads, dict(w.resources)) for address, w in dask_scheduler.workers.items()}

    return told
