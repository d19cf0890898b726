"""Runs numba_cuda's kernels on the CPU where there is no GPU, for either Numba compiler.

A kernel runs as Python (translated.py), one greenlet for each CUDA thread (fibres.py). Plans are made for cuda_on_cpu's small sm_80 GPU
(MACHINE). NOT_RUN names the kernels that never run here. Plain launches, `kernel[blocks, threads](...)`, run here too if their arrays are
NumPy's or CPU tensors. docs/checking.md lists what this does not detect.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.backends.calling import AtOnce, Launch
from opwise.backends.cuda_on_cpu import MACHINE
from opwise.backends.gemm.gpu import Machine as Gpu

STAND_IN = "greenlets"
INSTALL = "pip install greenlet"

# Op -> its kernels that never run here.
NOT_RUN = {
    "softmax": "softmax's cluster_kernel of more than one block a row, stream_kernel",
    "matmul": "matmul's wgmma, split_k, wgmma_tf32, fma_tma, nor K split in a cluster",
}
_one_at_a_time = threading.Lock()


def gpu_of(device: torch.device) -> Gpu:
    """The GPU that plans are made for: the device, or MACHINE for the CPU."""
    return Gpu.of(device) if device.type == "cuda" else MACHINE


@functools.cache
def on_sm80() -> Any:
    from opwise.backends.numba_on_cpu.meanings import SM80
    from opwise.backends.numba_on_cpu.translated import Translation

    return Translation(SM80)


def run(function: Callable[..., None], machine: Any, arguments: tuple[Any, ...], translation: Any = None) -> None:
    """Launches a kernel and runs it to completion. machine: fibres.Machine. Raises Fault where a GPU would fault or hang."""
    from opwise.backends.numba_on_cpu.translated import Now

    with _one_at_a_time:
        Now.machine = machine
        try:
            machine.run((translation or on_sm80()).function(function), arguments)
        finally:
            Now.machine = None  # it refers to the launch's tensors


def bind(kernel: Any, grid: tuple[int, int], *arguments: Any, shared: int | None = None, room: Tensor | None = None) -> Launch:
    """Stands in for Kernel.bind. room: a tensor that is not an argument and that the kernel may access too."""
    from opwise.backends.numba_on_cpu.fibres import Machine, Memory

    tensors = [x for x in (*arguments, room) if isinstance(x, Tensor)]
    addresses = tuple(x.data_ptr() if isinstance(x, Tensor) else int(x) for x in arguments)
    dynamic = kernel.dynamic_shared if shared is None else shared

    def launch() -> None:
        run(kernel.function, Machine(grid, kernel.threads, dynamic, Memory(tensors)), addresses)

    return launch


def fixed(kernel: Any, grid: tuple[int, int], *sizes: int, shared: int | None = None, scratch_bytes: int = 0, zeroed: int = 0) -> AtOnce:
    """Stands in for Kernel.fixed. The first `zeroed` bytes of scratch are 0, the rest nan. A launch must leave those 0, or RuntimeError."""

    def bound(*tensors: Tensor) -> Launch:
        if not scratch_bytes:
            return bind(kernel, grid, *tensors, *sizes, shared=shared)
        room = torch.full((scratch_bytes // 4 + 1,), torch.nan)
        zeroes = room[: zeroed // 4].zero_()
        launch_once = bind(kernel, grid, *tensors, *sizes, room.data_ptr(), shared=shared, room=room)

        def launch() -> None:
            launch_once()
            if zeroes.view(torch.int32).any():
                raise RuntimeError("a launch left other numbers in scratch than 0, where it found 0")

        return launch

    return AtOnce(bound)


def take_plain_launches() -> None:
    """Patches Numba's Dispatcher: `kernel[blocks, threads](...)` runs in fibres, unless an argument is a GPU array."""
    from opwise.backends.numba_cuda.common.compiler import Dispatcher

    configure = Dispatcher.configure
    if hasattr(configure, "on_gpu"):
        return

    @functools.wraps(configure)
    def configured(kernel: Any, *given: Any) -> Callable[..., None]:
        """given: grid, block, and optionally a stream and bytes of dynamic shared memory."""

        def launch(*arguments: Any) -> None:
            if any(hasattr(x, "__cuda_array_interface__") for x in arguments):
                configure(kernel, *given)(*arguments)
            else:
                run_plain(kernel.py_func, given[0], given[1], given[3] if len(given) > 3 else 0, arguments)

        return launch

    configured.on_gpu = configure  # type: ignore[attr-defined]
    Dispatcher.configure = configured


def run_plain(function: Callable[..., None], grid: Any, block: Any, shared: int, arguments: tuple[Any, ...]) -> None:
    from opwise.backends.numba_on_cpu.fibres import Machine, Memory

    arrays = tuple(x.detach().numpy() if isinstance(x, Tensor) else x for x in arguments)
    run(function, Machine(grid, block, shared, Memory([])), arrays)
