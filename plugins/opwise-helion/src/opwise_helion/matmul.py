"""matmul in Helion: a tile of the product a program, accumulated in float32 by hl.dot.

16 bits and TF32 go to tensor cores; hl.dot of float32 is float32 arithmetic where the kernel's precision is "ieee". Programs go through the
tiles in groups of GROUP tile rows, so that those running at once share rows of a and columns of b in L2. A factor may be a row-major
matrix's transpose, read as it lies.
"""

from __future__ import annotations

from functools import partial

import helion.language as hl
import torch
from opwise.backends.protocol import Bind, Variant
from opwise.ops.spec import tf32_allowed
from torch import Tensor

from opwise_helion.planning import Way, built, called, in_float32
from opwise_helion.tiles import HALF, Tile, tile_of


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


GROUP, LEAST = 8, 16  # tile rows; the shortest side of a product whose sizes the kernel is compiled for: below it Helion pads what is 1


def way_of(tile: Tile, tf32: bool, static: bool = True, tma: bool = False) -> Way:
    *block, warps, stages = tile
    config = {"block_sizes": block, "l2_groupings": [GROUP], "num_warps": warps, "num_stages": stages}
    through = {"indexing": "tensor_descriptor", "host_tensor_descriptors": True} if tma else {}
    return Way(matmul_kernel, config | through, static, "tf32" if tf32 else "ieee")


def by_tma(*tensors: Tensor) -> bool:
    """May they be read and written through descriptors? Their addresses and rows are on 16 bytes, and the GPU has TMA."""
    on_16 = all((x.data_ptr() | max(x.stride()) * x.element_size()) % 16 == 0 for x in tensors)
    return on_16 and tensors[0].device.type == "cuda" and torch.cuda.get_device_capability(tensors[0].device) >= (9, 0)


def build(which: int | None, static: bool, plain: bool, tma: bool, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    tf32, long = a.dtype == torch.float32 and tf32_allowed(), min(*a.shape, *b.shape) >= LEAST
    way = way_of(tile_of(which, tf32, a, out), tf32, static and long, tma and long and by_tma(a, b, out))
    return (called if plain else built)(way, (a, b, out), tf32)


def variant(summary: str, which: int | None = None, static: bool = True, plain: bool = False, tma: bool = False) -> Variant:
    return Variant(in_float32(partial(build, which, static, plain, tma)), summary, takes_transposed=True)


VARIANTS = {
    "": variant("a tile of the product a program: the largest that gives three multiprocessors of four one"),
    **{f"tile{i}": variant(f"tile {i} of the dtype's list, the largest first", i) for i in range(len(HALF))},
    "sized": variant("as the unnamed one, sizes and strides arguments", static=False),
    "plain": variant("as the unnamed one, by Helion's own launcher", plain=True),
    "tma": variant("as the unnamed one, where it can be through descriptors that the host makes", tma=True),
    "tma1": variant("tile 1, where it can be through descriptors that the host makes", 1, tma=True),
}
