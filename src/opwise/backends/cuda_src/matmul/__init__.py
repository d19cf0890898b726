"""The front door of matmul in CUDA C++: `plan` says which kernel a product runs, over what grid.

The choice is arithmetic: every kernel whose granule divides the addresses and rows is given an estimated time, and the least wins. The
estimate is the busiest SM's share of tiles, times a tile's multiply-adds over K plus a fixed cost (filling the ring, adding up parts,
storing C) written as extra K, over the kernel's speed; for Hopper's own cost.py knows more. A wrong number costs time alone.

`kernels` has the main path, `extra` what serves only unaligned, skinny or tiny products, `ladder` the rungs from the textbook up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opwise.backends.cuda_src.matmul import extra
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT, TENSOR_CORES_FROM, WGMMA_ON, Kernel
from opwise.backends.cuda_src.matmul.cost import BYTES, granule_of, rows_suffice
from opwise.backends.cuda_src.matmul.kernels import KERNELS, TEXTBOOK, cluster, ffma, gemv, swap_ab, tma32
from opwise.backends.cuda_src.plan import Matrix, Plan
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned import SHIPPED, Choices

WGMMA_SIZE_LIMIT = 2**30  # the copy engine's coordinates have 32 bits
GRID_LIMIT = 2**31 - 1

if TYPE_CHECKING:  # `extra` imports its modules when they are asked for
    Other = cluster.Tile | ffma.Tile | gemv.Tile | swap_ab.Tile | tma32.Tile | extra.Tile


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

    size, mma, hopper = BYTES[kind], capability >= TENSOR_CORES_FROM, wgmma and capability == WGMMA_ON
    mapped = hopper and granule == tma32.GRANULE
    kernels = [
        kernel
        for kernel in KERNELS[kind]
        if kernel.granule <= granule and kernel.runs_on(capability)
        and kernel.shared_bytes(size) <= _shared_limit(capability)
        and kernel.takes(m, k, n, sm_count, capability)
        and (not kernel.wgmma or (wgmma and rows_suffice(kernel.rows, m, k, n) and max(m, k, n) <= WGMMA_SIZE_LIMIT))
    ]  # fmt: skip
    vectors = gemv.fitting(m, k, n, kind, alignment, sm_count, mma)
    form = vectors[0].form if vectors else ""
    special, instead = extra.offered(m, k, n, kind, granule, alignment, sm_count, hopper, mma, form)
    tiles: tuple[Other, ...] = (
        *(() if instead else vectors),
        *(swap_ab.fitting(m, k, n, kind) if mapped else ()),
        *(tma32.fitting(m, k, n, kind, sm_count) if mapped else ()),
        *(cluster.fitting(m, k, n, kind, granule, sm_count) if hopper else ()),
        *(ffma.fitting(m, k, n, granule, sm_count) if hopper and kind == "float32" else ()),
    )
    return {**special, **{kernel.name: kernel for kernel in kernels}, **{tile.name: tile for tile in tiles}}


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
        box_rows = min(m, kernel.rows)  # as split_k.cuh counts the bytes
    depth = kernel.step_bytes // 2 // (1 if kernel.split else kernel.cluster[0])  # of B, that a block fetches
    wide = 32 if kernel.columns % 64 else 64  # columns of a box of B, and of C by a map
    factors = (Matrix(m, k, box_rows, 64), Matrix(k, n, depth, wide))
    stored = (kernel.rows if kernel.split else 16) if kernel.swap_ab else 64  # rows of a box of C
    result = (Matrix(m, n, stored, wide),) if kernel.swap_ab or not kernel.split else ()
    blocks = tiles * kernel.split if kernel.split else min(tiles, sm_count // math.prod(kernel.cluster) * math.prod(kernel.cluster))
    return Plan(kernel.source_name(kind), _line(blocks, m, n), block, shared, matrices=(*factors, *result))


def group(dtype_name: str, tf32: bool, capability: tuple[int, int]) -> str:
    """The key into KERNELS. TF32 is a permission, not a demand: a GPU without it multiplies in float32."""
    return "tfloat32" if dtype_name == "float32" and tf32 and capability >= TENSOR_CORES_FROM else dtype_name


def _line(blocks: int, m: int, n: int) -> tuple[int, int, int]:
    if blocks > GRID_LIMIT:
        raise UnsupportedWorkload(f"matmul: a {m} x {n} product needs {blocks} blocks, a grid has {GRID_LIMIT} at most: split it by rows")
    return (blocks, 1, 1)
