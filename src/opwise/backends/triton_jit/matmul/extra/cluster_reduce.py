"""Products of few tiles on sm_90, through pointers: a thread block cluster of S >= 1 programs splits a tile's K.

Each program multiplies its part of the steps and stores its partial sums to its own shared memory, over the loop's tiles. Then it reads its
share of the tile, BM * BN / S elements, from all S programs (distributed shared memory) and adds it up in rank order. Only the product is
written to global memory, and it is the same in every run.

Triton cannot express a cluster whose programs work on different data, so PTX addresses the other programs. The kernel is compiled for one
program; only the launcher knows of clusters (common/clusters.py). The kernel assumes that Triton keeps nothing in shared memory (from the
symbol `global_smem` on) after the last step: tests/test_triton_cluster_reduce.py checks compiled kernels for that.

PREFETCH: cp.async cannot copy 16-bit elements of unaligned rows to shared memory, so Triton loads them to registers, and waits for a step's
loads where it multiplies them. With PREFETCH the next step's loads are issued before. It also serves TF32 factors: they are rounded in
registers, so stages in shared memory would make them pass through it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from opwise.backends.protocol import Bind, Launch
from opwise.backends.triton_jit.common.clusters import in_clusters
from opwise.backends.triton_jit.common.launch import built
from opwise.backends.triton_jit.common.portable import device_function, narrow
from opwise.backends.triton_jit.common.specimen import POINTERS, Specimen
from opwise.backends.triton_jit.matmul.configurations import FREE, Config
from opwise.backends.triton_jit.matmul.configurations import PAD as SUMS_PAD
from opwise.backends.triton_jit.matmul.pointers import factor
from opwise.backends.triton_jit.matmul.tma import tile_at

PAD = tl.constexpr(SUMS_PAD)


@triton.constexpr_function
def gathering(split: int, words: int) -> str:
    """PTX: `words` neighbouring sums at a byte offset in shared memory, of all `split` ranks, added up in rank order."""
    sums = [[f"m{rank * words + w}" for w in range(words)] for rank in range(split)]
    lines = [f"{{ .reg .f32 m<{split * words}>; .reg .b32 here, there; mov.u32 here, global_smem; add.u32 here, here, ${words};"]
    for rank, those in enumerate(sums):
        kind, to = (f".v{words}", f"{{{', '.join(those)}}}") if words > 1 else ("", those[0])
        lines.append(f"mapa.shared::cluster.u32 there, here, {rank}; ld.shared::cluster{kind}.f32 {to}, [there];")
    lines += [f"add.f32 {first}, {first}, {other};" for those in sums[1:] for first, other in zip(sums[0], those, strict=True)]
    return " ".join([*lines, *(f"mov.f32 ${w}, {first};" for w, first in enumerate(sums[0])), "}"])


@triton.constexpr_function
def gathered(words: int) -> str:
    return ",".join(["=f"] * words + ["r", "~{memory}"])


@triton.constexpr_function
def singles(count: int) -> Any:
    return (tl.float32,) * count


@triton.jit
def said(x, TEXT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each thread executes TEXT. x: any int, since inline assembly needs an operand."""
    tl.inline_asm_elementwise(TEXT, "=r,r,~{memory}", [x], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def reduce_partials(out, total, part, rows_left, columns_left, stride, S: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds up the cluster's partial sums, `total`, BM x BN; each program stores its share: rows, or part of one."""
    BN: tl.constexpr = total.shape[1]
    PITCH: tl.constexpr = BN + PAD
    row, column = tl.arange(0, total.shape[0]), tl.arange(0, BN)
    mine = (row[:, None] * PITCH + column[None, :]) * 4
    tl.debug_barrier()  # before it other warps may still read the last step's tiles
    tl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, global_smem; add.u32 at, at, $2; st.shared.f32 [at], $1; mov.b32 $0, 0; }", "=r,f,r,~{memory}",
        [total, mine], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    said(part, "{ barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }")
    UNITS: tl.constexpr = total.shape[0] * BN // S // WORDS
    at = (tl.arange(0, UNITS) + part * UNITS) * WORDS
    m, n = at // BN, at % BN
    TEXT: tl.constexpr = gathering(S, WORDS)
    KINDS: tl.constexpr = gathered(WORDS)
    sums = tl.inline_asm_elementwise(TEXT, KINDS, [(m * PITCH + n) * 4], dtype=singles(WORDS), is_pure=False, pack=1)
    said(part, "{ barrier.cluster.arrive.release.aligned; mov.b32 $0, $1; }")
    for i in tl.static_range(WORDS):
        tl.store(out + m * stride + (n + i), sums[i].to(out.dtype.element_ty), mask=(m < rows_left) & (n + i < columns_left))
    # No program exits before the others have read its shared memory.
    said(part, "{ barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1; }")


@device_function
def load_step(a, b, a_at, b_at, k, left, inside, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr):  # type: ignore[no-untyped-def]
    """One step's tiles of a and b. k: 0 to BK - 1. left: elements of K from here on."""
    if EVEN_K:
        return tl.load(a + a_at), tl.load(b + b_at) if EVEN_N else tl.load(b + b_at, mask=inside, other=0.0)
    return (
        tl.load(a + a_at, mask=(k < left)[None, :], other=0.0),
        tl.load(b + b_at, mask=(k < left)[:, None] & inside, other=0.0),
    )


@triton.jit
def cluster_reduce_kernel(a, b, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                    EVEN_N: tl.constexpr,
                    EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, S: tl.constexpr, PREFETCH: tl.constexpr,
                    WORDS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Programs S i to S i + S - 1 compute tile i. K at least 1. WORDS: neighbouring sums that a thread reads at once, 1, 2 or 4."""
    tile_m, tile_n = tile_at(tl.program_id(0) // S, M, N, BM, BN, GROUP)
    part = tl.program_id(0) % S
    steps = tl.cdiv(K, BK)
    first, end = steps * part // S * BK, steps * (part + 1) // S * BK
    rows_left, columns_left = M - tile_m * BM, N - tile_n * BN
    row, column, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    # As in pointers.py's pointer_kernel.
    a += (tile_m * BM).to(tl.int64) * K + first
    b += tl.cast(first, tl.int64) * N + tile_n * BN
    out += (tile_m * BM).to(tl.int64) * N + tile_n * BN
    stride_a, stride_b = tl.cast(K, tl.int64 if WIDE else tl.int32), tl.cast(N, tl.int64 if WIDE else tl.int32)
    a_at = tl.minimum(row, rows_left - 1)[:, None] * stride_a + k[None, :]
    b_at = k[:, None] * stride_b + column[None, :]
    b_step = tl.cast(N, tl.int64) * BK
    inside = (column < columns_left)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    if PREFETCH:
        end = tl.minimum(end, K)
        a_tile, b_tile = load_step(a, b, a_at, b_at, k, end - first, inside, EVEN_N, False)
        for start in range(first, end, BK):
            a += BK
            b += b_step
            a_next, b_next = load_step(a, b, a_at, b_at, k, end - start - BK, inside, EVEN_N, False)
            total = tl.dot(factor(a_tile, PRECISION), factor(b_tile, PRECISION), total, input_precision=PRECISION)
            a_tile, b_tile = a_next, b_next
    else:
        for start in range(first, end, BK):
            a_tile, b_tile = load_step(a, b, a_at, b_at, k, K - start, inside, EVEN_N, EVEN_K)
            total = tl.dot(factor(a_tile, PRECISION), factor(b_tile, PRECISION), total, input_precision=PRECISION)
            a += BK
            b += b_step
    if S > 1:
        reduce_partials(out, total, part, rows_left, columns_left, stride_b, S, WORDS)
    else:
        at = row[:, None] * stride_b + column[None, :]
        tl.store(out + at, narrow(total, out.dtype.element_ty), mask=(row < rows_left)[:, None] & inside)


def constants(config: Config, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel's constexprs. fixed: those of pointers.constants."""
    each = config.BM * config.BN // config.split_k // (config.warps * 32)  # sums a thread; 0 if there are fewer than threads
    return {**fixed, "S": config.split_k, "PREFETCH": config.prefetch, "WORDS": max(min(each, 4), 1)}


def with_room(compiled: Any, size: int, shared: int) -> None:
    """Has the launcher make clusters of `size` programs with at least `shared` bytes of shared memory each: the PTX keeps sums there, which
    Triton does not count. Raises RuntimeError as in_clusters does, and where `shared` is above both FREE and what Triton requests.
    """
    asked = compiled.metadata.shared
    if shared > max(asked, FREE):
        raise RuntimeError(f"{shared} bytes of shared memory wanted, Triton asks for {asked}: more than {FREE} have to be asked for")
    wanted = (compiled.metadata.num_warps, size, max(asked, shared))
    if compiled.packed_metadata != wanted:  # equal if the kernel was built before
        in_clusters(compiled, size)
        compiled.packed_metadata = wanted


def build(a: Tensor, b: Tensor, out: Tensor, config: Config, fixed: Mapping[str, Any]) -> Bind:
    """out = a @ b, of (M, K) and (K, N). fixed: those of pointers.constants."""
    m, k, n = *a.shape, b.shape[1]
    grid, samples, given = (config.tiles(m, n), 1, 1), (a, b, out, m, n, k), {**constants(config, fixed), **config.options}
    if config.split_k > 1:  # the same compiled kernel that `built` then finds in the cache
        with_room(cluster_reduce_kernel.warmup(*samples, grid=grid, **given), config.split_k, config.exchanged_bytes)
    ready = built(cluster_reduce_kernel, grid, *samples, **given)

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return ready(a, b, out, m, n, k)

    return bind


def specimen(config: Config, dtype: str, fixed: Mapping[str, Any], odd: bool) -> Specimen:
    """odd: unaligned pointers and sizes."""
    types = {**dict.fromkeys(("a", "b", "out"), POINTERS[dtype]), "M": "i32", "N": "i32", "K": "i32"}
    return Specimen(cluster_reduce_kernel, types, constants(config, fixed), config.options, tuple(types) if odd else ())
