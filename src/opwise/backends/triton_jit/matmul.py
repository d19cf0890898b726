"""matmul in Triton: tiles of the product, one a program, accumulated in float32.

Programs go through the tiles in groups of GROUP tile rows, so that those running at once share rows of a and columns of b in L2.
On sm_90, where every row starts on 16 bytes, products of 17 rows and more are fetched through tensor descriptors (matmul_tma.py), those of
float32 if they fill the GPU, in tiles of 64 x 64 at the least, those of 16 bits, on later GPUs too, from 2^28 multiply-adds on. Everything
else goes through pointers, on sm_90 by the tile that is quickest by a model (matmul_pointers.py), whose K a cluster's programs may share
(matmul_shared_k.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch, UnsupportedWorkload, Variant
from opwise.backends.triton_jit import matmul_ladder, matmul_shared_k, matmul_tma
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.portable import narrow
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul_config import GROUP, Config, filling
from opwise.backends.triton_jit.matmul_factor import factor
from opwise.backends.triton_jit.matmul_pointers import FREE, SPLITS, TILES, exchanged_bytes, model_holds, quickest_through_pointers
from opwise.backends.triton_jit.matmul_tma import tile_of
from opwise.ops.spec import tf32_allowed


@triton.jit
def pointer_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_N: tl.constexpr,
                   EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    rows_left, columns_left = M - tile_m * BM, N - tile_n * BN
    row, column, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    # 64-bit addresses of the tile, which are scalars, and offsets within it, which are as wide as they must be: half the registers.
    a += (tile_m * BM).to(tl.int64) * K
    b += tile_n * BN
    out += (tile_m * BM).to(tl.int64) * N + tile_n * BN
    stride_a, stride_b = tl.cast(K, tl.int64 if WIDE else tl.int32), tl.cast(N, tl.int64 if WIDE else tl.int32)
    # Rows past the end repeat the last one and are not stored: no mask on a. b's columns keep their mask, since repeating one
    # would hide from Triton that they are contiguous.
    a_at = tl.minimum(row, rows_left - 1)[:, None] * stride_a + k[None, :]
    b_at = k[:, None] * stride_b + column[None, :]
    b_step = tl.cast(N, tl.int64) * BK
    inside = (column < columns_left)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN_K:
            a_tile = tl.load(a + a_at)
            b_tile = tl.load(b + b_at) if EVEN_N else tl.load(b + b_at, mask=inside, other=0.0)
        else:
            a_tile = tl.load(a + a_at, mask=(k < K - start)[None, :], other=0.0)
            b_tile = tl.load(b + b_at, mask=(k < K - start)[:, None] & inside, other=0.0)
        total = tl.dot(factor(a_tile, PRECISION), factor(b_tile, PRECISION), total, input_precision=PRECISION)
        a += BK
        b += b_step
    at = row[:, None] * stride_b + column[None, :]
    tl.store(out + at, narrow(total, out.dtype.element_ty), mask=(row < rows_left)[:, None] & inside)


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


# On other GPUs than sm_90. Largest first: the first whose tiles fill the GPU and whose shared memory the GPU has. Without 16-byte accesses,
# 16-bit tiles come through registers, element by element, and must be small to stay there; 4-byte elements are copied to shared memory
# asynchronously all the same.
POINTER_CONFIGS = {
    "16-bit": (Config(128, 256, 64, 8, 3), Config(128, 128, 64, 8, 3), Config(128, 64, 64, 4, 4), Config(64, 64, 64, 4, 4)),
    "unaligned": (Config(128, 128, 32, 8, 2), Config(64, 64, 32, 4, 2)),
    "tf32": (Config(128, 128, 32, 8, 3), Config(128, 64, 32, 8, 3), Config(64, 64, 32, 4, 3)),
    "ieee": (Config(128, 128, 16, 8, 3), Config(128, 64, 16, 8, 3), Config(64, 64, 16, 4, 3)),
}
# Few rows: the product is bound by reading b, and wants many narrow tiles with long steps.
FLAT_CONFIGS = {
    "16-bit": (Config(16, 64, 128, 4, 4), Config(16, 32, 128, 4, 4)),
    "unaligned": (Config(16, 64, 64, 4, 2), Config(16, 32, 64, 4, 2)),
    "tf32": (Config(16, 64, 64, 4, 4), Config(16, 32, 64, 4, 4)),
    "ieee": (Config(16, 64, 32, 4, 3), Config(16, 32, 32, 4, 3)),
}
TEXTBOOK_CONFIG = Config(64, 64, 32, 4, 3)


def build(a: Tensor, b: Tensor, out: Tensor, tma: bool = True) -> Bind:
    """tma: may tensor descriptors be used? Without, everything goes through pointers."""
    precision = "tf32" if a.dtype == torch.float32 and tf32_allowed() else "ieee"
    m, k, n = *a.shape, b.shape[1]
    if tma and matmul_tma.fit(a, b, out) and (bind_maps := matmul_tma.build(a, b, out, precision)):
        return bind_maps
    aligned = _aligned(a, b, out)
    kind = precision if a.dtype == torch.float32 else "16-bit" if aligned else "unaligned"
    if model_holds(a.device):
        config = quickest_through_pointers("odd tf32" if kind == "tf32" and not aligned else kind, m, n, k, a)
    else:
        config = filling((FLAT_CONFIGS if m <= 16 else POINTER_CONFIGS)[kind], m, n, a)
    return through_pointers(a, b, out, config, precision)


def through_pointers(a: Tensor, b: Tensor, out: Tensor, config: Config, precision: str) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    fixed = _pointer_constants(config, n, k, precision)
    if config.split > 1 or config.ahead:
        return matmul_shared_k.build(a, b, out, config, fixed)
    ready = built(
        pointer_kernel, (config.tiles(m, n), 1, 1), a, b, out, m, n, k,
        **fixed, **config.options,
    )  # fmt: skip

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


def _aligned(*tensors: Tensor) -> bool:
    """What Triton can prove of a row's alignment: it knows of an int whether it is a multiple of 16, and no more."""
    return all(x.shape[1] % 16 == 0 and x.data_ptr() % 16 == 0 for x in tensors)


def _pointer_constants(config: Config, n: int, k: int, precision: str) -> dict[str, Any]:
    even = {"EVEN_N": n % config.BN == 0, "EVEN_K": k % config.BK == 0}
    wide = max(config.BM * k, max(config.BM, config.BK) * n) >= 2**31 - 2**16
    return {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, **even, "WIDE": wide, "PRECISION": precision}


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


VARIANTS = {
    "": Variant(build, "tiles in grouped order, through tensor descriptors where they fit"),
    "textbook": Variant(build_textbook, "a 64 x 64 tile a program, 13 lines, float16"),
    **{rung: Variant(each, matmul_ladder.SUMMARIES[rung]) for rung, each in matmul_ladder.BUILDS.items()},
    "pointers": Variant(partial(build, tma=False), "tiles in grouped order, through pointers on every GPU"),
}


def _sharing_k(dtype: str, kind: str, precision: str) -> dict[str, Specimen]:
    """Each tile on sm_90 once whose K programs may share, by one number of them or another."""
    found = {}
    for config, split in zip(TILES[kind], cycle(SPLITS[:0:-1])):
        shared, odd = replace(config, split=split), kind != "16-bit"
        if exchanged_bytes(shared) > FREE:
            shared = config
        if shared.ahead or shared.split > 1:
            fixed = _pointer_constants(shared, int(odd), int(odd), precision)
            found[f"{dtype}, {shared.name}"] = matmul_shared_k.specimen(shared, dtype, fixed, odd)
    return found


def specimens(arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    sizes = {"M": "i32", "N": "i32", "K": "i32"}
    shared = {"sm_80": 163 * 1024}.get(arch, 227 * 1024)
    for dtype in ("float32", "tfloat32", "float16", "bfloat16"):
        precision = "tf32" if dtype == "tfloat32" else "ieee"
        kind = "16-bit" if dtype.endswith("16") else precision
        size = 2 if kind == "16-bit" else 4
        types = {"a": POINTERS[dtype], "b": POINTERS[dtype], "out": POINTERS[dtype], **sizes}
        odd_kind = "unaligned" if kind == "16-bit" else kind
        for config in (*POINTER_CONFIGS[kind], *FLAT_CONFIGS[kind]):
            if config.shared_bytes(size) <= shared:
                fixed = _pointer_constants(config, 0, 0, precision)
                found[f"{dtype}, {config}"] = Specimen(pointer_kernel, types, fixed, config.options)
        for config in (*POINTER_CONFIGS[odd_kind], *FLAT_CONFIGS[odd_kind]):
            for label, n, k in (("", 1, 1), (", wide offsets", 2**29, 2**29)):
                fixed = {**_pointer_constants(config, n, k, precision), "EVEN_N": False, "EVEN_K": False}
                found[f"{dtype}, {config}, unaligned{label}"] = Specimen(pointer_kernel, types, fixed, config.options, tuple(types))
        if arch == "sm_90":
            found |= _sharing_k(dtype, "odd tf32" if kind == "tf32" else kind if dtype != "float16" else odd_kind, precision)
        if (kind == "16-bit" and arch != "sm_80") or arch == "sm_90":
            found |= matmul_tma.specimens(dtype, hopper=arch == "sm_90")
    types = dict.fromkeys(("a", "b", "out"), "*fp16")
    found["textbook, float16"] = Specimen(textbook_kernel, {**types, **sizes}, {"BM": 64, "BN": 64, "BK": 32}, TEXTBOOK_CONFIG.options)
    return found | matmul_ladder.specimens()
