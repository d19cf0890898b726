"""Tiles of a product, and which of them it gets. They are variants too: plugins/results has their times on an H100."""

from __future__ import annotations

from typing import Any

import torch
from opwise.backends.triton_jit.common.launch import processors
from torch import Tensor

Tile = tuple[int, int, int, int, int]
# Rows, columns and step along K of a tile, warps, stages; the largest first.
HALF = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (16, 64, 128, 4, 4))
TFLOAT = ((128, 128, 32, 8, 4), (64, 64, 32, 4, 4), (16, 64, 64, 4, 4))
SINGLE = ((64, 64, 16, 4, 3), (32, 64, 32, 4, 3), (16, 32, 32, 4, 3))


def tiles_of(dtype: torch.dtype, tf32: bool, shared_memory: int) -> list[Tile]:
    tiles = HALF if dtype != torch.float32 else TFLOAT if tf32 else SINGLE
    return [tile for tile in tiles if (tile[0] + tile[1]) * tile[2] * tile[4] * dtype.itemsize <= shared_memory]


def tile_of(which: int | None, tf32: bool, a: Tensor, out: Tensor) -> Tile:
    """The largest tile that gives three multiprocessors of four one and is no higher than it must be, or as named."""
    gpu: Any = torch.cuda.get_device_properties(a.device) if a.device.type == "cuda" else None
    tiles = tiles_of(a.dtype, tf32, gpu.shared_memory_per_block_optin if gpu else 2**17)
    if which is not None:
        return tiles[: which + 1][-1]
    m, n = out.shape
    fits = (tile for tile in tiles if tile[0] < 2 * m and 4 * -(-m // tile[0]) * -(-n // tile[1]) >= 3 * processors(a.device))
    return next(fits, tiles[-1] if m <= tiles[-1][0] else tiles[-2])
