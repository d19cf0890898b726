"""Which float32 products the kernels of ffma.cuh take, how they are launched, and the maps of rows that begin anywhere."""

from __future__ import annotations

from functools import partial

import plans
import pytest

from opwise.backends.cuda_src.common import tensor_maps
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT
from opwise.backends.cuda_src.matmul.kernels.ffma import SIZE_LIMIT, TILES, Tile
from opwise.backends.cuda_src.plan import FLOAT32, UINT16, Matrix
from opwise.backends.cuda_src.sources import FOLDER, unit_of, units

kernel_for = partial(plans.kernel_for, "float32")


@pytest.mark.parametrize("product", [(128, 2048, 128), (32, 2048, 512), (512, 2048, 32), (64, 8192, 64), (120, 5000, 136)], ids=str)
def test_clusters_that_would_not_fill_the_gpu_are_left_to_smaller_tiles(product: tuple[int, int, int]) -> None:
    assert kernel_for(*product) == "matmul_cluster_float32_simt_32x32_v16_s16"


def test_what_fills_the_gpu_with_large_tiles_or_is_low_keeps_its_kernels() -> None:
    assert kernel_for(2048, 2048, 2048) == kernel_for(8192, 8192, 512) == "matmul_ffma_float32_tma_128x128_8x16"
    for m, k, n in ((16, 4501, 3003), (3001, 4501, 16), (1003, 95, 463), (2048, 256, 512), (SIZE_LIMIT + 1, 600, 33)):
        assert "matmul_ffma" not in kernel_for(m, k, n), (m, k, n)


@pytest.mark.parametrize("alignment", [4, 8])
def test_a_slice_at_any_address_takes_maps_of_classes(alignment: int) -> None:
    assert "ffma_float32_residue" in kernel_for(1024, 1024, 1024, alignment)


@pytest.mark.parametrize("tile", [tile for tile in TILES if not tile.shares], ids=lambda tile: str(tile.name))
def test_a_launch_fits_the_gpu_and_is_as_the_source_has_it(tile: Tile) -> None:
    found = tile.launch(1000, 513, 777, 132)
    assert tile.resident * (found.shared_bytes + 1024) <= (SHARED_LIMIT[9, 0] + 1) * 1024, "as many blocks fit as it says"
    assert found.grid == (-(-1000 // tile.rows) * -(-777 // tile.columns) * tile.split, 1, 1)
    assert unit_of(found.kernel) in units("sm_90")
    assert unit_of(found.kernel) not in units("sm_100")
    mapped = [(1000, 513, tile.classes), (513, 777, tile.classes)][: 1 if tile.words else 2]
    assert [(*matrix[:2], matrix.classes) for matrix in found.matrices] == mapped
    numbers = (tile.rows, tile.columns, tile.warps, tile.split, tile.resident, *tile.thread, tile.stages)
    made = f"{'WORDS' if tile.words else 'RESIDUE' if tile.classes else 'ALIGNED'}({', '.join(map(str, numbers))})\n"
    assert made in (FOLDER / "matmul/kernels/ffma.cu").read_text()


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
