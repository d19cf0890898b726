"""What Hopper's products share: where a tile lies, where the ring of stages begins, and its mbarriers."""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import tensor
from opwise.backends.numba_cuda.common.compiler import cuda, uint8, uint32
from opwise.backends.numba_cuda.common.launch import inlined

GROUP = 16  # tile rows that are walked together, so that their A and B stay in L2


def position_of(rows: int, columns: int) -> Any:
    """(tile, tiles_m, tiles_n) -> row and column of C at which the tile (rows x columns) begins."""

    @inlined
    def position(tile: Any, tiles_m: Any, tiles_n: Any) -> Any:
        across = uint32(uint32(GROUP) * tiles_n)
        first = uint32(barriers.divide(tile, across) * uint32(GROUP))
        within = barriers.remainder(tile, across)
        height = uint32(min(uint32(tiles_m - first), uint32(GROUP)))
        down, right = barriers.remainder(within, height), barriers.divide(within, height)
        return uint32((first + down) * uint32(rows)), uint32(right * uint32(columns))

    return position


@inlined
def ring_begins() -> Any:
    """The shared address from which on the ring lies: the first multiple of 1024, since the swizzle is by address."""
    memory = cuda.shared.array(0, uint8)
    return uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))


def tiling_of(rows: int, columns: int) -> Any:
    """(m, n) -> tiles down and across of C, of rows x columns."""

    @inlined
    def tiling(m: Any, n: Any) -> Any:
        return uint32((m + (rows - 1)) // rows), uint32((n + (columns - 1)) // columns)

    return tiling


@inlined
def prepare(full: Any, stages: Any, arrivals: Any) -> None:
    """One thread initialises the mbarriers of the ring: `full` of each stage, then `empty` of each stage, which counts `arrivals`."""
    if cuda.threadIdx.x == 0:
        for i in range(stages):
            barriers.barrier_init(uint32(full + uint32(8 * i)), uint32(1))
            if arrivals > 0:
                barriers.barrier_init(uint32(full + uint32(8 * (stages + i))), uint32(arrivals))
        barriers.barriers_publish()
    cuda.syncthreads()
