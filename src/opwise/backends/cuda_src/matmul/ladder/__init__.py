"""Plans of the rungs: one kernel per rung and dtype. Each rung adds one idea to the one before.

ladder.cu runs on any GPU. For 16 bits on sm_90 tma.cu follows, then one configuration of kernels/wgmma.cuh.
"""

from __future__ import annotations

from opwise.backends.cuda_src.matmul.configurations import HALF, tma_takes
from opwise.backends.cuda_src.matmul.kernels.wgmma import Wgmma
from opwise.backends.cuda_src.plan import ITEM_BYTES, VECTOR_BYTES, Matrix, Plan
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import UnsupportedWorkload

# Rows and columns of the tile of C, threads of its block: as in ladder.cu.
SHARED, MICRO = (32, (32, 32, 1)), (128, (256, 1, 1))
RUNGS = {
    "shared": ("a 32 x 32 tile of each factor in shared memory, one element a thread", *SHARED),
    "registers": ("128 x 128 a block, 8 x 8 a thread in registers", *MICRO),
    "vectors": ("128 x 128 a block, 8 x 8 a thread, 16-byte loads and stores", *MICRO),
}
HOPPER_RUNGS = {
    "tma": "sm_90, 16 bits: 128 x 128 a CTA, tiles by TMA, multiplied by wgmma",
    "persistent": "sm_90, 16 bits: a CTA an SM goes on from tile to tile, a producer warpgroup, 128 x 256",
}
PERSISTENT = Wgmma(128, 256, 4)
TMA_TILE, TMA_DEPTH, TMA_STAGES = 128, 64, 4  # as in tma.cu
GRID_LIMIT = 2**31 - 1


def plan(rung: str, m: int, k: int, n: int, dtype: str, aligned: bool) -> Plan:
    """The plan of A (m, k) B (k, n) on a rung. aligned: all three addresses are multiples of 16 bytes.

    `vectors` falls back to `registers` for unaligned addresses or rows. Raises UnsupportedWorkload for more tiles than a grid has blocks.
    """
    if not aligned or k * ITEM_BYTES[dtype] % VECTOR_BYTES or n * ITEM_BYTES[dtype] % VECTOR_BYTES:
        rung = "registers" if rung == "vectors" else rung
    _, side, block = RUNGS[rung]
    tiles = -(-m // side) * -(-n // side)
    if tiles > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul:{rung}: a {m} x {n} product has {tiles} tiles of {side} x {side}, a grid {GRID_LIMIT} blocks at "
                                  "most: use the unnamed variant")  # fmt: skip
    return Plan(f"matmul_ladder_{rung}_{dtype}", (tiles, 1, 1), block)


def plan_hopper(rung: str, product: Product, machine: Machine) -> Plan:
    """The plan of a rung for sm_90. Raises UnsupportedWorkload except for 16 bits on sm_90 with rows aligned to 16 bytes."""
    if product.kind not in HALF or not tma_takes(product, machine):
        given = f"{product.kind} on sm_{''.join(map(str, machine.capability))}, on {product.vector_bytes} bytes"
        raise UnsupportedWorkload(f"matmul:{rung} takes float16 and bfloat16 on sm_90, addresses and rows on 16 bytes; given {given}: "
                                  "use the unnamed variant")  # fmt: skip
    if rung == "persistent":
        return PERSISTENT.launch(product, machine)
    m, k, n, kind = product[:4]
    maps = Matrix(m, k, TMA_TILE, TMA_DEPTH), Matrix(k, n, TMA_DEPTH, 64)
    shared = TMA_STAGES * (2 * TMA_DEPTH * 2 * TMA_TILE + 8) + 1024
    return Plan(f"matmul_ladder_tma_{kind}", (-(-m // TMA_TILE) * -(-n // TMA_TILE), 1, 1), (256, 1, 1), shared, matrices=maps)
