"""The supervisor: sends requests to a worker process, applies timeouts, and reports how a worker was lost.

An `Executor` takes a list of jobs and yields events. `seat.run_jobs` is the one for one device; `opwise.scaling` has those for many GPUs
and for many machines."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from opwise import own
from opwise.early import nursery
from opwise.record import Record
from opwise.runner import judge, worker
from opwise.runner.jobs import Job

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

START_S = 120.0  # importing torch from a cold disk takes most of a minute


@dataclass(frozen=True)
class Patience:
    """Timeouts in seconds between two messages of a worker: for one step of one implementation, and for one build, which may be that of a
    whole extension."""

    turn_s: float = 120.0
    build_s: float = 900.0


class WorkerLost(RuntimeError):
    """The worker faulted, hung or was killed. `timed_out`: whether it hung; `turn`: whose step it was."""

    def __init__(self, reason: str, turn: tuple[str, str], timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.turn, self.timed_out = reason, turn, timed_out


@dataclass(frozen=True)
class Event:
    """`turn` (implementation, phase) while a job runs, or its `records` when it is done. `place`: the GPU, of several. `phase`: the result
    of a step before all jobs, as a line of the run's file. `passes`: the number of cells of one process that it ends, if each is carried
    out in several; None if the records tell."""

    job: Job
    turn: tuple[str, str] | None = None
    records: tuple[Record, ...] = ()
    place: str = ""
    phase: Mapping[str, Any] | None = None
    passes: int | None = None


class Executor(Protocol):
    """Carries out jobs and yields each job's records once, as they finish. `facts`, `setup` and `on_limits` as in `seat.run_jobs`."""

    def __call__(
        self, jobs: Sequence[Job], device: str, *, setup: Callable[[], None] | None = None, facts: Mapping[str, Any] | None = None,
        on_limits: Callable[[dict[str, float]], None] | None = None,
    ) -> Iterator[Event]: ...  # fmt: skip


class Beside:
    """The supervisor's view of the judge of a worker that runs a user's files. `worker`: the worker's end of it."""

    def __init__(self, context: ForkServerContext, device: str, environment: dict[str, str]) -> None:
        self._pipe, ours = context.Pipe()
        self.worker, theirs = context.Pipe()
        self._process = context.Process(target=judge.main, args=(theirs, ours, device, environment), daemon=True)
        self._process.start()
        ours.close()
        theirs.close()

    def ask(self, name: str, given: Any) -> Any:
        """Raises WorkerLost if the judge raises, or is gone."""
        try:
            self._pipe.send((name, (given,)))
            said, what = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerLost("the judge is gone", ("", "judge")) from error
        if said == "error":
            raise WorkerLost(f"the judge: {what}", ("", "judge"))
        return what

    def kill(self) -> None:
        self._process.kill()
        self._process.join(30)
        self._pipe.close()


class Worker:
    """One worker process. Use as a context manager; a lost worker is replaced by making another."""

    def __init__(
        self, device: str, setup: Callable[[], None] | None = None, environment: dict[str, str] | None = None, wait: bool = True
    ) -> None:
        """Without `wait` it is being started, and `started` waits for it: so that it can be killed meanwhile."""
        context = nursery()
        self._pipe, theirs = context.Pipe()
        environment = {**os.environ, **(environment or {})}
        beside = self._judge = Beside(context, device, environment) if isinstance(setup, own.Setup) else None
        self._log = Path(tempfile.mkstemp(prefix="opwise-worker-", suffix=".log")[1])
        self._process = context.Process(
            target=worker.main, args=(theirs, device, str(self._log), setup, environment, beside and beside.worker), daemon=True
        )
        self._process.start()
        theirs.close()
        if beside is not None:
            beside.worker.close()
        if wait:
            self.started()

    def started(self) -> None:
        """Waits until the worker is up. Raises WorkerLost if it fails."""
        self.ask("start", patience=Patience(START_S))

    def messages(self, kind: str, payload: Any, patience: Patience) -> Iterator[tuple[str, Any]]:
        """Sends a request; yields ("turn", (implementation, phase)) for each sign of life and ("answer", …) last. Raises WorkerLost.

        A generator, not a callback, so that a consumer that stops (Ctrl-C) stops the conversation too.
        """
        turn = ("", kind)
        beside = self._judge if kind == "job" else None
        if beside is not None:
            beside.ask("begin", payload.workload)
        with contextlib.suppress(BrokenPipeError, OSError):  # a worker that died in between shows at the first receive
            self._pipe.send((kind, payload))
        while True:
            seconds = patience.build_s if turn[1] == "build" else patience.turn_s
            try:
                if not self._pipe.poll(seconds):
                    raise WorkerLost(f"no sign of life for {seconds:g} s during {turn[1]}", turn, timed_out=True)
                said, what = self._pipe.recv()
            except (EOFError, OSError) as error:
                raise WorkerLost(f"{self._epitaph()} during {turn[1]}", turn) from error
            if said == "fault":
                raise WorkerLost(f"{what} (during {turn[1]})", turn)
            if said == "turn":
                turn = what
            if said == "answer" and beside is not None:
                what = beside.ask("settled", what)
            yield said, what
            if said == "answer":
                return

    def ask(self, kind: str, payload: Any = None, patience: Patience = Patience()) -> Any:
        """The answer to a request, ignoring its turns. Raises WorkerLost."""
        return next(what for said, what in self.messages(kind, payload, patience) if said == "answer")

    def _epitaph(self) -> str:
        self._process.join(10)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"the worker was killed by {signal.Signals(-code).name}{self._last_words()}"
        return f"the worker ended with exit status {code}{self._last_words()}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            return f" after printing {lines[-1]!r}" if lines else ""
        return ""

    def kill(self) -> None:
        if self._process.is_alive():  # and may have ended by the time it is killed
            self._process.kill()
        self._process.join(30)
        self._pipe.close()
        if self._judge is not None:
            self._judge.kill()
        self._log.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets the worker exit by itself, so that tools that watch it write their reports."""
        self._pipe.close()
        self._process.join(30)
        self.kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()
