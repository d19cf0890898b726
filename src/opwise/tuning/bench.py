"""A table's configurations as the implementations of a backend: a run's checker, clock and workers take them as they are.

The backend of the table "triton_jit/matmul" is "tune_triton_jit", its variants are the configurations: `tune_triton_jit/matmul:64x...`.
Each is the unnamed variant of the backend that the table is measured through, built while the table is made to say that configuration.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

import torch
from torch import Tensor

from opwise import backends
from opwise.backends import tuned, tuned_table
from opwise.backends.protocol import Bind, Build, Probe, UnsupportedWorkload, Variant, variants_of
from opwise.backends.tuned_table import TUNABLE

PREFIX = "tune_"


@dataclass(frozen=True)
class Stand:
    """A table to be measured: through which backend, and the names of its configurations at any workload."""

    table: str
    through: str
    configurations: tuple[str, ...]

    @property
    def backend(self) -> str:
        return PREFIX + self.table.partition("/")[0]

    def implementation(self, configuration: str) -> str:
        return f"{self.backend}/{TUNABLE[self.table].op}:{configuration}"


def install(stands: tuple[Stand, ...]) -> None:
    """Adds the stands' backends to BACKENDS, and has stored tables left aside. The `setup` of a worker: it lasts as long as the process."""
    os.environ[tuned_table.VARIABLE] = tuned_table.OFF
    for name in dict.fromkeys(stand.backend for stand in stands):
        module = f"opwise.tuning.{name}"
        sys.modules[module] = _Bench(module, [stand for stand in stands if stand.backend == name])
        backends.BACKENDS[name] = module  # type: ignore[index]


class _Bench(types.ModuleType):
    """The backend module of the tables of one folder."""

    def __init__(self, name: str, stands: list[Stand]) -> None:
        super().__init__(name, f"The configurations of {', '.join(stand.table for stand in stands)}.")
        self.__spec__ = ModuleSpec(name, None, origin=__file__)
        self.by_op = {TUNABLE[stand.table].op: stand for stand in stands}

    def probe(self, device: torch.device) -> Probe:
        """Raises BackendUnavailable as the backends that are measured through do."""
        probed = [backends.probe(through, device) for through in dict.fromkeys(stand.through for stand in self.by_op.values())]
        return Probe({name: v for p in probed for name, v in p.versions.items()}, next((p.stand_in for p in probed if p.stand_in), None))

    def variants(self, op: str) -> Mapping[str, Variant]:
        stand = self.by_op.get(op)
        if stand is None:
            return {}
        source = variants_of(importlib.import_module(f"{backends.BACKENDS[stand.through]}.{op}"))[""]
        return {name: Variant(built(source.build, stand.table, name), name) for name in stand.configurations}


def built(build: Build, table: str, configuration: str) -> Build:
    """The build with that configuration. Raises UnsupportedWorkload where the workload cannot have it, or has no use for the table."""

    def build_it(*tensors: Tensor) -> Bind:
        with tuned.forced(table, configuration) as said:
            try:
                bind = build(*tensors)
            except tuned.NoSuchConfiguration as error:
                raise UnsupportedWorkload(str(error)) from error
            except Exception as error:
                if type(error).__name__ == "OutOfResources":  # Triton's: it needs more shared memory than its tiles, and says so late
                    raise UnsupportedWorkload(f"the GPU is too small for it: {error}") from error
                raise
        if not said.asked:
            raise UnsupportedWorkload(f"the plan does not ask the table {table} for this workload: its kernel is another one")
        return bind

    return build_it
