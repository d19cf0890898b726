"""Which float32 products get Hopper's own CUDA C++ kernels, and that Python describes these kernels as the source has them: arithmetic."""

from __future__ import annotations

import re
from dataclasses import replace

import plans
import pytest

from opwise.backends.cuda_src.matmul import offered, quickest
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT, Kernel
from opwise.backends.cuda_src.matmul.kernels.tma32 import DEPTH, TILES, Tile
from opwise.backends.cuda_src.plan import ELEMENT_BYTES, FLOAT32, TFLOAT32
from opwise.backends.cuda_src.sources import FFMA, FOLDER, WGMMA_TF32, unit_of, units

ALL = (*TILES["tfloat32"], *TILES["float32"])
each_tile = pytest.mark.parametrize("tile", ALL, ids=lambda tile: tile.kernel)


def kernel_for(m: int, k: int, n: int, tf32: bool, **changes: object) -> str:
    return plans.kernel_for("tfloat32" if tf32 else "float32", m, k, n, **changes)  # type: ignore[arg-type]


def test_tf32_takes_the_tile_that_fills_the_waves() -> None:
    assert kernel_for(4096, 4096, 4096, True) == "matmul_wgmma_tfloat32_256x128"
    assert kernel_for(2048, 2048, 2048, True) == "matmul_wgmma_tfloat32_256x128"  # 128 tiles for 132 multiprocessors
    assert kernel_for(1024, 1024, 1024, True) == "matmul_wgmma_tfloat32_64x128"  # 128 tiles again
    # 12.9 us; 16x32 takes 26.8; 64x128, few tiles or mostly outside of C, 62.
    assert kernel_for(128, 8192, 512, True) == "matmul_cluster_tfloat32_wgmma_64x128_v16_s8"
    # 64.5 us, by clusters of two, in two waves of them, 75.4; and 34.2.
    assert kernel_for(16, 8192, 8192, True) == kernel_for(16, 4096, 8192, True) == "matmul_tfloat32_16x32_v16"


def test_multiply_adds_take_what_fills_the_gpu() -> None:
    assert kernel_for(4096, 4096, 4096, False) == "matmul_ffma_float32_tma_128x128_8x16"
    assert kernel_for(1024, 1024, 1024, False) == "matmul_ffma_float32_aligned_64x64_w8_s1"  # 64 tiles of 128x128
    assert "simt" in kernel_for(1024, 1024, 1024, False, wgmma=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"capability": (8, 0)},
        {"capability": (10, 0)},
        {"alignment": 8},
        {"wgmma": False},
        {"k": 4098},
        {"n": 4097},
        {"m": 2**30 + 1, "k": 8, "n": 40},
        {"m": 16, "k": 32},
    ],
    ids=str,
)
@pytest.mark.parametrize("tf32", [True, False])
def test_what_the_copy_engine_does_not_take_keeps_its_old_kernel(tf32: bool, changes: dict[str, object]) -> None:
    kernel = kernel_for(**{"m": 4096, "k": 4096, "n": 4096, "tf32": tf32, **changes})  # type: ignore[arg-type]
    rows = not tf32 and ("alignment" in changes or changes.get("k") == 4098 or changes.get("n") == 4097)  # ffma.cu's
    own = "matmul_unaligned_tma_tfloat32" if tf32 else "matmul_ffma"  # where rows begin anywhere
    others = {f"matmul{part}_{'tfloat32' if tf32 else 'float32'}" for part in ("", "_extra")}
    assert unit_of(kernel) in ({own} if rows else others | ({own} if tf32 else set()))


@each_tile
def test_a_launch_fits_the_gpu_and_covers_the_product(tile: Tile) -> None:
    found = tile.launch(1000, 512, 776, 132)
    blocks_a_processor = 1 if tile.kind == "tfloat32" else 2
    assert blocks_a_processor * (found.shared_bytes + 1024) <= (SHARED_LIMIT[9, 0] + 1) * 1024
    assert unit_of(found.kernel) == (WGMMA_TF32 if tile.kind == "tfloat32" else FFMA)
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    tiles = -(-1000 // tile.rows) * -(-776 // tile.columns)
    assert found.grid == (min(tiles, 132) if tile.kind == "tfloat32" else tiles, 1, 1)
    assert [matrix[:2] for matrix in found.matrices] == [(1000, 512), (512, 776)]
    assert {matrix.element for matrix in found.matrices} == {TFLOAT32 if tile.kind == "tfloat32" else FLOAT32}
    assert all(max(matrix.box_rows, matrix.box_columns) <= 256 for matrix in found.matrices), "the copy engine's limit"
    a = found.matrices[0]
    assert (a.box_rows, a.box_columns * ELEMENT_BYTES[a.element]) == (tile.rows, 128), "rows as wide as the swizzle"


@each_tile
def test_the_plan_knows_the_tiles_as_the_source_has_them(tile: Tile) -> None:
    source = (FOLDER / "matmul/kernels" / ("wgmma_tf32.cu" if tile.kind == "tfloat32" else "ffma.cu")).read_text()
    made = re.search(rf"KERNEL\({tile.kernel},[^<]*<([^>]*)>\)", source)
    assert made, f"{tile.kernel} is in the source"
    numbers = [int(x) for x in made[1].split(",")]
    if tile.kind == "tfloat32":
        consumers = tile.columns // 64
        assert numbers == [tile.rows, tile.stages]
        assert tile.threads == 128 * (consumers + 1)
    else:
        rows, columns, _ = numbers
        assert tile.threads == tile.rows // rows * (tile.columns // columns)
        header = (FOLDER / "matmul/kernels/ffma_tma.cuh").read_text()
        assert f"BM = {tile.rows}, BN = {tile.columns}, BK = {DEPTH}," in header
        assert f"int STAGES_ = {tile.stages}>" in header


def test_the_least_estimate_wins_over_both_tables_of_kernels() -> None:
    """By one unit: a kernel for any GPU made 1 % dearer than the best of Hopper's own is not taken, 1 % cheaper it is."""
    found = offered(512, 512, 512, "tfloat32", 16, 132, (9, 0))
    tile = min(TILES["tfloat32"], key=lambda tile: tile.estimate(512, 512, 512, 132))
    assert quickest(found, 512, 512, 512, 132) == tile.name
    other = next(kernel for kernel in found.values() if isinstance(kernel, Kernel))
    costs = other.estimate(512, 512, 512, 132) / tile.estimate(512, 512, 512, 132)
    dearer = {**found, other.name: replace(other, speed=other.speed * costs * 0.99)}
    assert quickest(dearer, 512, 512, 512, 132) == tile.name
    cheaper = {**found, other.name: replace(other, speed=other.speed * costs * 1.01)}
    assert quickest(cheaper, 512, 512, 512, 132) == other.name
