"""From a recipe to a launch: the build loads the kernel, the bind packs its arguments in C++.

A call needs no bound launch: the function from `call_of` allocates the output and passes the tensors' addresses to a launch made at build,
in C++.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwise.backends import scratch
from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.protocol import Bind, Build, Launch
from opwise.backends.torch_inline.extension import extension


def built(recipe: Recipe) -> Build:
    def build(*tensors: Tensor) -> Bind:
        plan = recipe.plan(*tensors)
        sizes = *recipe.sizes(*tensors), *plan.shares
        device, address = tensors[-1].device, Tensor.data_ptr
        index, stream_of, module, library = _on_cpu() if device.type == "cpu" else _on_gpu(device)
        kernel = ctypes.cast(getattr(library, plan.kernel), ctypes.c_void_p).value
        module.prepare(kernel, plan.kernel, plan.shared_bytes)
        bound = module.Launch
        configuration = (kernel, plan.kernel, plan.grid, plan.block, plan.shared_bytes, plan.cooperative, module.Matrices(plan.matrices))

        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            run = bound(*configuration, (*map(address, tensors), *sizes, *more), tensors)

            def launch() -> None:
                run(stream_of(index))

            return launch

        no_scratch = (0,) if plan.scratch_bytes else ()
        unbound = bound(*configuration, (*map(address, tensors), *sizes, *no_scratch), None)

        def call_of(out: Tensor) -> Callable[..., Tensor]:
            call: Callable[..., Tensor] = module.call_of(unbound, out, stream_of, index, plan.scratch_bytes > 0)
            return call

        return scratch.called_with(launch_of, call_of, plan.scratch_bytes, device, plan.zeroed_bytes, plan.of_its_own)

    return build


# Device index; its current raw stream (a function of the index); the extension's module and library.
Place = tuple[int, Callable[[int], int], Any, ctypes.CDLL]


def _on_gpu(device: torch.device) -> Place:
    index: int = torch.cuda.current_device() if device.index is None else device.index
    major, minor = torch.cuda.get_device_capability(index)
    return index, torch._C._cuda_getCurrentRawStream, *extension(f"sm_{major}{minor}")


def _on_cpu() -> Place:
    from opwise.backends.cuda_on_cpu import suite

    return 0, suite.no_stream, *suite.extension()
