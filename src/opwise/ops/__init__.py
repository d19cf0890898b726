"""What is computed. OPS is the one list of ops; tests, benchmarks, commands and reports all read it."""

from __future__ import annotations

from collections.abc import Mapping

from opwise.ops.gelu import GELU
from opwise.ops.matmul import MATMUL
from opwise.ops.mean import MEAN
from opwise.ops.softmax import SOFTMAX
from opwise.ops.spec import Cost, OpSpec, Workload
from opwise.ops.square import SQUARE

OPS: Mapping[str, OpSpec] = {spec.name: spec for spec in (SQUARE, MEAN, GELU, SOFTMAX, MATMUL)}

__all__ = ["OPS", "Cost", "OpSpec", "Workload"]
