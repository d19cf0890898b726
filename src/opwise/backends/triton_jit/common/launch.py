"""Launches of Triton kernels at the least CPU time that Triton's launcher allows.

`kernel[grid](...)` binds, types and hashes all arguments at each launch to look up the compiled kernel. Here that is done once, at build
(`warmup` compiles without launching). A launch is one call of the launcher that Triton generated for the kernel. Addresses are passed as
integers, which saves a driver query per pointer. The launcher's signature is the same in Triton 3.6 and 3.7:

    run(grid_x, grid_y, grid_z, stream, function, packed_metadata, launch_metadata, enter_hook, exit_hook, *arguments)

A compiled kernel is valid only for arguments like the samples: Triton specializes on whether an address or an int is a multiple of 16 and
whether an int is 1. `build` is called for each shape and alignment, so these never change for a kernel built here.

Launch hooks, which Triton's profiler Proton uses, are not called: they cost microseconds a launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton import knobs

from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import AtOnce, Launch

INTERPRETING = bool(knobs.runtime.interpret)
Grid = tuple[int, int, int]


def built(kernel: Any, grid: Grid, *samples: Any, **fixed: Any) -> Callable[..., Launch]:
    """Compiles and loads `kernel` for arguments like `samples`; returns a function from such arguments to a launch.

    samples: the kernel's runtime arguments in order (tensors, ints, tensor descriptors). fixed: its constexprs, which follow them in its
    signature, and compile options. Raises what Triton raises, such as triton.OutOfResources for too little shared memory.
    """
    if INTERPRETING:
        return lambda *arguments: _interpreted(kernel, grid, arguments, fixed)
    run, head, constants = _compiled(kernel, grid, samples, fixed)

    def bind(*arguments: Any) -> Launch:
        index = next(tensor.device.index for x in arguments if isinstance(tensor := getattr(x, "base", x), Tensor))  # a descriptor's
        if index is None:
            index = torch.cuda.current_device()
        addresses = tuple(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
        return _launcher(run, grid, index, (*head, *addresses, *constants), keep=arguments)

    return bind


def built_of_one(kernel: Any, grid: Grid, x: Tensor, out: Tensor, *numbers: int, **fixed: Any) -> AtOnce:
    """As `built`, for a kernel of one input, one output and constant `numbers`. It can also launch without a prior bind, which saves 1.5
    us. It launches on the device of the samples: the cache of built kernels has an entry for each device."""
    if INTERPRETING:
        return AtOnce(lambda x, out: _interpreted(kernel, grid, (x, out, *numbers), fixed))
    run, head, constants = _compiled(kernel, grid, (x, out, *numbers), fixed)
    stream_of, index, rest = torch._C._cuda_getCurrentRawStream, out.device.index, (*numbers, *constants)
    wide, high, deep = grid

    def bind(x: Tensor, out: Tensor) -> Launch:
        return _launcher(run, grid, index, (*head, x.data_ptr(), out.data_ptr(), *rest), keep=(x, out))

    def launch_now(x: Tensor, out: Tensor) -> None:
        run(wide, high, deep, stream_of(index), *head, x.data_ptr(), out.data_ptr(), *rest)

    return AtOnce(bind, launch_now)


def called(kernel: Any, grid: Grid, *arguments: Any, **fixed: Any) -> Launch:
    """`kernel[grid](...)` at each launch: for the variants `plain`, which show what a user of Triton pays for one. It is compiled and
    loaded before the first launch, as after a warm-up."""
    if INTERPRETING:
        return _interpreted(kernel, grid, arguments, fixed)
    _ = kernel.warmup(*arguments, grid=grid, **fixed).run

    def launch() -> None:
        kernel[grid](*arguments, **fixed)

    return launch


def _compiled(kernel: Any, grid: Grid, samples: tuple[Any, ...], fixed: dict[str, Any]) -> tuple[Callable[..., None], Any, Any]:
    """The launcher, its arguments between the stream and the kernel's arguments, and the constexprs, which come last."""
    compiled = kernel.warmup(*samples, grid=grid, **fixed)
    run = compiled.run  # loads the module now: a lazy load while a stream is blocked deadlocks
    head = (compiled.function, compiled.packed_metadata, None, None, None)
    return run, head, tuple(fixed[name] for name in kernel.arg_names[len(samples) :])


def _launcher(run: Callable[..., None], grid: Grid, index: int, tail: tuple[Any, ...], keep: tuple[Any, ...]) -> Launch:
    x, y, z = grid
    stream_of = torch._C._cuda_getCurrentRawStream

    def launch(alive: tuple[Any, ...] = keep) -> None:
        run(x, y, z, stream_of(index), *tail)

    return launch


def _interpreted(kernel: Any, grid: Grid, arguments: tuple[Any, ...], fixed: dict[str, Any]) -> Launch:
    def launch() -> None:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # overflow and nan are results here
            warnings.simplefilter("ignore", RuntimeWarning)
            kernel[grid](*arguments, **fixed)

    return launch


def processors(device: torch.device) -> int:
    """The number of SMs, by which grids are sized; 2 for the interpreter, which runs programs one after another."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def machine_of(device: torch.device) -> Machine:
    """The machine to plan for. The interpreter counts as a small sm_80 GPU: it has no Gluon, clusters or TMA."""
    return Machine.of(device) if device.type == "cuda" and not INTERPRETING else Machine(processors(device), (8, 0), 2**18)
