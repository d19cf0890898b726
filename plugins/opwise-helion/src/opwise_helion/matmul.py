"""matmul in Helion: a tile of the product a program, accumulated in float32 by hl.dot.

16 bits and TF32 go to tensor cores; hl.dot of float32 is float32 arithmetic where the kernel's precision is "ieee". Programs go through the
tiles in groups of GROUP tile rows, so that those running at once share rows of a and columns of b in L2. A factor may be a row-major
matrix's transpose, read as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import helion.language as hl
import torch
from opwise.backends.protocol import Bind, Variant
from opwise.backends.triton_jit.common.launch import processors
from opwise.ops.spec import tf32_allowed
from torch import Tensor

from opwise_helion.planning import DTYPES, Plan, Way, built, called, in_float32, planned


def rounded(x):
    """To TF32, the nearest: the tensor core would cut the bits off, which shrinks products by 7e-4. A nan stays as it is."""
    return torch.where(x == x, ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32), x)


def matmul_kernel(a, b, out, TF32: hl.constexpr):
    for rows, columns in hl.tile([a.size(0), b.size(1)]):
        total = hl.zeros([rows, columns], torch.float32)
        for k in hl.tile(a.size(1)):
            left, right = a[rows, k], b[k, columns]
            if TF32:
                left, right = rounded(left), rounded(right)
            total = hl.dot(left, right, acc=total)
        out[rows, columns] = total.to(out.dtype)


# Rows, columns and step along K of a tile, warps, stages; the largest first. Which is quickest for which product a GPU has still to say.
HALF = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (16, 64, 128, 4, 4))
TFLOAT = ((128, 128, 32, 8, 4), (64, 128, 32, 4, 4), (64, 64, 32, 4, 4), (16, 64, 64, 4, 4))
SINGLE = ((128, 128, 16, 8, 3), (64, 64, 16, 4, 3), (32, 64, 32, 4, 3), (16, 32, 32, 4, 3))
GROUP, LEAST = 8, 16  # tile rows; the shortest side of a product whose sizes the kernel is compiled for: below it Helion pads what is 1
Tile = tuple[int, int, int, int, int]


def tiles_of(dtype: torch.dtype, tf32: bool, shared_memory: int) -> list[Tile]:
    tiles = HALF if dtype != torch.float32 else TFLOAT if tf32 else SINGLE
    return [tile for tile in tiles if (tile[0] + tile[1]) * tile[2] * tile[4] * dtype.itemsize <= shared_memory]


def tile_of(which: int | None, tf32: bool, a: Tensor, out: Tensor) -> Tile:
    """The largest tile that gives every multiprocessor one and is no higher than it must be, or as named."""
    gpu: Any = torch.cuda.get_device_properties(a.device) if a.device.type == "cuda" else None
    tiles = tiles_of(a.dtype, tf32, gpu.shared_memory_per_block_optin if gpu else 2**17)
    if which is not None:
        return tiles[: which + 1][-1]
    m, n = out.shape
    fits = (tile for tile in tiles if tile[0] < 2 * m and -(-m // tile[0]) * -(-n // tile[1]) >= processors(a.device))
    return next(fits, tiles[-1] if m <= tiles[-1][0] else tiles[-2])


def way_of(tile: Tile, tf32: bool, static: bool = True) -> Way:
    *block, warps, stages = tile
    config = {"block_sizes": block, "l2_groupings": [GROUP], "num_warps": warps, "num_stages": stages}
    return Way(matmul_kernel, config, static, "tf32" if tf32 else "ieee")


def build(which: int | None, static: bool, plain: bool, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    tf32 = a.dtype == torch.float32 and tf32_allowed()
    way = way_of(tile_of(which, tf32, a, out), tf32, static and min(*a.shape, *b.shape) >= LEAST)
    return (called if plain else built)(way, (a, b, out), tf32)


def variant(summary: str, which: int | None = None, static: bool = True, plain: bool = False) -> Variant:
    return Variant(in_float32(partial(build, which, static, plain)), summary, takes_transposed=True)


VARIANTS = {
    "": variant("a tile of the product a program: the largest that gives every multiprocessor one"),
    **{f"tile{i}": variant(f"tile {i} of the dtype's list, the largest first", i) for i in range(len(HALF))},
    "sized": variant("as the unnamed one, sizes and strides arguments", static=False),
    "plain": variant("as the unnamed one, by Helion's own launcher", plain=True),
}


def specimens() -> Iterator[tuple[str, Plan]]:
    for dtype, tf32 in ((torch.float32, True), *((dtype, False) for dtype in DTYPES)):
        name = "tfloat32" if tf32 else str(dtype).removeprefix("torch.")
        for tile in tiles_of(dtype, tf32, 2**18):
            a, b, out = (torch.empty(4096, 4096, dtype=dtype) for _ in "abc")
            yield f"{name}, tile {'x'.join(map(str, tile[:3]))}", planned(way_of(tile, tf32), a, b, out, tf32)
        a, b, out = (torch.empty(shape, dtype=dtype) for shape in ((583, 931), (931, 781), (583, 781)))
        for label, static in (("odd", True), ("sized", False)):
            yield f"{name}, {label}", planned(way_of(tile, tf32, static), a, b, out, tf32)
