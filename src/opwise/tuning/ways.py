"""What `opwise tune` needs of a table: its configurations, and the plan's own choice."""

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
    """One table's configurations on a device; on a CPU those for an H100, so that --dry-run works anywhere. A workload's sizes are
    OpSpec.sizes; a configuration is identified by its name."""

    nearest = True  # may sizes that were not measured get what the nearest ones got?

    def __init__(self, table: str, device: torch.device = CPU) -> None:
        self.table, self.device, self.machine = table, device, Machine.of(device)

    @abstractmethod
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        """The workloads to measure."""

    @abstractmethod
    def configurations(self, workload: Workload) -> Mapping[str, str]:
        """Name -> key of what is compiled together with it, for all configurations worth measuring, the shipped choice among them. None if
        the plan does not use the table."""

    @abstractmethod
    def choose(self, workload: Workload) -> str:
        """The plan's own choice, one of `configurations`."""


def ways(known: Tunable, device: torch.device = CPU) -> Ways:
    """Imports the configurations' libraries, such as Triton."""
    module, _, name = known.ways.partition(":")
    return cast(Ways, getattr(importlib.import_module(module), name)(known.name, device))
