"""The tiles of matmul in Numba. Sizes that were not measured get what the nearest ones got: only Hopper's tiles have a model."""

from __future__ import annotations

from collections.abc import Mapping

from opwise.ops.spec import Workload
from opwise.tuning.cuda_matmul import FLOAT32, FULL, QUICK
from opwise.tuning.ways import NONE, Machine, Parameters, Ways

WORTH = 3.0  # times the least estimate: what is dearer by the shipped numbers is not measured


class NumbaMatmul(Ways):
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        half = [("float16", shape) for shape in (QUICK if quick else FULL)]
        more = [] if quick else [(dtype, shape) for dtype in ("tfloat32", "float32") for shape in FLOAT32]
        return tuple(Workload("matmul", shape, dtype) for dtype, shape in (*half, *more))

    def configurations(self, workload: Workload, machine: Machine) -> Mapping[str, str]:
        from opwise.backends.numba_cuda.matmul_offered import hopper_tiles, offered

        (m, k, n), kind = workload.shape, workload.dtype
        tiles = hopper_tiles(m, k, n, kind, True, machine.capability)
        costs = {tile.name: tile.estimate(m, k, n, machine.processors) for tile in tiles}
        most = WORTH * min(costs.values(), default=0.0)
        names = offered(m, k, n, kind, True, machine.capability)
        return {name: f"{name} {kind}" for name in names if costs.get(name, 0.0) <= most}

    def choose(self, workload: Workload, machine: Machine, parameters: Parameters = NONE) -> str:
        from opwise.backends.numba_cuda.matmul_offered import name_of, own_elsewhere, own_on_hopper

        (m, k, n), kind = workload.shape, workload.dtype
        tile = own_on_hopper(m, k, n, kind, True, machine.processors, machine.capability)
        return name_of(tile or own_elsewhere(m, n, kind, machine.processors))
