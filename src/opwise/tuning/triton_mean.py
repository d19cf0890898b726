"""How mean in Triton divides its work: threads per program, loads per thread, programs per SM."""

from __future__ import annotations

from collections.abc import Mapping

from opwise.ops.spec import Workload
from opwise.tuning.ways import Ways

# Elements, from what one wave of programs reads at once to what fills a GPU for a tenth of a millisecond.
QUICK = (8192 * 8192,)
FULL = (256 * 1024, 1024 * 1024, 2048 * 2048, 4096 * 4096, *QUICK, 16384 * 16384)


class TritonMean(Ways):
    def workloads(self, quick: bool) -> tuple[Workload, ...]:
        dtypes, sizes = (("float32", "float16"), QUICK) if quick else (("float32", "float16", "bfloat16"), FULL)
        return tuple(Workload("mean", (n,), dtype) for dtype in dtypes for n in sizes)

    def configurations(self, workload: Workload) -> Mapping[str, str]:
        """One per distinct launch: for few elements several divisions give the same number of steps per program."""
        from opwise.backends.triton_jit.mean import SHARES

        size = workload.torch_dtype.itemsize
        found: dict[str, str] = {}
        for share in SHARES:  # the shipped ones first
            steps = share.steps(workload.shape[0], size, self.machine.sms)
            compiled = f"{share.threads}x{share.loads} {steps.each} steps {steps.large} {workload.dtype}"
            if compiled not in found.values():
                found[str(share)] = compiled
        return found

    def choose(self, workload: Workload) -> str:
        from opwise.backends.triton_jit.mean import shipped

        return str(shipped(workload.shape[0], workload.torch_dtype.itemsize, self.machine.sms))
