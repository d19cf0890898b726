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


# Elements and warps a program, of as many rows as that makes. By H100: the first for rows that are held, LONG for longer ones.
WAYS = ((2048, 4), (4096, 4), (4096, 8), (8192, 8), (8192, 16))
LONG = (8192, 8)
HELD, LANES = 16384, 1024  # columns of a row in registers; how many of them a warp has at most


def way_of(named: tuple[int, int] | None, static: bool, x: Tensor) -> Way:
    wide = 1 << (x.shape[1] - 1).bit_length()
    elements, warps = named or (WAYS[0] if wide <= HELD else LONG)
    if wide > HELD:
        return Way(long_kernel, {"block_sizes": [1, elements, elements], "num_warps": warps, "num_stages": 2}, static)
    rows = min(max(1, elements // wide), 1 << (x.shape[0] - 1).bit_length())
    return Way(held_kernel, {"block_sizes": [rows], "num_warps": max(warps, wide // LANES)}, static)


def build(named: tuple[int, int] | None, static: bool, x: Tensor, out: Tensor) -> Bind:
    return built(way_of(named, static, x), (x, out))


def build_plain(x: Tensor, out: Tensor) -> Bind:
    return called(way_of(None, True, x), (x, out))


def variant(summary: str, named: tuple[int, int] | None = None, static: bool = True) -> Variant:
    return Variant(in_float32(partial(build, named, static)), summary)


VARIANTS = {
    "": variant("rows in registers, or of more than 16384 columns read twice"),
    **{f"tile{n}x{warps}": variant(f"{n} elements and {warps} warps a program", (n, warps)) for n, warps in WAYS},
    "sized": variant("as the unnamed one, sizes and strides arguments", static=False),
    "plain": Variant(in_float32(build_plain), "as the unnamed one, by Helion's own launcher"),
}
