"""A table's configurations as implementations of a backend, so that a run's checker, clock and workers take them unchanged.

For the table "triton_jit/matmul" the backend is "tune_triton_jit", and its variants are the configurations:
`tune_triton_jit/matmul:64x...`. Each is the unnamed variant of the backend through which the table is measured, built while the table
returns that configuration. `launches` has a product's, for timing without a run."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch import Tensor

from opwise import backends
from opwise.backends import tuned, tuned_table
from opwise.backends.protocol import Bind, Build, Probe, UnsupportedWorkload, Variant, variants_of
from opwise.backends.tuned_table import TUNABLE
from opwise.measure.timing import Clock
from opwise.ops.spec import Workload

PREFIX = "tune_"
BASELINE = "torch.mm"
WORST = 0.02  # relative error against it, by Frobenius' norm


@dataclass(frozen=True)
class Stand:
    """A table to be measured: the backend to use, and the names of its configurations at any workload."""

    table: str
    through: str
    configurations: tuple[str, ...]

    @property
    def backend(self) -> str:
        return PREFIX + self.table.partition("/")[0]

    def implementation(self, configuration: str) -> str:
        return f"{self.backend}/{TUNABLE[self.table].op}:{configuration}"


def install(stands: tuple[Stand, ...]) -> None:
    """Adds the stands' backends to BACKENDS, and disables stored tables. The `setup` of a worker, for the life of the process."""
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
        views = source.takes_transposed
        return {name: Variant(built(source.build, stand.table, name), name, takes_transposed=views) for name in stand.configurations}


def built(build: Build, table: str, configuration: str) -> Build:
    """The build with that configuration. Raises UnsupportedWorkload if the workload cannot have it, or does not use the table."""

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


Launches = dict[str, list[Callable[[], Any]]]


def launches(workload: Workload, implementations: Mapping[str, str], device: torch.device, clock: Clock) -> tuple[Launches, dict[str, str]]:
    """The launches of a product for the clock: by name, the BASELINE first, on as many sets of matrices as it wants; and why others have
    none: their build raised, or the product is wrong. Call within the workload's precision."""
    m, k, n = workload.shape
    sets = clock.rotation((m * k + k * n + m * n) * workload.torch_dtype.itemsize)
    made = [[torch.randn(s, device=device).to(workload.torch_dtype) for s in ((m, k), (k, n), (m, n))] for _ in range(sets)]
    found: Launches = {BASELINE: [partial(torch.mm, a, b, out=out) for a, b, out in made]}
    truth, refused = torch.mm(*made[0][:2]).float(), {}
    for name, implementation in implementations.items():
        try:
            built = backends.implementation(implementation, device)
            found[name] = [built.prepare(a, b, out=out) for a, b, out in made]
            _check(found[name][0], made[0][2], truth)
        except Exception as error:
            found.pop(name, None)
            refused[name] = f"{type(error).__name__}: {error}"[:120]
    return found, refused


def _check(launch: Callable[[], Any], out: Tensor, truth: Tensor) -> None:
    out.zero_()
    launch()
    if not (error := float((out.float() - truth).norm() / truth.norm())) < WORST:
        raise ValueError(f"wrong by {error:.3g}")
