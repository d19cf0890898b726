"""The tiles of matmul in Numba. Sizes that were not measured get what the nearest ones got: models are not fitted."""

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
        from opwise.backends.numba_cuda.matmul.configurations import name_of
        from opwise.backends.numba_cuda.matmul.plan import estimates, offered, sm90_tiles

        (m, k, n), kind = workload.shape, workload.dtype
        tiles = sm90_tiles(m, k, n, kind, True, machine.capability)
        names = offered(m, k, n, kind, True, machine.capability)
        elsewhere = estimates(m, k, n, kind, True, machine.processors, machine.capability)
        dear: set[str] = set()  # two models, each in a unit of its own
        for costs in (
            {tile.name: tile.estimate(m, k, n, machine.processors) for tile in tiles},
            {name_of(tile): cost for tile, cost in elsewhere.items()},
        ):
            dear |= {name for name, cost in costs.items() if cost > WORTH * min(costs.values())}
        return {name: f"{name} {kind}" for name in names if name not in dear}

    def choose(self, workload: Workload, machine: Machine, parameters: Parameters = NONE) -> str:
        from opwise.backends.numba_cuda.matmul.configurations import name_of
        from opwise.backends.numba_cuda.matmul.plan import planned

        (m, k, n), kind = workload.shape, workload.dtype
        return name_of(planned(m, k, n, kind, True, machine.processors, machine.capability))
