"""matmul (m, k) x (k, n), row-major, accumulated in float32: tensor cores for 16-bit and TF32, fused multiply-adds for float32.

Large tiles reuse more, small ones give every multiprocessor something to do, and on Hopper so do blocks that share a tile's K. Rows that
do not start at multiples of 16 bytes take slower copies of the same kernels. The portable kernel is the textbook's, 16 x 16 tiles in
shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numba.types  # noqa: F401 - as a compilation does, after which `from numba import types` is another module: keys of cubins tell which
import torch
from numba import cuda, float32, int64
from torch import Tensor

from opwise.backends.cuda_src import matmul as cuda_matmul
from opwise.backends.cuda_src.matmul.configuration import Kernel as Tile
from opwise.backends.cuda_src.matmul.kernels import wgmma as cuda_wgmma
from opwise.backends.numba_cuda import portable
from opwise.backends.numba_cuda.launch import SIMULATED, Kernel
from opwise.backends.numba_cuda.matmul_elsewhere import FMA_LARGE, FMA_SMALL, SPECIMENS, own_elsewhere, tiles_of, whole_rows
from opwise.backends.numba_cuda.matmul_fma import FmaTile, fma_kernel
from opwise.backends.numba_cuda.matmul_fma_tma import described as fma_factors
from opwise.backends.numba_cuda.matmul_fma_tma import fma_tma_kernel
from opwise.backends.numba_cuda.matmul_map import mapped
from opwise.backends.numba_cuda.matmul_offered import FMA_TILE, IN_PAIRS, TABLE, Way, name_of, offered, own_on_hopper
from opwise.backends.numba_cuda.matmul_pingpong import SHARED_PAIRS, SQUARE, TALL, PingpongTile, pingpong_kernel
from opwise.backends.numba_cuda.matmul_pingpong_tall import tall_kernel
from opwise.backends.numba_cuda.matmul_split import split_kernel
from opwise.backends.numba_cuda.matmul_tensor import LARGE, MEDIUM, SMALL, tensor_kernel
from opwise.backends.numba_cuda.matmul_tensor import Tile as TensorTile
from opwise.backends.numba_cuda.matmul_turned import turned_kernel
from opwise.backends.numba_cuda.matmul_wgmma import wgmma_kernel
from opwise.backends.numba_cuda.matmul_wgmma_tf32 import TILES as TF32_TILES
from opwise.backends.numba_cuda.matmul_wgmma_tf32 import described as factors
from opwise.backends.numba_cuda.matmul_wgmma_tf32 import tf32_kernel
from opwise.backends.protocol import Bind, Launch, Variant
from opwise.backends.tuned import SHIPPED, Choices, look
from opwise.ops.spec import tf32_allowed

PORTABLE_TILE = 16
PORTABLE_ROWS = 16 if SIMULATED else 4  # of a thread: simulated threads are dear
SPLIT_SPECIMENS = ("64x64_s16", "64x128_s1", "128x128_s4")  # those with the most parts, none, and the most sums; others lie in between
ZERO = portable.f32(0.0)


@cache
def portable_kernel(dtype: str) -> Kernel:
    """Tiles of a and b in shared memory; a thread has `per_thread` elements of one column of c, `step` rows apart."""
    load, store, pointer = portable.LOAD[dtype], portable.STORE[dtype], portable.pointer(dtype)
    tile, per_thread = PORTABLE_TILE, PORTABLE_ROWS
    step, of_b = tile // per_thread, tile * tile

    def matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any) -> None:
        tiles = cuda.shared.array(0, float32)  # a's, then b's from `of_b` on
        sums = cuda.local.array(per_thread, float32)
        x, y = cuda.threadIdx.x % tile, cuda.threadIdx.x // tile
        tiles_n = (n + tile - 1) // tile
        row = int64(cuda.blockIdx.x) // tiles_n * tile + y
        column = int64(cuda.blockIdx.x) % tiles_n * tile + x
        for r in range(per_thread):
            sums[r] = ZERO
        for start in range(int64(0), k, tile):
            for r in range(per_thread):
                i = y + r * step
                tiles[i * tile + x] = load(a, (row + r * step) * k + start + x) if row + r * step < m and start + x < k else ZERO
                tiles[of_b + i * tile + x] = load(b, (start + i) * n + column) if start + i < k and column < n else ZERO
            cuda.syncthreads()
            for p in range(tile):
                factor = tiles[of_b + p * tile + x]
                for r in range(per_thread):
                    sums[r] += tiles[(y + r * step) * tile + p] * factor
            cuda.syncthreads()  # everybody has read the tile before the next one replaces it
        for r in range(per_thread):
            if row + r * step < m and column < n:
                store(c, (row + r * step) * n + column, sums[r])

    return Kernel(matmul, (pointer, pointer, pointer, int64, int64, int64), tile * step, dynamic_shared=8 * tile * tile)


def build_portable(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    (m, k), n = a.shape, b.shape[1]
    return _bind(portable_kernel(portable.name_of(a)), -(-m // PORTABLE_TILE) * -(-n // PORTABLE_TILE), m, n, k, a.device)


def build(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    if SIMULATED:
        return build_portable(a, b, out)
    choices = look(TABLE, a.device)
    way = hopper_tile(a, b, out) if choices is SHIPPED else tuned(a, b, out, choices) or hopper_tile(a, b, out)
    if not isinstance(way, Tile):
        return build_mma(a, b, out, way)
    if a.dtype != torch.float32:
        return build_wgmma(a, b, out, way)
    return build_tf32(a, b, out, way) if tf32_allowed() else build_fma(a, b, out)


def hopper_tile(a: Tensor, b: Tensor, out: Tensor) -> Tile | None:
    """The tile that Hopper's own kernel should compute of this product at a time; None where that kernel cannot or should not run."""
    (m, k), n = a.shape, b.shape[1]
    return own_on_hopper(m, k, n, kind_of(a), aligned(a, b, out), processors_of(a), torch.cuda.get_device_capability(a.device))


def tuned(a: Tensor, b: Tensor, out: Tensor, choices: Choices) -> Way | None:
    """What the table says of a product; None where the plan decides by itself."""
    (m, k), n, kind = a.shape, b.shape[1], kind_of(a)
    known = offered(m, k, n, kind, aligned(a, b, out), torch.cuda.get_device_capability(a.device))
    name = choices.pick(kind, kind, (m, k, n), known)
    return None if name is None else known[name]


def kind_of(a: Tensor) -> str:
    dtype = portable.name_of(a)
    return "tfloat32" if dtype == "float32" and tf32_allowed() else dtype


def aligned(*tensors: Tensor) -> bool:
    return not any(x.data_ptr() % 16 for x in tensors)


def build_wgmma(a: Tensor, b: Tensor, out: Tensor, tile: Tile) -> Bind:
    (m, k), n = a.shape, b.shape[1]
    dtype = portable.name_of(a)
    if tile.split and not tile.swap_ab:
        return build_split(a, b, out, tile)
    plan = cuda_matmul.launch(tile, dtype, m, k, n, processors_of(a))
    kernel = wgmma_of(dtype, tile)
    grid = plan.grid[:2]
    maps = mapped(plan.matrices, (a.data_ptr(), b.data_ptr(), out.data_ptr()))

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        described = maps((a.data_ptr(), b.data_ptr(), out.data_ptr()))
        return kernel.bind(grid, *described, m, n, k, device=a.device, keep=(a, b, out))

    return bind


def wgmma_of(dtype: str, tile: Tile) -> Kernel:
    if tile.swap_ab:
        return turned_kernel(dtype, tile)
    if tile.split:
        return split_kernel(dtype, tile)
    if not isinstance(tile, PingpongTile) or tile in SHARED_PAIRS:
        return wgmma_kernel(dtype, tile.columns, tile.stages, tile.shared_bytes(2), tile.cluster)
    return pingpong_kernel(dtype, tile) if tile.rows == SQUARE.rows else tall_kernel(dtype, tile)


def build_split(a: Tensor, b: Tensor, out: Tensor, tile: Tile) -> Bind:
    (m, k), n = a.shape, b.shape[1]
    dtype = portable.name_of(a)
    plan = cuda_matmul.launch(tile, dtype, m, k, n, processors_of(a))
    kernel, grid = split_kernel(dtype, tile), plan.grid[:2]
    maps = mapped(plan.matrices, (a.data_ptr(), b.data_ptr()))

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return kernel.bind(grid, *maps((a.data_ptr(), b.data_ptr())), out, m, n, k, device=a.device, keep=(a, b))

    return bind


def build_tf32(a: Tensor, b: Tensor, out: Tensor, tile: Tile) -> Bind:
    (m, k), n = a.shape, b.shape[1]
    kernel, grid = tf32_kernel(tile), (min(tile.tiles(m, n), processors_of(a)), 1)
    maps = mapped(factors(m, n, k, tile), (a.data_ptr(), b.data_ptr()))

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return kernel.bind(grid, *maps((a.data_ptr(), b.data_ptr())), out, m, n, k, device=a.device, keep=(a, b))

    return bind


def build_fma(a: Tensor, b: Tensor, out: Tensor) -> Bind:
    (m, k), n = a.shape, b.shape[1]
    kernel, grid = fma_tma_kernel(), (FMA_TILE.tiles(m, n), 1)
    maps = mapped(fma_factors(m, n, k), (a.data_ptr(), b.data_ptr()))

    def bind(a: Tensor, b: Tensor, out: Tensor) -> Launch:
        return kernel.bind(grid, *maps((a.data_ptr(), b.data_ptr())), out, m, n, k, device=a.device, keep=(a, b))

    return bind


def processors_of(x: Tensor) -> int:
    count: int = torch.cuda.get_device_properties(x.device).multi_processor_count
    return count


def build_mma(a: Tensor, b: Tensor, out: Tensor, tile: TensorTile | FmaTile | None = None) -> Bind:
    if SIMULATED:
        return build_portable(a, b, out)
    (m, k), n, kind = a.shape, b.shape[1], kind_of(a)
    at_16_bytes = aligned(a, b, out)
    tile = tile or own_elsewhere(m, k, n, kind, at_16_bytes, processors_of(a), torch.cuda.get_device_capability(a.device))
    kernel = mma_of(kind, tile, whole_rows(kind, k, n, at_16_bytes))
    return _bind(kernel, tiles_of(tile, m, n) * tile.split, m, n, k, a.device)


def mma_of(kind: str, tile: TensorTile | FmaTile, whole: bool) -> Kernel:
    """The kernel for any GPU. whole: as by `whole_rows`."""
    return fma_kernel(tile, whole) if isinstance(tile, FmaTile) else tensor_kernel(kind, tile, whole)


def _bind(kernel: Kernel, blocks: int, m: int, n: int, k: int, device: torch.device) -> Bind:
    return kernel.fixed((blocks, 1), m, n, k, device=device)


def kernels() -> Mapping[str, Kernel]:
    found: dict[str, Kernel] = {}
    for shape, aligned in ((LARGE, True), (MEDIUM, True), (SMALL, False)):
        how = "aligned" if aligned else "unaligned"
        for dtype in ("float16", "bfloat16", "tfloat32"):
            found[f"{dtype} {shape.rows}x{shape.columns} {how}"] = tensor_kernel(dtype, shape, aligned)
    found |= {"float32 128x128 aligned": fma_kernel(FMA_LARGE, True), "float32 64x64 unaligned": fma_kernel(FMA_SMALL, False)}
    for dtype, tile, split, whole in SPECIMENS:
        tile, how = tile._replace(split=split), "aligned" if whole else "unaligned"
        found[f"{dtype} {name_of(tile)} {how}"] = mma_of(dtype, tile, whole)
    for dtype in ("float16", "bfloat16"):
        for t in cuda_wgmma.WGMMA:
            found[f"{dtype} wgmma {t.name}"] = wgmma_kernel(dtype, t.columns, t.stages, t.shared_bytes(2))
        found |= {f"{dtype} wgmma {t.name}": turned_kernel(dtype, t) for t in cuda_wgmma.SWAP_AB}
        found |= {f"{dtype} wgmma {t.name}": wgmma_of(dtype, t) for t in IN_PAIRS}
        found |= {f"{dtype} wgmma {SQUARE.name}": pingpong_kernel(dtype), f"{dtype} wgmma {TALL.name}": tall_kernel(dtype)}
    for t in (tile for tile in cuda_wgmma.SPLIT if tile.name in SPLIT_SPECIMENS):
        found[f"bfloat16 wgmma {t.name}"] = split_kernel("bfloat16", t)
    found |= {f"float32 {FMA_TILE.rows}x{FMA_TILE.columns} by TMA": fma_tma_kernel()}
    found |= {f"tfloat32 wgmma {tile.name}": tf32_kernel(tile) for tile in TF32_TILES}
    return found | {f"{dtype} portable": portable_kernel(dtype) for dtype in portable.DTYPES}


VARIANTS = {
    "": Variant(build, "wgmma on Hopper, else mma.sync, tiles through a ring of stages; fused multiply-adds for float32"),
    "mma": Variant(build_mma, "the kernels for any GPU from sm_80 on, on Hopper too: a ring of cp.async stages"),
    "portable": Variant(build_portable, "16 x 16 tiles in shared memory, four elements a thread"),
}
