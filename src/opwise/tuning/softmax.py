"""softmax's kernels and their forms in each backend. There is no model: unmeasured sizes use the nearest ones' configuration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from opwise.ops.spec import Workload
from opwise.tuning.ways import Ways

# (rows, columns): many rows of each length that some kernel begins or ends at, and of two between, which leave a block of a power of two
# threads in part idle; and few rows, which want more blocks each.
QUICK = ((65536, 1024), (16384, 8192), (2048, 65536), (256, 524288))
FULL = (*QUICK, (32768, 4096), (8192, 16384), (4096, 32768), (1024, 131072), (512, 262144), (128, 1048576),
        (43690, 3072), (10922, 12288),
        (64, 16384), (64, 65536), (64, 262144), (64, 1048576))  # fmt: skip


class Softmax(Ways):
    """Rows as they are timed: whole 16-byte vectors, aligned to 16 bytes."""

    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        dtypes, shapes = (("float32", "float16"), QUICK) if quick else (("float32", "float16", "bfloat16"), FULL)
        return tuple(Workload("softmax", shape, dtype) for dtype in dtypes for shape in shapes)

    def configurations(self, workload: Workload) -> Mapping[str, str]:
        rows, columns = workload.shape
        return self.compiled(rows, columns, workload.dtype)

    def choose(self, workload: Workload) -> str:
        rows, columns = workload.shape
        return self.own(rows, columns, workload.dtype)

    @abstractmethod
    def compiled(self, rows: int, columns: int, dtype: str) -> dict[str, str]:
        """As Ways.configurations."""

    @abstractmethod
    def own(self, rows: int, columns: int, dtype: str) -> str:
        """As Ways.choose."""


class CudaSoftmax(Softmax):
    def compiled(self, rows: int, columns: int, dtype: str) -> dict[str, str]:
        from opwise.backends.cuda_src import softmax

        found = softmax.offered(rows, columns, dtype, True, self.machine.sms, self.machine.capability)
        return {name: plan.kernel for name, plan in found.items()}

    def own(self, rows: int, columns: int, dtype: str) -> str:
        from opwise.backends.cuda_src import softmax

        return softmax.name_of(softmax.plan(rows, columns, dtype, True, self.machine.sms, self.machine.capability))


class NumbaSoftmax(Softmax):
    def compiled(self, rows: int, columns: int, dtype: str) -> dict[str, str]:
        from opwise.backends.numba_cuda.softmax.plan import Registers, offered

        found = offered(rows, columns, dtype, True, self.machine.sms, self.machine.capability)
        return {
            name: f"{name} {dtype} {columns}" if isinstance(way, Registers) and way.threads else f"{name} {dtype}"
            for name, way in found.items()
        }

    def own(self, rows: int, columns: int, dtype: str) -> str:
        from opwise.backends.numba_cuda.softmax import plan

        return plan.name_of(plan.own(rows, columns, dtype, True, self.machine.sms, self.machine.capability))
