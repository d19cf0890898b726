"""From a recipe to a launch: the kernel is loaded when it is built, its arguments are packed in C++ when it is bound."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from opwise.backends.cuda_src.recipes import Recipe
from opwise.backends.protocol import Bind, Build, Launch
from opwise.backends.scratch import bound_with
from opwise.backends.torch_inline.extension import extension


def built(recipe: Recipe) -> Build:
    def build(*tensors: Tensor) -> Bind:
        plan = recipe.plan(*tensors)
        device = tensors[-1].device
        index: int = torch.cuda.current_device() if device.index is None else device.index
        major, minor = torch.cuda.get_device_capability(index)
        module, library = extension(f"sm_{major}{minor}")
        kernel = ctypes.cast(getattr(library, plan.kernel), ctypes.c_void_p).value
        module.prepare(kernel, plan.kernel, plan.shared_bytes)
        arguments_of, bound = recipe.arguments, module.Launch
        configuration = (kernel, plan.kernel, plan.grid, plan.block, plan.shared_bytes, module.Matrices(plan.matrices))
        stream_of = torch._C._cuda_getCurrentRawStream

        def launch_of(tensors: tuple[Tensor, ...], *more: int) -> Launch:
            run = bound(*configuration, (*arguments_of(*tensors), *more), tensors)

            def launch() -> None:
                run(stream_of(index))

            return launch

        return bound_with(launch_of, plan.scratch_bytes, device)

    return build
