"""What `opwise tune` has to know of a table: which configurations there are, and what a plan takes by itself."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

import torch

from opwise.backends.gemm.gpu import Machine
from opwise.backends.tuned_table import Tunable
from opwise.ops.spec import Workload

CPU = torch.device("cpu")


class Ways(ABC):
    """One table's configurations on a device: on a CPU, those of an H100, so that what would be measured can be told anywhere. A workload's
    sizes are OpSpec.sizes; a configuration goes by its name."""

    nearest = True  # may sizes that were not measured get what the nearest ones got?

    def __init__(self, table: str, device: torch.device = CPU) -> None:
        self.table, self.device, self.machine = table, device, Machine.of(device)

    @abstractmethod
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        """What is measured."""

    @abstractmethod
    def configurations(self, workload: Workload) -> Mapping[str, str]:
        """Name -> what is compiled in one go with it; all that are worth a measurement, the shipped choice among them. None where the plan
        does not ask the table."""

    @abstractmethod
    def choose(self, workload: Workload) -> str:
        """What the plan takes by itself; one of `configurations`."""


def ways(known: Tunable, device: torch.device = CPU) -> Ways:
    """Imports what the configurations are of, Triton for one."""
    module, _, name = known.ways.partition(":")
    return cast(Ways, getattr(importlib.import_module(module), name)(known.name, device))
