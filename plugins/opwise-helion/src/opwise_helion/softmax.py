"""softmax over rows in Helion: rows of up to HELD columns in registers, read once; longer ones in tiles, read twice.

The difference to the row's maximum is rounded before it is scaled for the exponential, or rows far from zero would lose all digits. A nan
passes through the maximum.
"""

from __future__ import annotations

import math
from functools import partial

import helion.language as hl
import torch
from opwise.backends.protocol import Bind, Variant
from torch import Tensor

from opwise_helion.planning import Way, built, called, in_float32


def exp(x):
    """Triton's, an approximation of 2^x after a multiplication; torch.exp would become libdevice's, which the interpreter does not know."""
    return hl.inline_triton("tl.exp({0})", args=(x,), output_like=x)


def held_kernel(x, out):
    for rows in hl.tile(x.size(0)):
        value = x[rows, :].to(torch.float32)
        power = exp(value - torch.amax(value, dim=1, keepdim=True))
        out[rows, :] = (power / torch.sum(power, dim=1, keepdim=True)).to(out.dtype)


def long_kernel(x, out):
    for rows in hl.tile(x.size(0)):
        peak, total = hl.full([rows], -math.inf, torch.float32), hl.zeros([rows], torch.float32)
        for columns in hl.tile(x.size(1)):
            value = x[rows, columns].to(torch.float32)
            higher = torch.maximum(peak, torch.amax(value, dim=1))
            shift = torch.where(higher == -math.inf, 0.0, higher)  # nothing but -inf so far: -inf - -inf would be nan for good
            total = total * exp(peak - shift) + torch.sum(exp(value - shift[:, None]), dim=1)
            peak = higher
        for columns in hl.tile(x.size(1)):
            value = x[rows, columns].to(torch.float32)
            out[rows, columns] = (exp(value - peak[:, None]) / total[:, None]).to(out.dtype)


# Elements and warps a program, of as many rows as that makes. The first is what the unnamed variant takes, until a GPU has said otherwise.
WAYS = ((4096, 8), (4096, 4), (2048, 4), (8192, 8), (8192, 16))
HELD, LANES = 16384, 1024  # columns of a row in registers; how many of them a warp has at most


def way_of(elements: int, warps: int, static: bool, x: Tensor) -> Way:
    wide = 1 << (x.shape[1] - 1).bit_length()
    if wide > HELD:
        return Way(long_kernel, {"block_sizes": [1, elements, elements], "num_warps": warps, "num_stages": 2}, static)
    rows = min(max(1, elements // wide), 1 << (x.shape[0] - 1).bit_length())
    return Way(held_kernel, {"block_sizes": [rows], "num_warps": max(warps, wide // LANES)}, static)


def build(elements: int, warps: int, static: bool, x: Tensor, out: Tensor) -> Bind:
    return built(way_of(elements, warps, static, x), (x, out))


def build_plain(x: Tensor, out: Tensor) -> Bind:
    return called(way_of(*WAYS[0], True, x), (x, out))


VARIANTS = {
    "tile{}x{}".format(*way) if i else "": Variant(
        in_float32(partial(build, *way, True)), "{} elements and {} warps a program; long rows are read twice".format(*way)
    )
    for i, way in enumerate(WAYS)
}
VARIANTS["sized"] = Variant(in_float32(partial(build, *WAYS[0], False)), "as the unnamed one, sizes and strides arguments")
VARIANTS["plain"] = Variant(in_float32(build_plain), "as the unnamed one, by Helion's own launcher")
