"""Where experiments run: the device and its instruments, made on first use and kept for the worker's life; and running one experiment."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from functools import cache, cached_property

import torch

from opwise.measure.device import Monitor
from opwise.measure.limits import Roofs
from opwise.measure.timing import Clock
from opwise.ops.spec import Cost
from opwise.seeds.experiment import DIFFERS, FAILED, SHOWN, Experiment, Findings, Outcome
from opwise.seeds.gpus import GPUS


class Place:
    """A device. Asking for the clock or the roofs of a CPU raises ValueError: results there are checked, never timed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @classmethod
    def on(cls, name: str) -> Place:
        return _place(name)

    @property
    def gpu(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.device, Monitor(self.device))

    @cached_property
    def roofs(self) -> Roofs:
        return Roofs(self.clock)

    def limit_us(self, work: Cost) -> float:
        return self.roofs.limit_us(work.read_bytes, work.write_bytes, work.flops, work.unit)

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)


@cache
def _place(name: str) -> Place:
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return Place(device)


def outcome(turn: Callable[[str, str], None], device_name: str, experiment: Experiment) -> Outcome:
    """Runs an experiment by name, in the worker. Its exceptions become its outcome; a GPU that no longer answers is raised, since nothing
    else can run there."""
    place, began = Place.on(device_name), time.perf_counter()
    limits: tuple[float | None, float | None] = (None, None)
    try:
        module, _, function = experiment.run.partition(":")
        found: Findings = getattr(importlib.import_module(module), function)(place)
        place.wait()
        if place.gpu and found.us is not None:
            limits = _limits(place, experiment)
    except Exception as error:
        place.wait()
        found = Findings("", f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}")
        status = FAILED
    else:
        status = SHOWN if found.shown else DIFFERS
    finally:
        gc.collect()
        if place.gpu:
            torch.cuda.empty_cache()
    published = experiment.published.us if found.us is not None else None
    return Outcome(experiment.name, status, found.here, found.found, found.us, *limits, published, dict(found.figures), found.rows,
                   time.perf_counter() - began, dict(found.tables), dict(found.files))  # fmt: skip


def _limits(place: Place, experiment: Experiment) -> tuple[float | None, float | None]:
    """us of the published GPU, by its data sheet, and of this one, measured."""
    work = experiment.published.work
    if work is None:
        return None, None
    there = GPUS[experiment.published.gpu].limit_us(work) if experiment.published.gpu else None
    return there, place.limit_us(work)
