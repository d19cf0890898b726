"""The tiles of matmul in Triton through tensor descriptors (sm_90): 16-bit and TF32, and `tile_us`, `k_ns` of each, fitted anew."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from opwise.backends.tuned import with_numbers
from opwise.backends.tuned_table import Row
from opwise.ops.spec import Workload
from opwise.tuning.ways import NONE, Machine, Parameters, Term, Ways

if TYPE_CHECKING:  # it imports Triton
    from opwise.backends.triton_jit.matmul.configurations import Config

# (M, K, N): each tile the quickest at some; K from 128 to 8192; thin and narrow ones; whole waves of tiles and part-filled ones.
QUICK = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 128, 8192), (512, 4096, 4096), (128, 4096, 4096))
FULL = (*QUICK, (1536, 1536, 1536), (3072, 3072, 3072), (6144, 6144, 6144), (8192, 8192, 8192), (1024, 8192, 1024), (4096, 4096, 128),
        (512, 8192, 512), (128, 16384, 128), (4096, 128, 4096), (1024, 4096, 4096), (4096, 1024, 16384))  # fmt: skip
TF32 = ((1024, 1024, 1024), (1536, 1536, 1536), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (1024, 8192, 1024),
        (4096, 512, 4096))  # fmt: skip


class TritonMatmul(Ways):
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        half = [("float16", shape) for shape in (QUICK if quick else FULL)]
        more = [] if quick else [("tfloat32", shape) for shape in TF32]
        return tuple(Workload("matmul", shape, dtype) for dtype, shape in (*half, *more))

    def kind(self, dtype: str) -> str:
        return "tf32" if dtype == "tfloat32" else "16-bit"

    def configurations(self, workload: Workload, machine: Machine) -> Mapping[str, str]:
        return {name: f"{name} {workload.dtype}" for name in self._fitting(workload, machine)}

    def choose(self, workload: Workload, machine: Machine, parameters: Parameters = NONE) -> str:
        from opwise.backends.triton_jit.matmul.cost import busy_us

        m, k, n = workload.shape
        shipped, known = self._shipped(self.kind(workload.dtype)), self._fitting(workload, machine)
        fitting = {name: with_numbers(c, parameters.get(name, {})) for name, c in known.items() if name in shipped or name in parameters}
        return min(fitting, key=lambda name: busy_us(fitting[name], m, n, k, machine.processors))

    def term(self, name: str, workload: Workload, machine: Machine) -> Term | None:
        """busy_us is linear in both numbers: its value for one of them 1 and the other 0 is what it multiplies."""
        from opwise.backends.triton_jit.matmul.cost import busy_us

        m, k, n = workload.shape
        config = self._fitting(workload, machine).get(name)
        if config is None:
            return None
        units = (replace(config, tile_us=1.0, k_ns=0.0), replace(config, tile_us=0.0, k_ns=1.0))
        return Term(*(busy_us(unit, m, n, k, machine.processors) for unit in units))

    def parameters(self, kind: str, fitted: Mapping[str, tuple[float, float]], rows: Sequence[Row], machine: Machine) -> Parameters:
        found = {name: {"tile_us": round(a, 4), "k_ns": round(b, 5)} for name, (a, b) in fitted.items()}
        known = self._shipped(kind)
        scale = self._scale(fitted, rows, machine)
        rest = {
            name: {"tile_us": round(c.tile_us * scale, 4), "k_ns": round(c.k_ns * scale, 5)}
            for name, c in known.items()
            if name not in found
        }
        return {**found, **rest}

    def _scale(self, fitted: Mapping[str, tuple[float, float]], rows: Sequence[Row], machine: Machine) -> float:
        """How much longer than by the shipped numbers this GPU takes, on average over what was measured and fitted."""
        ratios = []
        for row in rows:
            workload = Workload.parse(row.workload)
            known = self._shipped(self.kind(row.dtype))
            for name in row.times.keys() & fitted.keys() & known.keys():
                term = self.term(name, workload, machine)
                shipped = known[name].tile_us * term.each + known[name].k_ns * term.depth if term else 0.0
                if shipped > 0:
                    ratios.append(math.log(row.times[name].us / shipped))
        return math.exp(fmean(ratios)) if ratios else 1.0

    def _fitting(self, workload: Workload, machine: Machine) -> Mapping[str, Config]:
        """As the plan's own conditions, for tensors at whole addresses. Empty where the product goes through pointers."""
        from opwise.backends.triton_jit.matmul import configurations

        (m, k, n), size = workload.shape, workload.torch_dtype.itemsize
        half = size == 2
        if workload.dtype == "float32" or (not half and m < configurations.FEWEST_ROWS):
            return {}
        if machine.capability < (9, 0) or (not half and machine.capability[0] != 9) or k * size % 16 or n * size % 16:
            return {}
        configs = configurations.half_configs(machine.capability[0] == 9, m, k, n) if half else configurations.TF32_CONFIGS
        known = {c.name: c for c in (*configs, *configurations.TRIALS[self.kind(workload.dtype)])} if configs else {}
        fitting = {name: c for name, c in known.items() if c.shared_bytes(size) <= machine.shared_bytes}
        return {name: c for name, c in fitting.items() if c.measured_at(m, n, machine.processors)}

    def _shipped(self, kind: str) -> Mapping[str, Config]:
        """Those whose numbers ship."""
        from opwise.backends.triton_jit.matmul.configurations import HALF_CONFIGS, TF32_CONFIGS

        return {c.name: c for c in (HALF_CONFIGS if kind == "16-bit" else TF32_CONFIGS)}
