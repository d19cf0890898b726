"""Calls of the variants `plain`: Numba arrays over torch's memory, launched with `kernel[blocks, threads, stream](...)`.

On a CPU the arrays are NumPy's, and the kernels run in fibres (numba_on_cpu). Numba has no arrays of bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opwise.backends.numba_cuda.common.compiler import cuda
from opwise.backends.protocol import Bind, Build, Launch, UnsupportedWorkload

THREADS, MOST_BLOCKS = 256, 65535
FEW_BLOCKS = 2  # on a CPU, so that a grid-stride loop has several iterations


def jit(kernel: Callable[..., None]) -> Any:
    """`@cuda.jit`, typed for mypy."""
    return cuda.jit(kernel)


def blocks_of(x: Any) -> int:
    """Blocks of THREADS threads for a grid-stride loop over x."""
    return min(-(-int(x.size) // THREADS), FEW_BLOCKS if isinstance(x, np.ndarray) else MOST_BLOCKS)


def plain(call: Callable[..., None], flat: bool = False, scratch: Callable[[Tensor], Tensor] | None = None) -> Build:
    """The build of the variant `plain`.

    call(*inputs, output, stream) launches the op's kernels. scratch: makes an array from the first input, passed before the output.
    flat: arrays are passed as one-dimensional. The build raises UnsupportedWorkload for bfloat16.
    """

    def build(*tensors: Tensor) -> Bind:
        if tensors[0].dtype == torch.bfloat16:
            raise UnsupportedWorkload("Numba's arrays have no bfloat16: use the unnamed variant, which passes addresses")
        return bind

    def shaped(*tensors: Tensor) -> list[Tensor]:
        own = (scratch(tensors[0]),) if scratch else ()
        return [x.detach().reshape(-1) if flat else x.detach() for x in (*tensors[:-1], *own, tensors[-1])]

    def bind(*tensors: Tensor) -> Launch:
        if tensors[0].device.type == "cpu":
            return functools.partial(call, *(x.numpy() for x in shaped(*tensors)), 0)
        arrays, index = [cuda.as_cuda_array(x, sync=False) for x in shaped(*tensors)], tensors[0].device.index

        def launch() -> None:
            call(*arrays, cuda.external_stream(torch._C._cuda_getCurrentRawStream(index)))

        return launch

    return build
