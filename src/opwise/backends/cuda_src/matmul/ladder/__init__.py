"""What the rungs of ladder.cu are launched with: a kernel a rung and dtype. They differ in one idea each, and nothing is chosen."""

from __future__ import annotations

from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Plan
from opwise.backends.protocol import UnsupportedWorkload

# Rows and columns of the tile of C, threads of its block: as in ladder.cu.
SHARED, MICRO = (32, (32, 32, 1)), (128, (256, 1, 1))
RUNGS = {
    "shared": ("a 32 x 32 tile of each factor in shared memory, one element a thread", *SHARED),
    "registers": ("128 x 128 a block, 8 x 8 a thread in registers", *MICRO),
    "vectors": ("128 x 128 a block, 8 x 8 a thread, 16-byte loads and stores", *MICRO),
}
GRID_LIMIT = 2**31 - 1


def plan(rung: str, m: int, k: int, n: int, dtype: str, aligned: bool) -> Plan:
    """A (m, k) B (k, n) on that rung. `aligned`: all three addresses are multiples of 16 bytes.

    Where addresses or rows are off 16 bytes `vectors` is `registers`. Raises UnsupportedWorkload for more tiles than a grid has blocks.
    """
    if not aligned or k * ITEM_BYTES[dtype] % VECTOR_BYTES or n * ITEM_BYTES[dtype] % VECTOR_BYTES:
        rung = "registers" if rung == "vectors" else rung
    _, side, block = RUNGS[rung]
    tiles = -(-m // side) * -(-n // side)
    if tiles > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul:{rung}: a {m} x {n} product has {tiles} tiles of {side} x {side}, a grid {GRID_LIMIT} blocks at "
                                  "most: use the unnamed variant")  # fmt: skip
    return Plan(f"matmul_ladder_{rung}_{dtype}", (tiles, 1, 1), block)
