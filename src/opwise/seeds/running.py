"""Runs experiments. Each lane has a worker process; a crash or a hang costs only its experiment."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from opwise.runner.supervisor import Patience, Worker, WorkerLost
from opwise.seeds.experiment import ELSEWHERE, FAILED, LANES, NEEDS, UNTIMED, Experiment, Outcome, environment
from opwise.seeds.place import outcome


@dataclass(frozen=True)
class Progress:
    """An experiment that begins (`outcome` None) or is done."""

    experiment: Experiment
    outcome: Outcome | None = None


def carried_out(experiments: Sequence[Experiment], device: str, setup: Callable[[], None] | None = None) -> Iterator[Progress]:
    """Yields progress. Without a GPU, experiments that need one say so; those that time nothing run in parallel lanes, before the others.

    Stopping early (Ctrl-C) kills running ones. `setup` runs first in every worker."""
    for experiment in experiments:
        if settled := _settled(experiment, device):
            yield Progress(experiment, settled)
    lanes = {lane: [e for e in experiments if not _settled(e, device) and _lane(e, device) == lane] for lane in LANES}
    told: queue.Queue[Progress | None] = queue.Queue()
    crew = {lane: _Lane(lane, device, lanes[lane], setup, told.put) for lane in LANES if lanes[lane]}
    try:
        for each in crew.values():  # all workers start now, which takes seconds; the lanes that time something begin later
            each.start()
        untimed = [each for lane, each in crew.items() if lane in UNTIMED]
        for together in (untimed, *([each] for lane, each in crew.items() if lane not in UNTIMED)):
            for each in together:
                each.turn.set()
            yield from _until_done(told, len(together))
    finally:
        for each in crew.values():
            each.stop()


def _until_done(told: queue.Queue[Progress | None], running: int) -> Iterator[Progress]:
    while running:
        progress = told.get()
        if progress is None:
            running -= 1
        else:
            yield progress


def _settled(experiment: Experiment, device: str) -> Outcome | None:
    """The outcome of what is not run at all."""
    if experiment.elsewhere:
        return Outcome(experiment.name, ELSEWHERE, "", experiment.elsewhere)
    if device == "cpu" and experiment.needs:
        return Outcome(experiment.name, NEEDS, "", f"needs {experiment.needs}")
    return None


def _lane(experiment: Experiment, device: str) -> str:
    return experiment.cpu_lane if device == "cpu" else experiment.lane


class _Lane(threading.Thread):
    """One worker after the other: a lost one is replaced."""

    def __init__(self, lane: str, device: str, experiments: Sequence[Experiment], setup: Callable[[], None] | None,
                 tell: Callable[[Progress | None], None]) -> None:  # fmt: skip
        super().__init__(name=f"seeds-{lane}", daemon=True)
        self.lane, self.device, self.experiments, self.setup, self.tell = lane, device, experiments, setup, tell
        self._worker: Worker | None = None
        self._stopped = threading.Event()
        self.turn = threading.Event()

    def run(self) -> None:
        try:
            with contextlib.suppress(Exception):  # the first experiment will say why
                self._worker = self._new_worker()
            self.turn.wait()
            for experiment in self.experiments:
                if self._stopped.is_set():
                    return
                self.tell(Progress(experiment))
                self.tell(Progress(experiment, self._outcome(experiment)))
        finally:
            if self._worker is not None:
                self._worker.kill()
            self.tell(None)

    def _new_worker(self) -> Worker:
        return Worker(self.device, self.setup, environment(self.lane, self.device))

    def _outcome(self, experiment: Experiment) -> Outcome:
        try:
            self._worker = self._worker or self._new_worker()
            found: Outcome = self._worker.ask("apply", (outcome, self.device, experiment), Patience(experiment.seconds))
            return found
        except WorkerLost as lost:
            reason = f"not done after {experiment.seconds:g} s" if lost.timed_out else lost.reason
        except Exception as error:  # an answer that cannot be read: the lane goes on, in a fresh worker
            reason = f"{type(error).__name__}: {error}"
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
        return Outcome(experiment.name, FAILED, "", reason)

    def stop(self) -> None:
        """Ends the worker, which ends what the lane waits for."""
        self._stopped.set()
        self.turn.set()
        worker = self._worker
        if worker is not None and self.is_alive():
            worker.kill()
        self.join(5.0)
