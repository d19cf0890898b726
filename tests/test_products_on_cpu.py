"""The matmul kernels of cuda_src that its stand-in runs, each against float64, those too that no plan picks at sizes it can afford."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from itertools import product

import pytest
import torch
from test_cuda_on_cpu import compiler_or_skip

from opwise.backends.cuda_on_cpu import NOT_RUN, suite
from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.matmul.configuration import Kernel
from opwise.backends.cuda_src.matmul.cost import BYTES
from opwise.backends.cuda_src.matmul.extra import skinny_m, skinny_n, small_gemm
from opwise.backends.cuda_src.matmul.kernels import KERNELS, gemv
from opwise.backends.cuda_src.plan import Plan
from opwise.measure.validate import judge
from opwise.ops import OPS, Workload

pytestmark = pytest.mark.xdist_group("cuda_on_cpu")
MATMULS = [(kind, kernel) for kind, group in KERNELS.items() for kernel in group if not kernel.wgmma]


def assert_right(plan: Plan, workload: Workload, seed: int, hard: bool = False) -> None:
    spec, (m, k, n) = OPS["matmul"], workload.shape
    a, b = (spec.hard_inputs if hard else spec.make_inputs)(workload, torch.device("cpu"), seed)
    out = spec.empty_output(a, b).fill_(float("nan"))
    suite.kernels().launch(plan.kernel, plan.grid, plan.block, (a.data_ptr(), b.data_ptr(), out.data_ptr(), m, k, n), plan.shared_bytes)
    reference = spec.reference(a.double(), b.double())
    verdict = judge(out, reference, spec.error_bound(workload, reference, a.double(), b.double()))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(("kind", "kernel"), MATMULS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_every_matmul_kernel_but_wgmma_s_runs(kind: str, kernel: Kernel) -> None:
    compiler_or_skip()
    shape = kernel.rows + 8, 200, kernel.columns + 8
    assert_right(launch(kernel, kind, *shape, 2), Workload("matmul", shape, kind), 3)


# dtypes, (m, k, n), multiprocessors, bytes that divide the addresses. Few multiprocessors make many rows, and a row's many columns.
THIN = (
    (("float32", "bfloat16"), ((41, 40, 1), (13, 520, 3), (9, 24, 7), (3, 2056, 5), (2, 700, 1)), 8, 16),
    (("float16",), ((300, 16, 1), (133, 24, 4), (37, 520, 2), (70, 99, 3)), 1, 16),
    (("float16",), ((31, 264, 6), (37, 1032, 7)), 132, 16),
    (("float32", "float16"), ((1, 77, 701), (2, 300, 1001), (3, 4003, 701)), 3000, 2),
    (("float32", "bfloat16"), ((1, 50, 2000), (2, 9, 1303), (3, 270, 701)), 5, 4),
    (("float32", "bfloat16"), ((2, 71, 709),), 9, 4),
    (("float32", "bfloat16"), ((1, 50, 2000),), 40, 4),
    (("float32",), ((3, 50, 1500), (4, 9, 1303), (2, 2500, 701), (4, 1025, 801), (3, 3, 1501)), 20, 4),
    (("float32",), ((1, 1100, 72), (1, 130, 160), (1, 70, 700)), 20, 16),
    (("float32",), ((8, 1301, 87), (5, 331, 191), (6, 1100, 383)), 3, 4),
    (("float32",), ((7, 530, 517), (8, 300, 1019), (5, 261, 777)), 4, 4),
    (("float16",), ((3, 1301, 787), (4, 700, 1501)), 5, 2),
    (("float16", "bfloat16"), ((1, 1100, 1302), (4, 1030, 702), (2, 2050, 750)), 40, 4),
)


@pytest.mark.parametrize(
    ("kind", "shape", "processors", "alignment"),
    [(kind, shape, *rest) for kinds, shapes, *rest in THIN for kind, shape in product(kinds, shapes)],
    ids=str,
)
def test_thin_factors_have_kernels_that_read_the_other_once(
    kind: str, shape: tuple[int, int, int], processors: int, alignment: int
) -> None:
    compiler_or_skip()
    m, k, n = shape
    (tile,) = gemv.fitting(m, k, n, kind, alignment, processors)
    for hard in (False, True):
        assert_right(tile.launch(m, k, n, processors), Workload("matmul", shape, kind), 5, hard)


@cache
def thin_tiles() -> dict[str, gemv.Tile]:
    """By its name in the sources, every kernel for thin factors that an H200 may choose."""
    few = (*range(1, 9), 15, 16, 20, 24)
    even = (300, 500, 850, 1000, 1500, 3000, 3002, 5000, 5002, 8000, 16_500, 16_502, 20_000, 20_002, 40_000, 40_002, 200_000)
    many = (*even, 32_768, 90_000, 701, 2001, 7001, 9001, 20_001, 40_001)
    shapes = ((m, k, n) for m, n in product((*few, *many), (*few, *many)) for k in (32, 64, 65, 1024, 4096))
    return {
        tile.kernel: tile
        for shape, kind, alignment, mma in product(shapes, KERNELS, (4, 16), (False, True))
        for tile in gemv.fitting(*shape, kind, alignment, 132, mma)
    }


def test_every_thin_kernel_that_may_be_chosen_is_there() -> None:
    compiler_or_skip()
    columns, rows = 7 + 7 + 4 + 4 + 4, 7 * 4
    of_pairs, of_float32 = 7 * 4, 3 + 2 + 7 * 4 + 5 + 4
    expected = 3 * (columns + rows) + 2 * of_pairs + of_float32
    assert len(thin_tiles()) == expected, "of each dtype; of 16 bits; of float32"
    for kernel in thin_tiles():
        suite.kernels().kernel(kernel)


def test_every_kernel_of_few_rows_is_right() -> None:
    """Of 8 rows with 6 as well; K is more than a block has in shared memory at a time, and no multiple of anything."""
    compiler_or_skip()
    for tile in (tile for tile in thin_tiles().values() if tile.form == "rows"):
        columns = tile.wide + 3 * tile.granule // BYTES[tile.kind]
        for rows, hard in product({tile.count, 6 if tile.count == gemv.EIGHT else tile.count}, (False, True)):
            shape = rows, 1103, columns
            assert_right(tile.launch(*shape, 132), Workload("matmul", shape, tile.kind), 5, hard)


SMALL = [tile for tiles in small_gemm.TILES.values() for tile in tiles if tile.split == 1]


@pytest.mark.parametrize("tile", SMALL, ids=lambda tile: f"{tile.kind}-{tile.name}")
def test_every_kernel_of_a_small_product_is_right(tile: small_gemm.Tile) -> None:
    """Of a tile and parts of three more; of a part of a step, of one, and of some and a part."""
    compiler_or_skip()
    each = tile.granule // BYTES[tile.kind]
    for k, hard in product((each, tile.step, 2 * tile.step + 5 * each), (False, True)):
        shape = tile.rows + 3, k, tile.columns + 3 * each
        assert_right(tile.launch(*shape, 132), Workload("matmul", shape, tile.kind), 5, hard)


FEW = [tile for tiles in skinny_m.TILES.values() for tile in tiles if tile.split == 1]


@pytest.mark.parametrize("tile", FEW, ids=lambda tile: f"{tile.kind}-{tile.name}")
def test_every_kernel_of_sixteen_rows_is_right(tile: skinny_m.Tile) -> None:
    """Of fewer rows, too; of less than a step of K, of some turns of all warps and a part of one more."""
    compiler_or_skip()
    each = tile.granule // BYTES[tile.kind]  # elements of an access
    deep = 2 * 3 * tile.warps * skinny_m.STEP // BYTES[tile.kind]
    for rows, k, hard in product((16, 5), (3 * each, deep + 5 * each), (False, True)):
        shape = rows, k, tile.columns + 3 * each
        assert_right(tile.launch(*shape, 132), Workload("matmul", shape, tile.kind), 5, hard)


COLUMNS = [tile for tiles in skinny_n.TILES.values() for tile in tiles if tile.split == 1]
# (m, k): less than a step of K, some turns of all warps and a part of one more, rows that end on every byte.
OF_COLUMNS = ((300, 40), (133, 1032), (530, 72), (61, 32), (300, 296), (17, 4), (530, 262), (61, 66), (301, 5), (77, 1031), (33, 1))


@pytest.mark.parametrize("tile", COLUMNS, ids=lambda tile: f"{tile.kind}-{tile.name}")
def test_every_kernel_of_few_columns_is_right(tile: skinny_n.Tile) -> None:
    """Of all its columns and, where it may have fewer, of three fewer."""
    compiler_or_skip()
    size = BYTES[tile.kind]
    fewer = [] if tile.granule == 16 else [tile.count - 3]
    for (m, k), n, hard in product(OF_COLUMNS, (tile.count, *fewer), (False, True)):
        if k * size % tile.granule_a == 0:
            assert_right(tile.launch(m, k, n, 132), Workload("matmul", (m, k, n), tile.kind), 5, hard)


def test_what_is_not_run_is_what_the_stand_in_lacks() -> None:
    compiler_or_skip()
    for kind, group in KERNELS.items():
        for kernel in group:
            name = kernel.source_name(kind)
            if kernel.wgmma:
                assert any(fnmatch(name, pattern) for pattern in NOT_RUN["matmul"][0].split(" and "))
                with pytest.raises(KeyError):
                    suite.kernels().kernel(name)
            else:
                suite.kernels().kernel(name)
