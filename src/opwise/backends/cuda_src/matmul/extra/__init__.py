"""Kernels that serve only unaligned, skinny or tiny products. OPWISE_EXTRA=off switches all of them off: a plan then offers the
configurations of `kernels` alone, and no unit of these is compiled.

    unaligned_tma   16 bits and TF32 whose rows begin anywhere: TMA by a map for each residue of the row number
    small_gemm      few tiles, short K: one prefetched step, or a cluster that shares K
    skinny_m        16 rows of A at most: B goes straight to registers
    skinny_n        5 to 16 columns of B, by mma.sync
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opwise.backends.cuda_src.matmul.configurations import Config

SWITCH = "OPWISE_EXTRA"


def enabled() -> bool:
    """Raises ValueError for a value of OPWISE_EXTRA that is neither on nor off."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ValueError(f"{SWITCH} is {value!r}: it may be on, which is the default, or off")
    return value == "on"


@cache
def configs() -> tuple[Config, ...]:
    """All of them, whether or not they are switched off."""
    from opwise.backends.cuda_src.matmul.extra import skinny_m, skinny_n, small_gemm, unaligned_tma

    return (*unaligned_tma.CONFIGS, *small_gemm.CONFIGS, *skinny_m.CONFIGS, *skinny_n.CONFIGS)
