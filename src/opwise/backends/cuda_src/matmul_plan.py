"""Which matmul kernel of matmul.cu or matmul_wgmma.cu a product runs, over what grid; matmul_kernels.py has their tiles and numbers.

The choice is arithmetic: every kernel whose granule divides the addresses and rows is given an estimated time, and the least wins. The
estimate is the busiest SM's share of tiles, times a tile's multiply-adds over K plus a fixed cost (filling the ring, adding up parts,
storing C) written as extra K, over the kernel's speed; for Hopper's own matmul_model.py knows more. A wrong number costs time alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType

from opwise.backends.cuda_src import (
    matmul_cluster,
    matmul_columns,
    matmul_few,
    matmul_hopper32,
    matmul_odd,
    matmul_once,
    matmul_rows32,
    matmul_thin,
)
from opwise.backends.cuda_src.matmul_kernel import SHARED_LIMIT, TENSOR_CORES_FROM, Kernel
from opwise.backends.cuda_src.matmul_kernels import KERNELS, TEXTBOOK
from opwise.backends.cuda_src.matmul_model import BYTES, granule_of, rows_suffice
from opwise.backends.cuda_src.plan import Matrix, Plan
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import SHIPPED, Choices

WGMMA_SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
GRID_LIMIT = 2**31 - 1

Other = (matmul_hopper32.Tile | matmul_cluster.Tile | matmul_rows32.Tile | matmul_odd.Tile | matmul_thin.Tile | matmul_few.Tile
         | matmul_columns.Tile | matmul_once.Tile)  # fmt: skip


def plan(
    m: int,
    k: int,
    n: int,
    dtype_name: str,
    tf32: bool,
    alignment: int,
    sm_count: int,
    capability: tuple[int, int],
    textbook: bool = False,
    wgmma: bool = True,
    choices: Choices = SHIPPED,
) -> Plan:
    """The launch for A (m, k) B (k, n), all row-major and at least 1 in size.

    dtype_name: float32, float16 or bfloat16; tf32: may float32 factors be rounded to TF32? alignment: the greatest power of two up to
    16 that divides all three base addresses, in bytes. textbook: the classroom kernel, float32 only. wgmma: may Hopper's own kernels run?
    choices: what the table "cuda_src/matmul" says on this GPU; it goes by the names of `offered`.

    Raises UnsupportedWorkload for another dtype, for textbook in 16 bits, and where no kernel fits the GPU or the grid.
    """
    if dtype_name not in ("float32", "float16", "bfloat16"):
        raise UnsupportedWorkload(f"matmul: dtype {dtype_name} given, float32, float16 and bfloat16 are taken: convert with .to(...)")
    if textbook:
        if dtype_name != "float32":
            raise UnsupportedWorkload(f"matmul:textbook: {dtype_name} given, float32 alone is taken: use the unnamed variant")
        return Plan(TEXTBOOK, _line(-(-m // 16) * -(-n // 16), m, n), (16, 16, 1), 0)
    kind = group(dtype_name, tf32, capability)
    granule = granule_of(alignment, k * BYTES[kind], n * BYTES[kind])
    found = offered(m, k, n, kind, granule, sm_count, capability, wgmma, alignment)
    if not found:
        raise UnsupportedWorkload(f"matmul: no {kind} kernel for compute capability {capability} and data aligned to {granule} bytes "
                                  f"in {_shared_limit(capability)} bytes of shared memory: use torch_eager")  # fmt: skip
    shared = "16-bit" if BYTES[kind] == 2 else kind  # one model for both types of 16 bits
    found = {name: choices.fitted(shared, name, kernel) for name, kernel in found.items()}
    kernel = found[choices.pick(kind, shared, (m, k, n), found) or quickest(found, m, k, n, sm_count)]
    if isinstance(kernel, Kernel):
        return launch(kernel, kind, m, k, n, sm_count)
    return kernel.launch(m, k, n, sm_count)


def offered(
    m: int, k: int, n: int, kind: str, granule: int, sm_count: int, capability: tuple[int, int], wgmma: bool = True, alignment: int = 16
) -> dict[str, Kernel | Other]:
    """Name -> kernel, of all that take the product; of equals the first is to be used. granule: bytes that divide addresses and rows;
    alignment: addresses alone."""

    def on(tables: ModuleType) -> bool:
        """Do its kernels run? They are for one GPU."""
        return wgmma and capability == tables.ON

    size, mma = BYTES[kind], capability >= TENSOR_CORES_FROM
    mapped = on(matmul_hopper32) and granule == matmul_hopper32.GRANULE
    kernels = [
        kernel
        for kernel in KERNELS[kind]
        if kernel.granule <= granule and kernel.runs_on(capability)
        and kernel.shared_bytes(size) <= _shared_limit(capability)
        and kernel.takes(m, k, n, sm_count, capability)
        and (not kernel.wgmma or (wgmma and rows_suffice(kernel.rows, m, k, n) and max(m, k, n) <= WGMMA_SIZE_LIMIT))
    ]  # fmt: skip
    tiles = matmul_hopper32.fitting(m, k, n, kind, sm_count) if mapped else ()
    shared = matmul_cluster.fitting(m, k, n, kind, granule, sm_count) if on(matmul_cluster) else ()
    rows = matmul_rows32.fitting(m, k, n, granule, sm_count) if on(matmul_rows32) and kind == "float32" else ()
    odd = matmul_odd.fitting(m, k, n, kind, granule) if on(matmul_odd) else ()
    columns = matmul_columns.fitting(m, k, n, kind, alignment, on(matmul_columns)) if mma else ()
    low = matmul_few.fitting(m, k, n, kind, granule, sm_count) if on(matmul_few) else ()
    once = matmul_once.fitting(m, k, n, kind, granule, sm_count) if on(matmul_once) else ()
    thin = matmul_thin.fitting(m, k, n, kind, alignment, sm_count, mma)
    if low and thin and thin[0].way == "rows" and matmul_few.before_rows(m, k, n, kind):
        thin = ()
    return {
        **{tile.name: tile for tile in columns},
        **{f"thin_{tile.name}": tile for tile in thin},
        **{tile.name: tile for tile in low if not thin},
        **{tile.name: tile for tile in once},
        **{f"hopper_{tile.name}": tile for tile in tiles},
        **{kernel.name: kernel for kernel in kernels},
        **{f"cluster_{tile.name}": tile for tile in shared},
        **{f"rows_{tile.name}": tile for tile in rows},
        **{f"odd_{tile.name}": tile for tile in odd},
    }


def quickest(found: Mapping[str, Kernel | Other], m: int, k: int, n: int, sm_count: int) -> str:
    """The name of the kernel with the least estimate."""
    return min(found, key=lambda name: found[name].estimate(m, k, n, sm_count))


def _shared_limit(capability: tuple[int, int]) -> int:
    return SHARED_LIMIT.get(capability, 99 if capability >= TENSOR_CORES_FROM else 48) * 1024


def launch(kernel: Kernel, kind: str, m: int, k: int, n: int, sm_count: int) -> Plan:
    """The kernel over all of C."""
    block, shared, tiles = (kernel.threads, 1, 1), kernel.shared_bytes(BYTES[kind]), kernel.tiles(m, n)
    if not kernel.wgmma:
        return Plan(kernel.source_name(kind), _line(tiles, m, n), block, shared)
    box_rows = kernel.rows // kernel.cluster[1]
    if kernel.cut:
        box_rows = min(m, kernel.rows)  # as matmul_split.cuh counts the bytes
    depth = kernel.step_bytes // 2 // (1 if kernel.split else kernel.cluster[0])  # of B, that a block fetches
    wide = 32 if kernel.columns % 64 else 64  # columns of a box of B, and of C by a map
    factors = (Matrix(m, k, box_rows, 64), Matrix(k, n, depth, wide))
    stored = (kernel.rows if kernel.split else 16) if kernel.turned else 64  # rows of a box of C
    result = (Matrix(m, n, stored, wide),) if kernel.turned or not kernel.split else ()
    blocks = tiles * kernel.split if kernel.split else min(tiles, sm_count // math.prod(kernel.cluster) * math.prod(kernel.cluster))
    return Plan(kernel.source_name(kind), _line(blocks, m, n), block, shared, matrices=(*factors, *result))


def group(dtype_name: str, tf32: bool, capability: tuple[int, int]) -> str:
    """The key into KERNELS and GROUPS. TF32 is a permission, not a demand: a GPU without it multiplies in float32."""
    return "tfloat32" if dtype_name == "float32" and tf32 and capability >= TENSOR_CORES_FROM else dtype_name


def _line(blocks: int, m: int, n: int) -> tuple[int, int, int]:
    if blocks > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul: a {m} x {n} product needs {blocks} blocks, a grid has {GRID_LIMIT} at most: split it by rows")
    return (blocks, 1, 1)
