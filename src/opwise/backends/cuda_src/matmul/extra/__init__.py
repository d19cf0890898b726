"""Kernels only for unaligned, skinny or tiny products. With OPWISE_EXTRA=off plans use the configurations of `kernels` alone, and the units
of these kernels are not compiled.

    unaligned_tma   16 bits and TF32 with unaligned rows: TMA with one map per residue class of rows
    small_gemm      few tiles, short K: one prefetched step, or split-K over a cluster
    skinny_m        at most 16 rows of A: B is loaded straight to registers
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
    """Whether OPWISE_EXTRA is on, the default. Raises ValueError for a value other than on and off."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ValueError(f"{SWITCH} is {value!r}: it may be on, which is the default, or off")
    return value == "on"


@cache
def configs() -> tuple[Config, ...]:
    """All configurations, regardless of OPWISE_EXTRA."""
    from opwise.backends.cuda_src.matmul.extra import skinny_m, skinny_n, small_gemm, unaligned_tma

    return (*unaligned_tma.CONFIGS, *small_gemm.CONFIGS, *skinny_m.CONFIGS, *skinny_n.CONFIGS)
