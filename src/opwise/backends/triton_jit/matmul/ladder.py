"""The rungs of matmul in Triton below the one to use, each one idea above the one before: docs/kernels.md climbs them.

    textbook    a tile of 64 x 64 a program
    tiles       the textbook's kernel with a tile of 128 x 256: what a program fetches it uses 128 and 256 times, not 64
    grouped     the same, and programs that run at once share rows of a and columns of b in L2
    pointers    the same tiles without masks where none is needed: pointers.py's kernel for every GPU, on those with TMA too

The first three are here to be read and measured against: 16 bits, and 32-bit offsets within a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Build, Launch, UnsupportedWorkload
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.portable import INTERPRETING, narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul.configurations import GROUP, Config
from opwise.backends.triton_jit.matmul.cost import shared_memory
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
    """GROUP = 1: the tiles of a row of tiles one after the other."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    row, column = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + row[:, None] * K + k[None, :], mask=(row[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + column[None, :], mask=(k[:, None] < K) & (column[None, :] < N), other=0.0)
        if INTERPRETING:  # whose products of bfloat16 are those of its bits
            left, right = widen(left), widen(right)
        total = tl.dot(left, right, total)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(out + row[:, None] * N + column[None, :], narrow(total, out.dtype.element_ty), mask=inside)


TEXTBOOK_CONFIG = Config(64, 64, 32, 4, 3)
CONFIG = Config(128, 256, 64, 8, 3)
GROUPS = {"tiles": 1, "grouped": GROUP}
SUMMARIES = {
    "textbook": "a 64 x 64 tile a program, 13 lines, float16", "tiles": "a 128 x 256 tile a program, 16 bits",
    "grouped": "128 x 256 tiles in grouped order, 16 bits",
}  # fmt: skip


def build_rung(rung: str, a: Tensor, b: Tensor, out: Tensor) -> Bind:
    """Raises UnsupportedWorkload for float32, for matrices whose offsets pass 2^31, and where the tiles do not fit shared memory."""
    m, k, n = *a.shape, b.shape[1]
    if a.dtype == torch.float32:
        raise UnsupportedWorkload(f"matmul:{rung}: float32 given, float16 and bfloat16 are taken: use the unnamed variant")
    if max(m * k, k * n, m * n) >= 2**31 - 2**24:
        raise UnsupportedWorkload(f"matmul:{rung}: a ({m}, {k}) and b ({k}, {n}) given, whose offsets or the product's pass 32 bits: "
                                  "use the unnamed variant")  # fmt: skip
    needed = CONFIG.shared_bytes(a.element_size())
    if a.device.type == "cuda" and needed > (held := shared_memory(a.device)):
        raise UnsupportedWorkload(f"matmul:{rung}: its tiles in flight take {needed} bytes of shared memory, a block has {held} here: "
                                  "use the unnamed variant")  # fmt: skip
    fixed = {**_constants(rung), **CONFIG.options}
    ready = built(tile_kernel, (CONFIG.tiles(m, n), 1, 1), a, b, out, m, n, k, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


def build_textbook(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    if a.dtype != torch.float16:
        raise UnsupportedWorkload(f"the textbook kernel is written for float16, given {a.dtype}")
    if max(m * k, k * n, m * n) >= 2**31 - 2**24 or -(-n // 64) > 65535:
        raise UnsupportedWorkload("the textbook kernel has 32-bit offsets and a tile column a grid row: a matrix is too large")
    grid = (-(-m // 64), -(-n // 64), 1)
    ready = built(textbook_kernel, grid, a, b, out, m, n, k, BM=64, BN=64, BK=32, **TEXTBOOK_CONFIG.options)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


BUILDS: Mapping[str, Build] = {"textbook": build_textbook, **{rung: partial(build_rung, rung) for rung in GROUPS}}


def _constants(rung: str) -> dict[str, int]:
    return {"BM": CONFIG.BM, "BN": CONFIG.BN, "BK": CONFIG.BK, "GROUP": GROUPS[rung]}


def specimens() -> dict[str, Specimen]:
    """Of float16 alone: bfloat16's differ in the type of the product's instruction."""
    types = {**dict.fromkeys(("a", "b", "out"), POINTERS["float16"]), **dict.fromkeys("MNK", "i32")}
    textbook = Specimen(textbook_kernel, types, {"BM": 64, "BN": 64, "BK": 32}, TEXTBOOK_CONFIG.options)
    return {"textbook, float16": textbook} | {
        f"{rung}, float16": Specimen(tile_kernel, types, _constants(rung), CONFIG.options) for rung in GROUPS
    }
