"""From a specimen to launches of it, through the driver, at the least cost that Python allows.

ct.launch types and hashes all arguments at each launch and compiles at the first; opwise wants a compiled and loaded kernel before it. What
is passed is cuda-tile's calling convention: of an array its address, then its sizes and its strides; a grid of tiles, blocks of one thread.
"""

from __future__ import annotations

from typing import Any

import torch
from opwise.backends.numba_cuda.common.driver import Room, enqueuer, loaded, runner
from opwise.backends.protocol import AtOnce, Launch
from torch import Tensor

from opwise_cutile.tileiras import Array, Specimen, cubin

MOST = 2**31 - 2**16  # an array's elements along an axis that 32 bits count to, the last tile's end included
Sizes = tuple[int, ...]  # of an array, then its strides


def flat(x: Tensor) -> tuple[Array, Sizes]:
    """A contiguous tensor as a vector."""
    n = x.numel()
    return Array(x.dtype, 1, aligned=x.data_ptr() % 16 == 0, wide=n > MOST), (n, 1)


def matrix(x: Tensor) -> tuple[Array, Sizes]:
    """A matrix, row-major or the transpose of one that is. torch leaves the stride of a single row or column open."""
    rows, columns = x.shape
    strides = (columns, 1) if x.is_contiguous() else (1, rows)
    on_16 = (x.data_ptr() | max(strides) * x.element_size()) % 16 == 0
    return Array(x.dtype, 2, on_16, wide=max(x.shape) > MOST, transposed=not x.is_contiguous()), (rows, columns, *strides)


def built(specimen: Specimen, grid: int, device: torch.device, *sizes: Sizes, numbers: tuple[int, ...] = ()) -> AtOnce:
    """Compiles and loads; the result takes the specimen's arrays in order, which have these sizes. numbers: its INT64, which come last.

    Raises BackendUnavailable where there is neither tileiras nor the cubin, RuntimeError with what tileiras or the driver says.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    handle = loaded(*cubin(specimen, arch_of(device)), index, 0, 1)
    count = sum(1 + len(each) for each in sizes) + len(numbers)
    enqueue = enqueuer(handle, (grid, 1), 1, 0, index)
    run = runner(enqueue, count)

    def values(tensors: tuple[Tensor, ...]) -> list[Any]:
        return [*(value for x, fixed in zip(tensors, sizes, strict=True) for value in (x.data_ptr(), *fixed)), *numbers]

    def bind(*tensors: Tensor) -> Launch:
        room = Room(count)
        room.values[:] = values(tensors)
        at = room.at

        def launch(alive: object = (tensors, room)) -> None:
            enqueue(at)

        return launch

    return AtOnce(bind, lambda *tensors: run(*values(tensors)))


def arch_of(device: torch.device) -> str:
    """ "sm_90"."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
