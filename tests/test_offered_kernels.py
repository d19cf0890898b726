"""scripts/offered_kernels.py: no kernel that an H100's plans know is left out, and each cell can be launched as it says."""

from __future__ import annotations

import pytest
from script_modules import script
from support import or_skip
from test_one_kernel import defined

from opwise.backends.cuda_src.sources import units
from opwise.backends.tuned_table import tunables
from opwise.ops import OPS, Workload

offered_kernels = script("offered_kernels")

# Of rows that no plan of an H100 takes: of several blocks there, where older GPUs have one.
OF_OTHER_GPUS = {f"softmax_{dtype}_long_v16" for dtype in OPS["softmax"].dtypes}
OF_OTHER_GPUS |= {f"matmul_{dtype}_simt_64x64_v2" for dtype in ("float16", "bfloat16")}  # those without mma.sync
NOT_IN_TABLES = "ladder", "textbook"  # named variants, which the smoke workloads launch


def test_every_kernel_of_cuda_is_offered_somewhere() -> None:
    found = {
        offer.kernel[0] for workload in offered_kernels.products() for offer in offered_kernels.of_products("cuda_src/matmul", workload)
    }
    found |= {offer.kernel[0] for workload in offered_kernels.rows() for offer in offered_kernels.of_rows("cuda_src/softmax", workload)}
    known = {name for unit, text in units("sm_90").items() if unit.startswith(("matmul", "softmax")) for name in defined(unit, text)}
    wanted = {name for name in known if not any(part in name for part in NOT_IN_TABLES)}
    assert wanted - found == OF_OTHER_GPUS
    assert found <= wanted


@pytest.mark.parametrize("backend", offered_kernels.HAND_WRITTEN)
def test_cells_are_workloads_that_have_the_configuration_and_each_is_there_once(backend: str) -> None:
    with or_skip(ImportError, backend):
        cells = offered_kernels.cells(backend)
    forced = [cell for cell in cells if cell[2]]
    assert {cell[0] for cell in cells} == {f"{backend}/{op}" for op in OPS}
    assert {cell[0] for cell in forced} == {f"{backend}/{op}" for op in ("matmul", "softmax")}
    assert len({tuple(cell) for cell in cells}) == len(cells)
    for name, text, configuration in forced:
        workload = Workload.parse(text)
        assert name == f"{backend}/{workload.op}"
        if workload.op == "softmax":
            table = tunables(("softmax",), backend)[0]
            assert configuration in offered_kernels.ways(table).configurations(workload)
    for name, text, configuration, shifted in (cell for cell in cells if not cell[2]):
        assert (name, configuration, shifted) == (f"{backend}/{Workload.parse(text).op}", "", 1)


def test_what_keeps_a_kernel_busy_comes_before_what_is_less() -> None:
    offers = {"a": [("one", True), ("two", False)], "b": [("one", True), ("two", True)], "c": [("three", False)]}

    def of(workload: str) -> list[object]:
        return [offered_kernels.Offer((name,), f"{name}_v", busy) for name, busy in offers[workload]]

    assert sorted(offered_kernels.least("abc", of)) == [("a", "one_v"), ("b", "two_v"), ("c", "three_v")]
