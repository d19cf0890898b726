"""The tensor maps of a product as arguments of a Numba kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opwise.backends.cuda_src.common import tensor_maps
from opwise.backends.cuda_src.plan import Matrix
from opwise.backends.numba_cuda.common.by_value import ByValue


def mapped(matrices: Sequence[Matrix], addresses: Sequence[int]) -> Callable[[Sequence[int]], tuple[ByValue, ...]]:
    """tensor_maps.mapped, of which each map is a kernel argument."""
    maps_of = tensor_maps.mapped(matrices, addresses)

    def maps(addresses: Sequence[int]) -> tuple[ByValue, ...]:
        places, memory = maps_of(addresses)
        return tuple([ByValue(at, memory) for at in places])

    return maps
