"""Which float32 products the kernels of matmul_fma_rows.cuh take, how they are launched, and the maps of rows that begin anywhere."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src import tensor_maps
from opwise.backends.cuda_src.matmul_cluster import UNIT
from opwise.backends.cuda_src.matmul_plan import SHARED_LIMIT, plan
from opwise.backends.cuda_src.matmul_rows32 import SIZE_LIMIT, TILES, Tile, launch
from opwise.backends.cuda_src.plan import FLOAT32, UINT16, Matrix
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

LAUNCH_US = 4.0  # between events, that no estimate tells of
# us on one H200, torch 2.11, cold, launches in turns, medians: (m, k, n) -> kernel -> time.
MEASURED = {
    (3001, 4501, 3003): {"any_64x64_w8_s1": 1830, "any_64x64_w4_s1": 1858},
    (3001, 4501, 463): {"any_64x64_w8_s1": 327.7, "any_64x64_w4_s1": 419.3},
    (1003, 4501, 3003): {"any_64x64_w4_s1": 625.0, "any_64x64_w8_s1": 647.9},
    (1003, 4501, 463): {"any_64x64_w8_s1": 111.1, "any_64x64_w4_s1": 124.2},
    (3001, 4501, 73): {"any_64x80_w8_s2": 74.6, "any_64x64_w8_s1": 110.5},
    (1003, 4501, 73): {"any_64x80_w8_s6": 30.6, "any_64x80_w8_s3": 52.1},
    (37, 4501, 3003): {"any_64x80_w8_s3": 52.7},
    (257, 4501, 463): {"any_64x80_w8_s3": 52.4},
    (37, 4501, 463): {"any_64x80_w8_s16": 17.3, "any_64x80_w8_s6": 29.5},
    (1003, 701, 3003): {"any_64x64_w4_s1": 112.6, "any_64x64_w8_s1": 125.5, "any_64x64_w2_s1": 134.0},
    (3001, 701, 463): {"any_64x64_w8_s1": 64.8},
    (3001, 701, 73): {"any_64x80_w8_s2": 20.4, "any_64x64_w8_s1": 22.6},
    (583, 931, 781): {"any_64x64_w8_s1": 28.9, "any_64x64_w4_s1": 31.7},
    (3001, 95, 3003): {"any_64x64_w2_s1": 72.9},
    (1003, 95, 3003): {"any_64x64_w2_s1": 28.4},
    (128, 8192, 2048): {"even_64x64_w8_s2": 89.2},
    (512, 2048, 512): {"even_64x64_w8_s2": 27.2},
    (128, 8192, 512): {"even_64x64_w8_s6": 34.2},
    (32, 8192, 2048): {"even_32x128_w8_s6": 35.8},
    (2048, 8192, 32): {"even_128x32_w8_s6": 37.7},
    (1024, 1024, 1024): {"even_64x64_w8_s1": 48.7},
    (1536, 1536, 1536): {"even_64x64_w8_s1": 171.3},
    (1024, 4096, 1024): {"even_64x64_w8_s1": 171.4},
}
H200 = {"sm_count": 132, "capability": (9, 0)}


def kernel_for(m: int, k: int, n: int, alignment: int = 16, **changes: object) -> str:
    return plan(m, k, n, "float32", False, alignment, **{**H200, **changes}).kernel  # type: ignore[arg-type]


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_the_kernel_that_was_fastest(product: tuple[int, int, int], times: dict[str, float]) -> None:
    assert kernel_for(*product) == f"matmul_rows_float32_{min(times, key=times.__getitem__)}"
    for changes in ({"capability": (8, 0)}, {"capability": (10, 0)}, {"wgmma": False}):
        assert "rows" not in kernel_for(*product, **changes)
    for name, us in times.items():
        tile = next(tile for tile in TILES if tile.name == name)
        told = LAUNCH_US + tile.estimate(*product, 132) / UNIT["float32"]
        assert told == pytest.approx(us, rel=0.11), f"{name}: {told:.1f} us estimated, {us} measured"


def test_what_fills_the_gpu_with_large_tiles_or_is_low_keeps_its_kernels() -> None:
    assert kernel_for(2048, 2048, 2048) == kernel_for(8192, 8192, 512) == "matmul_tma_float32_128x128_8x16"
    for m, k, n in ((16, 4501, 3003), (3001, 4501, 16), (1003, 95, 463), (2048, 256, 512), (SIZE_LIMIT + 1, 600, 33)):
        assert "rows" not in kernel_for(m, k, n), (m, k, n)


@pytest.mark.parametrize("alignment", [4, 8])
def test_a_slice_at_any_address_takes_maps_of_classes(alignment: int) -> None:
    assert "rows_float32_any" in kernel_for(1024, 1024, 1024, alignment)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: str(tile.name))
def test_a_launch_fits_the_gpu_and_is_as_the_source_has_it(tile: Tile) -> None:
    found = launch(tile, 1000, 513, 777)
    assert tile.resident * (found.shared_bytes + 1024) <= (SHARED_LIMIT[9, 0] + 1) * 1024, "as many blocks fit as it says"
    assert found.grid == (-(-1000 // tile.rows) * -(-777 // tile.columns) * tile.split, 1, 1)
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    assert [(*matrix[:2], matrix.classes) for matrix in found.matrices] == [(1000, 513, tile.classes), (513, 777, tile.classes)]
    numbers = (tile.rows, tile.columns, tile.warps, tile.split, tile.resident, *tile.thread, tile.stages)
    made = f"{'ANY' if tile.classes else 'EVEN'}({', '.join(map(str, numbers))})\n"
    assert made in (FOLDER / "matmul_rows32.cu").read_text()


@pytest.mark.parametrize(("element", "classes"), [(FLOAT32, 4), (UINT16, 8)])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (9, 501), (8, 1), (17, 64)])
def test_maps_of_classes_tell_every_element_and_no_other(element: int, classes: int, rows: int, columns: int) -> None:
    size = 4 if element == FLOAT32 else 2
    for address in range(4096, 4112, size):
        told = []
        parts = tensor_maps._parts(Matrix(rows, columns, 8, 8, element, classes), address)
        for c, (of_class, wide, pitch, base, shift) in enumerate(parts):
            assert base % 16 == pitch % 16 == 0, "as the copy engine wants it"
            assert pitch >= wide * size, "rows do not overlap"
            assert base > address - 16, "and begin in the memory that the matrix begins in"
            told += [(c + r * classes, base + r * pitch + (shift + x) * size) for r in range(of_class) for x in range(wide - shift)]
        assert sorted(told) == [(r, address + (r * columns + x) * size) for r in range(rows) for x in range(columns)]
