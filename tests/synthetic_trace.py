"""A Chrome trace as Kineto writes it on a GPU, made by hand: what is in it is known. Times in us; the GPU runs 1000 us behind the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opwise.profiling.capture import CALL, COLD, FLUSH, PREFIX, WARM, WARM_UP

# How each backend's launch shows: the category and name of the call, and a kernel's name as its compiler makes it.
LAUNCHERS = {
    "torch_eager": ("cuda_runtime", "cudaLaunchKernel", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::Half>(...)"),
    "torch_inline": ("cuda_runtime", "cudaLaunchKernelExC", "softmax_rows_f16_8"),
    "cupy_raw": ("cuda_driver", "cuLaunchKernel", "softmax_rows_f16_8"),
    "numba_cuda": ("cuda_driver", "cuLaunchKernel", "_ZN6cudapy6opwise8backends10numba_cuda7softmax4rowsB2v1ExxB"),
    "triton_jit": ("cuda_driver", "cuLaunchKernelEx", "_softmax_rows"),
}
LAG = 1000.0
STREAM = 7


@dataclass
class Synthetic:
    """`silent`: calls of the driver are missing, as for a library that launches in a way that is not recorded."""

    silent: bool = False
    now: float = 4.4e12
    correlation: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, category: str, name: str, start: float, us: float, tid: int = 1, **arguments: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": us, "args": arguments}
        self.events.append(event)

    def kernel(
        self, launcher: tuple[str, str, str], us: float, grid: tuple[int, int, int], *, known: bool = True, after: float = 0.0
    ) -> None:
        """One launch of one kernel by the call that `launcher` names; it begins `after` us after its launch, behind the lag."""
        category, call, name = launcher
        self.correlation += 1
        if known:
            self.add(category, call, self.now, 3.0, correlation=self.correlation)
        facts = {"registers per thread": 32, "shared memory": 1024, "est. achieved occupancy %": 75, "stream": STREAM, "device": 0}
        self.add("kernel", name, self.now + LAG + after, us, 100 + STREAM, correlation=self.correlation, grid=list(grid), block=[256, 1, 1],
                 **facts)  # fmt: skip
        self.now += 4.0

    def memset(self, us: float) -> None:
        self.correlation += 1
        self.add("cuda_runtime", "cudaMemsetAsync", self.now, 2.0, correlation=self.correlation)
        self.add("gpu_memset", "Memset (Device)", self.now + LAG, us, 100 + STREAM, correlation=self.correlation, stream=STREAM, bytes=4)
        self.now += 3.0

    def labelled(self, label: str, *work: Any) -> None:
        began = self.now
        self.now += 1.0
        for step in work:
            step()
        self.now += 1.0
        self.add("user_annotation", PREFIX + label, began, self.now - began)
        self.now += 100.0

    def flush(self) -> None:
        self.kernel(("cuda_runtime", "cudaLaunchKernel", "fill"), 40.0, (1, 1, 1))
        self.kernel(("cuda_runtime", "cudaLaunchKernel", "amax"), 30.0, (1, 1, 1))

    def trace(self) -> dict[str, Any]:
        labels = [{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}}]
        return {"schemaVersion": 1, "traceEvents": labels + self.events}


def of_backend(backend: str, cold_us: tuple[float, ...], warm_us: tuple[float, ...], *, silent: bool = False) -> dict[str, Any]:
    """A warm-up that must not count, cold launches behind flushes, warm ones. `silent`: the backend's own calls are not recorded."""
    made = Synthetic()
    launcher, known = LAUNCHERS[backend], not silent

    def launch(us: float) -> Any:
        return lambda: made.kernel(launcher, us, (4096, 1, 1), known=known)

    made.labelled(FLUSH, made.flush)
    made.labelled(WARM_UP, launch(999.0))
    for us in cold_us:
        made.labelled(FLUSH, made.flush)
        made.labelled(COLD, launch(us))
    made.labelled(WARM_UP, launch(999.0))
    for us in warm_us:
        made.labelled(WARM, launch(us))
    made.labelled(CALL, lambda: None)
    return made.trace()
