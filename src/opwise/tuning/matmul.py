"""The configurations of matmul, for all backends: those that are predicted to be nearly the fastest are measured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from opwise.backends import tuned
from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import choose, predictions
from opwise.backends.gemm.cost import Configuration, Product
from opwise.backends.gemm.gpu import Machine
from opwise.ops.spec import Workload
from opwise.tuning.ways import Ways

# (M, K, N): squares, few rows or columns, a long and a short K, layers of language models.
QUICK = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 128, 8192), (64, 4096, 4096), (16, 4096, 4096))
FULL = (*QUICK, (512, 512, 512), (1536, 1536, 1536), (3072, 3072, 3072), (8192, 8192, 8192), (1024, 8192, 1024), (4096, 4096, 128),
        (128, 16384, 128), (1, 4096, 4096), (256, 4096, 4096), (512, 4096, 4096), (256, 5120, 5120), (256, 4096, 14336), (512, 8192, 3072),
        (2048, 768, 3072), (2048, 4096, 4096), (4096, 1024, 16384), (2048, 4096, 32), (4096, 32, 4096))  # fmt: skip
FLOAT32 = ((512, 512, 512), (1024, 1024, 1024), (1536, 1536, 1536), (2048, 2048, 2048), (4096, 4096, 4096), (128, 4096, 4096))
NEAR, MOST = 2.0, 16  # times the least predicted time; configurations


class MatmulWays(Ways):
    """Sizes that were not measured use the predicted configuration."""

    nearest = False

    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        half = [("float16", shape) for shape in (QUICK if quick else FULL)]
        more = [] if quick else [(dtype, shape) for dtype in ("tfloat32", "float32") for shape in FLOAT32]
        return tuple(Workload("matmul", shape, dtype) for dtype, shape in (*half, *more))

    def configurations(self, workload: Workload) -> Mapping[str, str]:
        names = near(predictions(product_of(workload), self._offered(workload), gpu.of(self.device)), NEAR, MOST)
        return {name: f"{name} {workload.dtype}" for name in dict.fromkeys([*names, self.choose(workload)] if names else [])}

    def choose(self, workload: Workload) -> str:
        ships = tuned.shipped(self.table, self.device)
        return choose(product_of(workload), self._offered(workload), gpu.of(self.device), ships).name

    def _offered(self, workload: Workload) -> Mapping[str, Configuration]:
        return offered(self.table, product_of(workload), self.machine)


def product_of(workload: Workload) -> Product:
    """The product of a workload, with matrices aligned to 16 bytes, as they are timed."""
    m, k, n = workload.shape
    return Product(m, k, n, workload.dtype, layout=workload.layout or "NN")


def offered(table: str, product: Product, machine: Machine) -> Mapping[str, Configuration]:
    """Configurations by table name, which is a folder under backends/, such as numba_cuda/matmul. Raises ImportError if the backend's
    library is not installed."""
    found: Mapping[str, Configuration] = importlib.import_module(f"opwise.backends.{table.replace('/', '.')}").offered(product, machine)
    return found


def near(times: Mapping[str, float], factor: float, most: int) -> list[str]:
    """Names of configurations within this factor of the least predicted time, the least first, at most so many."""
    least = min(times.values(), default=0.0)
    return [name for name in sorted(times, key=times.__getitem__) if times[name] <= factor * least][:most]
