"""What kernels/wgmma.py says of a kernel is what wgmma.cu has."""

from __future__ import annotations

import math

import pytest
from plans import kernel_for
from support import LARGE_PRODUCTS

from opwise.backends.cuda_src.matmul import launch, offered
from opwise.backends.cuda_src.matmul.configuration import SHARED_LIMIT, Kernel
from opwise.backends.cuda_src.matmul.kernels import wgmma
from opwise.backends.cuda_src.sources import FOLDER

SHARED = wgmma.SPLIT + wgmma.NARROW + wgmma.HALVES
OF_WARPGROUPS = wgmma.WGMMA + wgmma.PINGPONG + wgmma.COUPLED


def test_kernels_that_few_products_take_are_among_those_that_gpus_are_tested_with() -> None:
    taken = {kernel_for("bfloat16", *shape) for shape in LARGE_PRODUCTS if shape[1] % 8 == shape[2] % 8 == 0}
    names = [kernel.name for kernel in (*wgmma.NARROW, *wgmma.HALVES, *wgmma.PINGPONG, *wgmma.COUPLED)]
    assert not [name for name in names if f"matmul_wgmma_bfloat16_{name}" not in taken]


@pytest.mark.parametrize("kernel", SHARED, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_shared_tiles_as_the_source_has_them(kernel: Kernel) -> None:
    source = (FOLDER / "matmul/kernels/wgmma.cu").read_text()
    tile = (kernel.rows, kernel.columns, kernel.step_bytes // 2, kernel.stages, kernel.split, kernel.resident)
    group = 4 if kernel.columns == 128 and kernel.split == 1 else 16
    assert f"SPLIT_KERNEL(matmul_wgmma_##dtype##_{kernel.name}, dtype, {', '.join(map(str, tile))}, {group})" in source
    assert kernel.threads == 32 * (kernel.rows // 16 + 1), "four warps for 64 rows, and the producer"
    assert kernel.resident * (kernel.shared_bytes(2) + 1024) <= 228 * 1024, "as many blocks fit a multiprocessor as it says"
    owned, more = divmod(kernel.rows // 16 * (kernel.columns // 16), kernel.split)  # units of 1 KiB
    assert (more, kernel.inbox) == (0, owned * (kernel.split - 1) * 1024), "each block owns as many and takes the others' parts of them"


@pytest.mark.parametrize("kernel", wgmma.SWAP_AB, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_tiles_of_swapped_operands_as_the_source_has_them(kernel: Kernel) -> None:
    source = (FOLDER / "matmul/kernels/wgmma.cu").read_text()
    assert f"##_{kernel.name}, dtype, {kernel.resident}, {kernel.rows}, {kernel.columns}, {kernel.stages})" in source
    assert kernel.threads == 32 * (kernel.columns // 16 + 1), "four warps for 64 columns, and the producer"
    assert kernel.shared_bytes(2) <= SHARED_LIMIT[9, 0] * 1024


def test_swapped_operands_are_offered_where_half_of_a_tile_is_not_empty() -> None:
    def there(m: int) -> bool:
        return "144x128" in offered(m, 512, 1536, "float16", 16, 132, (9, 0))

    assert [there(m) for m in (128, 129)] == [False, True]


@pytest.mark.parametrize("kernel", OF_WARPGROUPS, ids=lambda kernel: str(kernel.name))
def test_the_plan_knows_the_tiles_of_warpgroups_as_the_source_has_them(kernel: Kernel) -> None:
    source = (FOLDER / "matmul/kernels/wgmma.cu").read_text()
    high, blocks = kernel.cluster[0], math.prod(kernel.cluster)
    in_turns, consumers = kernel in wgmma.PINGPONG, kernel.threads // 128 - 1
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
