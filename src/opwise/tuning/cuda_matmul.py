"""The kernels of matmul in CUDA C++, which torch_inline and cupy_raw both launch, and `speed`, `fixed` of each, fitted anew.

A plan compares estimates in multiply-adds of one multiprocessor, not in us. So a fit keeps the scale: the fastest of the shipped kernels
that was measured keeps its speed. Of 16 bits on Hopper the scale is an H200's, so that what the model says in multiply-adds beside (what
lies outside of C, what memory takes) keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opwise.backends.cuda_src import matmul
from opwise.backends.cuda_src.matmul import configuration
from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.cuda_src.matmul.cost import BYTES, UNIT
from opwise.backends.tuned import with_numbers
from opwise.backends.tuned_table import Row
from opwise.ops.spec import Workload
from opwise.tuning.ways import NONE, Machine, Parameters, Term, Ways

if TYPE_CHECKING:
    from opwise.backends.cuda_src.matmul import Other

QUICK = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 128, 8192), (64, 4096, 4096), (16, 4096, 4096))
FULL = (*QUICK, (512, 512, 512), (1536, 1536, 1536), (3072, 3072, 3072), (8192, 8192, 8192), (1024, 8192, 1024), (4096, 4096, 128),
        (256, 4096, 4096), (128, 16384, 512), (128, 16384, 128), (64, 16384, 64), (32, 8192, 1024), (4096, 1024, 16384))  # fmt: skip
LAYERS = ((256, 2048, 5632), (512, 5120, 5120), (512, 8192, 3072), (1024, 5120, 5120), (1024, 8192, 1536), (1536, 4096, 1024),
          (256, 5120, 5120), (256, 13824, 5120), (2048, 3072, 768), (2048, 4608, 1152),
          (512, 4096, 32), (2048, 2048, 32), (4096, 4096, 32), (8192, 1024, 32))  # fmt: skip
FLOAT32 = ((512, 512, 512), (1024, 1024, 1024), (1536, 1536, 1536), (2048, 2048, 2048), (4096, 4096, 4096), (128, 4096, 4096))
WORTH = 3.5  # times the least estimate: what is dearer by the shipped numbers is not measured
GRANULE = 16  # bytes that divide what is measured: kernels for less are there for what has less


class CudaMatmul(Ways):
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        half = [("float16", shape) for shape in (QUICK if quick else (*FULL, *LAYERS))]
        more = [] if quick else [(dtype, shape) for dtype in ("tfloat32", "float32") for shape in FLOAT32]
        return tuple(Workload("matmul", shape, dtype) for dtype, shape in (*half, *more))

    def kind(self, dtype: str) -> str:
        return "16-bit" if dtype in ("float16", "bfloat16") else dtype

    def configurations(self, workload: Workload, machine: Machine) -> Mapping[str, str]:
        found = self._offered(workload, machine)
        size, kind = (*workload.shape, machine.processors), workload.dtype
        least = min((kernel.estimate(*size) for kernel in found.values()), default=0.0)
        worth = {name: k for name, k in found.items() if k.estimate(*size) <= WORTH * least and getattr(k, "granule", GRANULE) == GRANULE}
        return {name: _launched(kernel, kind, *size) for name, kernel in worth.items()}

    def choose(self, workload: Workload, machine: Machine, parameters: Parameters = NONE) -> str:
        found = {name: with_numbers(kernel, parameters.get(name, {})) for name, kernel in self._offered(workload, machine).items()}
        m, k, n = workload.shape
        return matmul.quickest(found, m, k, n, machine.processors)

    def term(self, name: str, workload: Workload, machine: Machine) -> Term | None:
        """What is not of K alone is as the shipped numbers have it."""
        kernel = self._offered(workload, machine).get(name)
        if kernel is None:
            return None
        m, k, n = workload.shape
        share = kernel.share(m, k, n, machine.processors)
        return Term(share.each, share.depth, share.more(kernel.speed) / UNIT[workload.dtype])

    def parameters(self, kind: str, fitted: Mapping[str, tuple[float, float]], rows: Sequence[Row], machine: Machine) -> Parameters:
        """a = us x fixed / speed and b = us / speed, with us the time of one unit."""
        known = self._known(rows, machine)
        anchor = max((name for name in fitted if name in known), key=lambda name: known[name].speed, default=None)
        if anchor is None:
            return {}
        hopper = kind == "16-bit" and machine.capability == configuration.WGMMA_ON
        us = 1 / UNIT["float16"] if hopper else fitted[anchor][1] * known[anchor].speed
        return {name: {"speed": round(us / b, 5), "fixed": round(a / b, 3)} for name, (a, b) in fitted.items() if name in known}

    def _known(self, rows: Sequence[Row], machine: Machine) -> dict[str, Kernel | Other]:
        return {name: kernel for row in rows for name, kernel in self._offered(Workload.parse(row.workload), machine).items()}

    def _offered(self, workload: Workload, machine: Machine) -> Mapping[str, Kernel | Other]:
        (m, k, n), kind = workload.shape, workload.dtype
        if kind == "tfloat32" and machine.capability < configuration.TENSOR_CORES_FROM:
            return {}
        if any(x * BYTES[kind] % GRANULE for x in (k, n)):
            return {}
        return matmul.offered(m, k, n, kind, GRANULE, machine.processors, machine.capability)


def _launched(kernel: Kernel | Other, kind: str, m: int, k: int, n: int, processors: int) -> str:
    """The kernel's name in the source."""
    if isinstance(kernel, Kernel):
        return matmul.launch(kernel, kind, m, k, n, processors).kernel
    return kernel.kernel
