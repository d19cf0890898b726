"""The ops. OPS maps each op's name to its OpSpec; tests, benchmarks, commands and reports all read it.

Installed packages add ops by entry points of the group `opwise.ops`: the name is the op's, the object its OpSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint

from opwise.ops._layers import LAYERS
from opwise.ops._random import drawn
from opwise.ops.gelu import GELU
from opwise.ops.installed import Table, offered
from opwise.ops.matmul import MATMUL
from opwise.ops.mean import MEAN
from opwise.ops.softmax import SOFTMAX
from opwise.ops.spec import Cost, OpSpec, Workload
from opwise.ops.square import SQUARE


def _checked(point: EntryPoint, spec: object) -> OpSpec:
    if not isinstance(spec, OpSpec) or spec.name != point.name:
        found = f"an OpSpec named {spec.name!r}" if isinstance(spec, OpSpec) else type(spec).__name__
        raise TypeError(f"the entry point {point.name} = {point.value} of opwise.ops leads to {found}: an OpSpec of that name is taken")
    return spec


OURS = {
    spec.name: replace(spec, workloads={**spec.workloads, "layers": LAYERS[spec.name], "random": drawn(spec.name, spec.dtypes)})
    for spec in (SQUARE, MEAN, GELU, SOFTMAX, MATMUL)
}
INSTALLED: Mapping[str, EntryPoint] = offered("opwise.ops", {name: f"opwise.ops.{name}" for name in OURS})
OPS: Mapping[str, OpSpec] = Table(OURS, INSTALLED, _checked)

__all__ = ["OPS", "Cost", "OpSpec", "Workload"]
