"""Kernels that serve only unaligned, skinny or tiny products. They are imported when a plan first asks for them, and OPWISE_EXTRA=off
switches all of them off: a plan then offers the kernels of `kernels` alone, and no unit of these is compiled.

    unaligned_tma   16 bits and TF32 whose rows begin anywhere: TMA by a map for each residue of the row number
    small_gemm      few tiles, short K: one prefetched step, or a cluster that shares K
    skinny_m        16 rows of A at most: B goes straight to registers
    skinny_n        5 to 16 columns of B, by mma.sync
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opwise.backends.cuda_src.matmul.extra import skinny_m, skinny_n, small_gemm, unaligned_tma

    Tile = skinny_m.Tile | skinny_n.Tile | small_gemm.Tile | unaligned_tma.Tile

SWITCH = "OPWISE_EXTRA"


def enabled() -> bool:
    """Raises ValueError for a value of OPWISE_EXTRA that is neither on nor off."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise ValueError(f"{SWITCH} is {value!r}: it may be on, which is the default, or off")
    return value == "on"


def offered(
    m: int, k: int, n: int, kind: str, granule: int, alignment: int, sm_count: int, hopper: bool, mma: bool, gemv: str
) -> tuple[dict[str, Tile], bool]:
    """Name -> kernel, of all that take A (m, k) B (k, n); and do skinny_m's come in the place of gemv's?

    granule: bytes that divide addresses and rows; alignment: addresses alone. hopper: do the kernels run that were measured on sm_90? mma:
    does mma.sync? gemv: "rows" or "columns", where gemv has a kernel of that form, else "".
    """
    if not enabled():
        return {}, False
    from opwise.backends.cuda_src.matmul.extra import skinny_m, skinny_n, small_gemm, unaligned_tma

    columns = skinny_n.fitting(m, k, n, kind, alignment, hopper) if mma else ()
    rows = skinny_m.fitting(m, k, n, kind, granule, sm_count) if hopper else ()
    small = small_gemm.fitting(m, k, n, kind, granule, sm_count) if hopper else ()
    unaligned = unaligned_tma.fitting(m, k, n, kind, granule) if hopper else ()
    instead = bool(rows) and gemv == "rows" and skinny_m.before_gemv(m, k, n, kind)
    found: tuple[Tile, ...] = (*columns, *(rows if instead or not gemv else ()), *small, *unaligned)
    return {tile.name: tile for tile in found}, instead
