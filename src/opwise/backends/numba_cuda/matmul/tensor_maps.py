"""A product's tensor maps (CUtensorMap) as by-value arguments of a Numba kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opwise.backends.cuda_src.common import tensor_maps
from opwise.backends.cuda_src.plan import Matrix
from opwise.backends.numba_cuda.common.by_value import ByValue


def mapped(matrices: Sequence[Matrix], addresses: Sequence[int]) -> Callable[[Sequence[int]], tuple[ByValue, ...]]:
    """As cuda_src's tensor_maps.mapped, with each map wrapped as a by-value kernel argument. The result maps addresses -> arguments."""
    maps_of = tensor_maps.mapped(matrices, addresses)

    def maps(addresses: Sequence[int]) -> tuple[ByValue, ...]:
        places, memory = maps_of(addresses)
        return tuple([ByValue(at, memory) for at in places])

    return maps
