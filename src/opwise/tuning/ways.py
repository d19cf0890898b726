"""What `opwise tune` has to know of a table: which configurations there are, what a plan takes by itself, and its model, if it has one."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from opwise.backends.tuned_table import Row, Tunable
from opwise.ops.spec import Workload


@dataclass(frozen=True)
class Machine:
    """What plans ask of a GPU: its multiprocessors, its compute capability, the most shared memory of a block in bytes."""

    processors: int
    capability: tuple[int, int]
    shared_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """Of a CPU device, an H200's: what would be measured on one can be told anywhere."""
        if device.type != "cuda":
            return H200
        found = torch.cuda.get_device_properties(device)
        shared = int(getattr(found, "shared_memory_per_block_optin", 99 * 1024))
        return cls(found.multi_processor_count, (found.major, found.minor), shared)


Parameters = Mapping[str, Mapping[str, float]]  # configuration -> its model's numbers
NONE: Parameters = {}
H200 = Machine(132, (9, 0), 227 * 1024)


@dataclass(frozen=True)
class Term:
    """A configuration's time at a workload as its plan's model has it, us: a x each + b x depth + fixed, with a and b the model's own."""

    each: float
    depth: float
    fixed: float = 0.0


class Ways(ABC):
    """One table's configurations. A workload's sizes are OpSpec.sizes; a configuration goes by its name."""

    @abstractmethod
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        """What is measured."""

    @abstractmethod
    def configurations(self, workload: Workload, machine: Machine) -> Mapping[str, str]:
        """Name -> what is compiled in one go with it; all that are worth a measurement, the shipped choice among them. None where the plan
        does not ask the table."""

    @abstractmethod
    def choose(self, workload: Workload, machine: Machine, parameters: Parameters = NONE) -> str:
        """What the plan takes by itself, with `parameters` in place of the shipped ones of its model; one of `configurations`."""

    def kind(self, dtype: str) -> str:
        """The group of dtypes that share a model."""
        return dtype

    def term(self, name: str, workload: Workload, machine: Machine) -> Term | None:
        """The model's term; None of what has no model: unmeasured sizes then get what the nearest measured ones got."""
        return None

    def parameters(self, kind: str, fitted: Mapping[str, tuple[float, float]], rows: Sequence[Row], machine: Machine) -> Parameters:
        """The plan's own numbers from the (a, b) of configurations. Those that have none get shipped ones brought to the same scale."""
        raise NotImplementedError(f"{type(self).__name__} has no model")


def ways(known: Tunable) -> Ways:
    """Imports what the configurations are of, Triton for one."""
    module, _, name = known.ways.partition(":")
    return cast(Ways, getattr(importlib.import_module(module), name)())


def least_squares(samples: list[tuple[Term, float]]) -> tuple[float, float] | None:
    """(a, b), both at least 0, for which the terms come nearest to the times, in relative error; None where they do not determine it.

    Three samples or more, of more than one ratio of depth to each: with two, every error of a measurement is taken for the model.
    """
    if len(samples) < 3:
        return None
    scaled = [(t.each / us, t.depth / us, 1.0 - t.fixed / us) for t, us in samples]
    xx, xy, yy, xz, yz = (sum(f(*s) for s in scaled) for f in _MOMENTS)
    determinant = xx * yy - xy * xy
    if determinant <= 1e-6 * xx * yy:
        return None
    a, b = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
    if a < 0:
        a, b = 0.0, yz / yy
    elif b < 0:
        a, b = xz / xx, 0.0
    return (a, b) if math.isfinite(a) and math.isfinite(b) and a >= 0 and b > 0 else None


_MOMENTS: tuple[Any, ...] = (
    lambda x, y, z: x * x,
    lambda x, y, z: x * y,
    lambda x, y, z: y * y,
    lambda x, y, z: x * z,
    lambda x, y, z: y * z,
)
