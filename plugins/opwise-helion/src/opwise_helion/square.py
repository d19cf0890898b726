"""square in Helion: reads n, writes n elements, one multiplication in float32 and one rounding each."""

from __future__ import annotations

import helion.language as hl
import torch

from opwise_helion import elementwise


def square_kernel(x, out):
    for block in hl.tile(x.size(0)):
        value = x[block].to(torch.float32)
        out[block] = (value * value).to(out.dtype)


VARIANTS = elementwise.variants(square_kernel)
