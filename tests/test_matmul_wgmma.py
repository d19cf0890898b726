"""What matmul_wgmma.py says of a kernel is what matmul_wgmma.cu has."""

from __future__ import annotations

import math

import pytest
from plans import kernel_for
from support import LARGE_PRODUCTS

from opwise.backends.cuda_src import matmul_kernel, matmul_plan, matmul_wgmma
from opwise.backends.cuda_src.matmul import launch
from opwise.backends.cuda_src.sources import FOLDER

SHARED = matmul_wgmma.SPLIT + matmul_wgmma.NARROW + matmul_wgmma.LONG + matmul_wgmma.HALVES
TURNED = matmul_wgmma.TURNED + matmul_wgmma.TURNED_BETWEEN
OF_WARPGROUPS = matmul_wgmma.WGMMA + matmul_wgmma.BETWEEN + matmul_wgmma.PINGPONG + matmul_wgmma.COUPLED
ON_GPUS = matmul_wgmma.TURNED_BETWEEN + matmul_wgmma.TURNED_PAIRS + matmul_wgmma.NARROW + matmul_wgmma.HALVES


def test_kernels_that_few_products_take_are_among_those_that_gpus_are_tested_with() -> None:
    taken = {kernel_for("bfloat16", *shape) for shape in LARGE_PRODUCTS if shape[1] % 8 == shape[2] % 8 == 0}
    names = [kernel.name for kernel in (*ON_GPUS, *matmul_wgmma.BETWEEN, *matmul_wgmma.PINGPONG, *matmul_wgmma.COUPLED)]
    assert not [name for name in names if f"matmul_wgmma_bfloat16_{name}" not in taken]


@pytest.mark.parametrize("kernel", SHARED, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_shared_tiles_as_the_source_has_them(kernel: matmul_kernel.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    tile = (kernel.rows, kernel.columns, kernel.step_bytes // 2, kernel.stages, kernel.split, kernel.resident)
    group = 4 if kernel.columns == 128 and kernel.split == 1 else 16
    assert f"SPLIT_KERNEL(matmul_wgmma_##dtype##_{kernel.name}, dtype, {', '.join(map(str, tile))}, {group})" in source
    assert kernel.threads == 32 * (kernel.rows // 16 + 1), "four warps for 64 rows, and the producer"
    assert kernel.resident * (kernel.shared_bytes(2) + 1024) <= 228 * 1024, "as many blocks fit a multiprocessor as it says"
    owned, more = divmod(kernel.rows // 16 * (kernel.columns // 16), kernel.split)  # units of 1 KiB
    assert (more, kernel.inbox) == (0, owned * (kernel.split - 1) * 1024), "each block owns as many and takes the others' parts of them"


@pytest.mark.parametrize("kernel", TURNED, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_turned_tiles_as_the_source_has_them(kernel: matmul_kernel.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    assert f"##_{kernel.name}, dtype, {kernel.resident}, {kernel.rows}, {kernel.columns}, {kernel.stages})" in source
    assert kernel.threads == 32 * (kernel.columns // 16 + 1), "four warps for 64 columns, and the producer"
    assert kernel.shared_bytes(2) <= matmul_kernel.SHARED_LIMIT[9, 0] * 1024


def test_turned_tiles_are_offered_where_half_of_one_is_not_empty_and_others_where_they_were_timed() -> None:
    def there(m: int, k: int, n: int) -> list[str]:
        found = matmul_plan.offered(m, k, n, "float16", 16, 132, (9, 0))
        return [kernel.name for kernel in TURNED if kernel.name in found]

    assert [there(m, 512, 1536) for m in (128, 129)] == [[], ["144x128"]]
    assert [there(1280, k, 1152) for k in (512, 576)] == [["144x128"], ["144x128", "96x128", "160x128"]]
    assert there(1280, 600, 1152) == ["144x128"], "rows of A are not whole lines"


@pytest.mark.parametrize("kernel", OF_WARPGROUPS, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_tiles_of_warpgroups_as_the_source_has_them(kernel: matmul_kernel.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    high, blocks = kernel.cluster[0], math.prod(kernel.cluster)
    in_turns, consumers = kernel in matmul_wgmma.PINGPONG, kernel.threads // 128 - 1
    columns = 32 if kernel.columns % 64 else 64  # of a box of B or C
    assert (consumers == 2) if in_turns else (kernel.rows == 64 * consumers)
    outboxes = kernel.boxes * (64 // columns) // consumers
    beside = (outboxes, 1 if in_turns else consumers, *((high,) if high > 1 else ()))  # outboxes, readers of a slot
    tile = (kernel.rows, kernel.columns, kernel.stages, *(beside if blocks > 1 else ()))
    matmul = f"{'pingpong' if in_turns else 'warpgroup'}_matmul, {blocks}"
    assert f"KERNEL(matmul_wgmma_##dtype##_{kernel.name}, {matmul}, dtype, {', '.join(map(str, tile))})" in source
    for m in (128, 40):  # however low A is, a box has all rows that the barrier counts
        found, rows = launch(kernel, "bfloat16", m, 512, 776, 132), kernel.rows // kernel.cluster[1]
        assert [matrix.box_rows for matrix in found.matrices] == [rows, 64 // kernel.cluster[0], 64]
        assert found.grid[0] % blocks == 0


@pytest.mark.parametrize("kernel", matmul_wgmma.TURNED_PAIRS, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_turned_pairs_as_the_source_has_them(kernel: matmul_kernel.Kernel) -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    consumers, (high, wide) = kernel.threads // 128 - 1, kernel.cluster
    boxes = kernel.inbox // (consumers * 16 * 128)  # of C, 16 rows each, in all outboxes of a consumer
    tile = f"TURNED_PAIR_KERNEL(matmul_wgmma_##dtype##_{kernel.name}, dtype, {kernel.rows}, {kernel.columns}, {kernel.stages}, "
    last = ", 2)" if high == 2 else ")"
    assert any(f"{tile}{outboxes}, {consumers}, {boxes // outboxes}{last}" in source for outboxes in (1, 2))
    for m in (200, 2504):
        found = launch(kernel, "bfloat16", m, 512, 776, 132)
        assert [matrix.box_rows for matrix in found.matrices] == [kernel.rows // wide, 64 // high, 16]
        assert (found.grid[0] % 2, kernel.rows // wide % 8) == (0, 0), "whole clusters; the swizzle is by address"


def test_the_plan_knows_the_pairs_as_the_source_has_them() -> None:
    (kernel,), source = matmul_wgmma.PAIRS, (FOLDER / "matmul_wgmma.cu").read_text()
    assert f"PAIR_KERNEL(dtype, {kernel.rows}, {kernel.columns}, {kernel.step_bytes // 2}, {kernel.stages}, 16)" in source
    for m, blocks in ((40, 2), (128, 2), (129, 4), (1080, 18)):
        found = launch(kernel, "bfloat16", m, 512, 128, 132)
        assert (found.grid[0], found.matrices[0].box_rows) == (blocks, 64), "boxes have all rows that the barrier counts, however low A is"
