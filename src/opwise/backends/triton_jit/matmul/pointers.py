"""Products by loads through pointers, on every GPU: one tile of the product a program, accumulated in float32."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.portable import INTERPRETING, device_function, narrow, widen
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul import extra
from opwise.backends.triton_jit.matmul.configurations import FREE, GROUP, POINTER_CONFIGS, SPLITS, Config
from opwise.backends.triton_jit.matmul.tma import tile_of
from opwise.ops.spec import LAYOUTS


@device_function
def factor(x, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x as an operand of tl.dot, of the same shape. PRECISION: "tf32" rounds float32 to TF32, "ieee" leaves x as it is.

    For TF32 Triton passes float32 bits to the tensor core, which truncates the low 13: a relative error of up to 2^-10 a factor. Rounding
    halves it to 2^-11. The interpreter's dot takes bfloat16 for integers, its bits, so it gets float32, which it multiplies exactly.
    """
    if INTERPRETING:
        return widen(x)
    if PRECISION == "tf32":
        return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def pointer_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_M: tl.constexpr,
                   EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, A_T: tl.constexpr,
                   B_T: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A_T, B_T: a is stored as (K, M), b as (N, K). EVEN_M, EVEN_N: a needs no mask along M, b none along N. WIDE: 64-bit offsets."""
    tile_m, tile_n = tile_of(M, N, BM, BN, GROUP)
    rows_left, columns_left = M - tile_m * BM, N - tile_n * BN
    row, column, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    # The tile's base is a 64-bit scalar. Offsets within it have 32 bits where that suffices, which halves their registers.
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32
    a += tile_m * BM if A_T else (tile_m * BM).to(tl.int64) * K
    b += (tile_n * BN).to(tl.int64) * K if B_T else tile_n * BN
    out += (tile_m * BM).to(tl.int64) * N + tile_n * BN
    stride_a, stride_b = tl.cast(M if A_T else K, INDEX), tl.cast(K if B_T else N, INDEX)
    # A K-major factor needs no mask along M or N: rows past the end are clamped to the last one and not stored. A factor contiguous along
    # M or N keeps its mask, since clamping would hide from Triton that its elements are contiguous.
    if A_T:
        a_at = row[:, None] + k[None, :] * stride_a
        a_step = tl.cast(M, tl.int64) * BK
    else:
        a_at = tl.minimum(row, rows_left - 1)[:, None] * stride_a + k[None, :]
        a_step = BK
    if B_T:
        b_at = k[:, None] + tl.minimum(column, columns_left - 1)[None, :] * stride_b
        b_step = BK
    else:
        b_at = k[:, None] * stride_b + column[None, :]
        b_step = tl.cast(N, tl.int64) * BK
    inside = (column < columns_left)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if EVEN_K:
            a_tile = tl.load(a + a_at) if EVEN_M else tl.load(a + a_at, mask=(row < rows_left)[:, None], other=0.0)
            b_tile = tl.load(b + b_at) if EVEN_N else tl.load(b + b_at, mask=inside, other=0.0)
        else:
            left, left_b = (k < K - start)[None, :], (k < K - start)[:, None]
            a_tile = tl.load(a + a_at, mask=left if EVEN_M else left & (row < rows_left)[:, None], other=0.0)
            b_tile = tl.load(b + b_at, mask=left_b if B_T else left_b & inside, other=0.0)
        total = tl.dot(factor(a_tile, PRECISION), factor(b_tile, PRECISION), total, input_precision=PRECISION)
        a += a_step
        b += b_step
    at = row[:, None] * tl.cast(N, INDEX) + column[None, :]
    tl.store(out + at, narrow(total, out.dtype.element_ty), mask=(row < rows_left)[:, None] & inside)


def constants(config: Config, n: int, k: int, precision: str, m: int = 0) -> dict[str, Any]:
    """Constexprs of pointer_kernel and of cluster_reduce.py's kernel. m: needed only where a is stored as (K, M)."""
    a_t, b_t = config.transposed.values()
    even = {"EVEN_N": b_t or n % config.BN == 0, "EVEN_K": k % config.BK == 0}
    spans = config.BK * m if a_t else config.BM * k, config.BN * k if b_t else config.BK * n, config.BM * n
    wide = max(spans) >= 2**31 - 2**16
    return {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": GROUP, **even, "WIDE": wide, "PRECISION": precision}


def of_layout(config: Config, m: int) -> dict[str, bool]:
    """Constexprs of pointer_kernel alone."""
    return {"EVEN_M": config.layout[0] == "N" or m % config.BM == 0, **config.transposed}


def build(a: Tensor, b: Tensor, out: Tensor, config: Config, precision: str) -> Bind:
    m, k, n = *a.shape, b.shape[1]
    fixed = constants(config, n, k, precision, m)
    if config.split_k > 1 or config.prefetch:
        from opwise.backends.triton_jit.matmul.extra import cluster_reduce

        return cluster_reduce.build(a, b, out, config, fixed)
    fixed |= of_layout(config, m) | config.options
    ready = built(pointer_kernel, (config.tiles(m, n), 1, 1), a, b, out, m, n, k, **fixed)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


def specimens(dtype: str, arch: str) -> dict[str, Specimen]:
    found: dict[str, Specimen] = {}
    shared = {"sm_80": 163 * 1024}.get(arch, 227 * 1024)
    precision = "tf32" if dtype == "tfloat32" else "ieee"
    kind, size = ("16-bit", 2) if dtype.endswith("16") else (precision, 4)
    types = {**dict.fromkeys(("a", "b", "out"), POINTERS[dtype]), **dict.fromkeys("MNK", "i32")}
    odd_kind = "unaligned" if kind == "16-bit" else kind
    for config in POINTER_CONFIGS[kind]:
        if config.shared_bytes(size) <= shared:
            fixed = constants(config, 0, 0, precision) | of_layout(config, 0)
            found[f"{dtype}, {config}"] = Specimen(pointer_kernel, types, fixed, config.options)
    for config in POINTER_CONFIGS[odd_kind]:
        for label, n, k in (("", 1, 1), (", wide offsets", 2**29, 2**29)):
            fixed = {**constants(config, n, k, precision), **of_layout(config, 1), "EVEN_N": False, "EVEN_K": False}
            found[f"{dtype}, {config}, unaligned{label}"] = Specimen(pointer_kernel, types, fixed, config.options, tuple(types))
    for layout, *tiles in zip(LAYOUTS[1:], POINTER_CONFIGS[kind], POINTER_CONFIGS[odd_kind], strict=False):
        for odd, config in enumerate(replace(tile, layout=layout) for tile in tiles):
            fixed = constants(config, odd, odd, precision, odd) | of_layout(config, odd)
            name = f"{dtype}, {config.name}" + ", unaligned" * odd
            found[name] = Specimen(pointer_kernel, types, fixed, config.options, tuple(types) if odd else ())
    if arch == "sm_90" and extra.enabled():
        found |= _sharing_k(dtype, "odd tf32" if kind == "tf32" else kind if dtype != "float16" else odd_kind, precision)
    return found


def _sharing_k(dtype: str, kind: str, precision: str) -> dict[str, Specimen]:
    """Specimens of cluster_reduce.py's kernel: each tile once, with the numbers of programs that share K in turn."""
    from opwise.backends.triton_jit.matmul.extra import cluster_reduce
    from opwise.backends.triton_jit.matmul.extra.tiles import TILES

    found = {}
    for config, split in zip(TILES.get(kind, POINTER_CONFIGS[kind.removeprefix("odd ")]), cycle(SPLITS[:0:-1])):
        shared, odd = replace(config, split_k=split), kind != "16-bit"
        if shared.exchanged_bytes > FREE:
            shared = config
        if shared.prefetch or shared.split_k > 1:
            fixed = constants(shared, int(odd), int(odd), precision)
            found[f"{dtype}, {shared.name}"] = cluster_reduce.specimen(shared, dtype, fixed, odd)
    return found
