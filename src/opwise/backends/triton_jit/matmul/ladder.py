"""Teaching variants of matmul in Triton, simplest first, each adding one idea to the one before; docs/kernels.md explains them.

    textbook    a 64 x 64 tile a program
    tiles       the same kernel with a 128 x 256 tile: each loaded element of a is used 256 times, of b 128 times, not 64
    grouped     the same, in an order in which concurrent programs share rows of a and columns of b in L2
    pointers    the same tiles, masks only where needed: pointers.py's kernel, also on GPUs with TMA

The first three are here, to read and as baselines: 16-bit types (textbook: float16 only), and 32-bit offsets within a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Build, Launch, UnsupportedWorkload
from opwise.backends.triton_jit.common.launch import built, machine_of
from opwise.backends.triton_jit.common.portable import INTERPRETING, narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul.configurations import GROUP, Config
from opwise.backends.triton_jit.matmul.descriptors import dtype_of
from opwise.backends.triton_jit.matmul.tma import tile_of


@triton.jit
def textbook_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + row[:, None] * K + k[None, :], mask=(row[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + column[None, :], mask=(k[:, None] < K) & (column[None, :] < N), other=0.0)
        total = tl.dot(left, right, total)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(out + row[:, None] * N + column[None, :], total.to(tl.float16), mask=inside)


@triton.jit
def tile_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """GROUP: tile rows that consecutive programs walk down together. 1: row-major order of tiles."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + row[:, None] * K + k[None, :], mask=(row[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + column[None, :], mask=(k[:, None] < K) & (column[None, :] < N), other=0.0)
        if INTERPRETING:  # whose dot takes bfloat16 for integers, its bits
            left, right = widen(left), widen(right)
        total = tl.dot(left, right, total)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(out + row[:, None] * N + column[None, :], narrow(total, out.dtype.element_ty), mask=inside)


TEXTBOOK = Config(64, 64, 32, 4, 3)
CONFIG = Config(128, 256, 64, 8, 3)
GROUPS = {"tiles": 1, "grouped": GROUP}
SUMMARIES = {
    "textbook": "a 64 x 64 tile a program, 12 lines, float16", "tiles": "a 128 x 256 tile a program, 16 bits",
    "grouped": "128 x 256 tiles in grouped order, 16 bits",
}  # fmt: skip


def build(rung: str, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    """Raises UnsupportedWorkload: dtype not the rung's, 2^31 - 2^24 elements or more, grid.y above 65535, too little shared memory."""
    (m, k), n, kernel, config = a.shape, b.shape[1], *_of(rung)
    taken = "float16" if rung == "textbook" else "float16 and bfloat16"
    needed, held = config.shared_bytes(2), machine_of(a.device).shared_bytes
    why = ""
    if dtype_of(a) not in taken.split(" and "):
        why = f"{dtype_of(a)} given, {taken} taken"
    elif max(m * k, k * n, m * n) >= 2**31 - 2**24 or (rung == "textbook" and -(-n // config.BN) > 65535):
        why = f"a ({m}, {k}) and b ({k}, {n}) given, whose offsets or the product's pass 32 bits, or whose tiles the grid"
    elif needed > held:
        why = f"its pipeline's stages take {needed} bytes of shared memory, a block has {held} here"
    if why:
        raise UnsupportedWorkload(f"matmul:{rung}: {why}: use the unnamed variant")
    grid = (-(-m // config.BM), -(-n // config.BN), 1) if rung == "textbook" else (config.tiles(m, n), 1, 1)
    ready = built(kernel, grid, a, b, out, m, n, k, **_constants(rung), **config.options)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


BUILDS: Mapping[str, Build] = {rung: partial(build, rung) for rung in SUMMARIES}


def _of(rung: str) -> tuple[Any, Config]:
    return (textbook_kernel, TEXTBOOK) if rung == "textbook" else (tile_kernel, CONFIG)


def _constants(rung: str) -> dict[str, int]:
    config = _of(rung)[1]
    return {"BM": config.BM, "BN": config.BN, "BK": config.BK, **({"GROUP": GROUPS[rung]} if rung in GROUPS else {})}


def specimens() -> dict[str, Specimen]:
    """float16 only: bfloat16 differs only in the type of the mma instruction."""
    types = {**dict.fromkeys(("a", "b", "out"), POINTERS["float16"]), **dict.fromkeys("MNK", "i32")}
    return {f"{rung}, float16": Specimen(_of(rung)[0], types, _constants(rung), _of(rung)[1].options) for rung in SUMMARIES}
