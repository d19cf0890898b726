"""Shared by the sm_90 GEMM kernels: the order of tiles, the ring's alignment in shared memory, and its mbarriers."""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common import barrier as barriers
from opwise.backends.numba_cuda.common import tensor
from opwise.backends.numba_cuda.common.compiler import cuda, uint8, uint32
from opwise.backends.numba_cuda.common.launch import inlined

GROUP = 16  # tile rows in a group: tiles run column by column within it, so that its A and B stay in L2


def position_of(rows: int, columns: int) -> Any:
    """Device function (tile, tiles_m, tiles_n) -> (row, column) of the tile's first element in C. Tiles are rows x columns elements."""

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
    """The ring's shared address: dynamic shared memory rounded up to 1024 bytes, since the 128-byte swizzle depends on address bits."""
    memory = cuda.shared.array(0, uint8)
    return uint32((tensor.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00))


def tiling_of(rows: int, columns: int) -> Any:
    """Device function (m, n) -> (tiles_m, tiles_n), the tiles of rows x columns that cover C."""

    @inlined
    def tiling(m: Any, n: Any) -> Any:
        return uint32((m + (rows - 1)) // rows), uint32((n + (columns - 1)) // columns)

    return tiling


@inlined
def prepare(full: Any, stages: Any, arrivals: Any) -> None:
    """Thread 0 initialises the ring's mbarriers: `full` of each stage (1 arrival), then `empty` of each stage (`arrivals`; none if 0)."""
    if cuda.threadIdx.x == 0:
        for i in range(stages):
            barriers.barrier_init(uint32(full + uint32(8 * i)), uint32(1))
            if arrivals > 0:
                barriers.barrier_init(uint32(full + uint32(8 * (stages + i))), uint32(arrivals))
        barriers.barriers_publish()
    cuda.syncthreads()
