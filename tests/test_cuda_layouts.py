"""Products of transposes in CUDA C++: which kernels take them, and that these are right at any size and alignment, in the stand-in."""

from __future__ import annotations

import pytest
import torch
from test_cuda_on_cpu import compiler_or_skip

from opwise.backends.cuda_on_cpu import MACHINE, suite
from opwise.backends.cuda_src.matmul import configs, offered
from opwise.backends.cuda_src.matmul.configurations import KINDS, Config
from opwise.backends.cuda_src.recipes import RECIPES
from opwise.backends.cuda_src.sources import UNITS, unit_of
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER
from opwise.measure.validate import judge
from opwise.ops import OPS, Workload

pytestmark = pytest.mark.xdist_group("cuda_on_cpu")
SPEC, LAYOUTS = OPS["matmul"], ("NT", "TN", "TT")
# (M, K, N): one element, odd sides, rows on 4 and on 8 bytes, several tiles and parts of some, long in K.
SHAPES = ((1, 1, 1), (67, 131, 33), (66, 34, 70), (68, 36, 132), (136, 200, 72), (8, 1000, 24), (1, 300, 130), (130, 300, 1))


TILES = [(kind, config) for config in configs() if config.layout != "NN" for kind in config.kinds if unit_of(config.kernel(kind)) in UNITS]
CASES = [(kind, config, product) for kind, config in TILES for m, k, n in SHAPES
         if config.takes(product := Product(m, k, n, kind, layout=config.layout), MACHINE)]  # fmt: skip


def said(x: str | Config | Product) -> str:
    return x if isinstance(x, str) else "x".join(map(str, x[:3])) if isinstance(x, Product) else x.name


@pytest.mark.parametrize(("kind", "config", "product"), CASES, ids=said)
def test_a_kernel_is_right_where_it_takes_the_product(kind: str, config: Config, product: Product) -> None:
    compiler_or_skip()
    shape = product[:3]
    workload, plan = Workload("matmul", shape, kind, config.layout), config.launch(product, MACHINE)
    a, b = (SPEC.hard_inputs if sum(shape) % 4 else SPEC.whole_inputs or SPEC.make_inputs)(workload, torch.device("cpu"), 3)
    out = SPEC.empty_output(a, b).fill_(float("nan"))
    suite.kernels().launch(plan.kernel, plan.grid, plan.block, (a.data_ptr(), b.data_ptr(), out.data_ptr(), *shape), plan.shared_bytes)
    reference = SPEC.reference(a.double(), b.double())
    verdict = judge(out, reference, SPEC.error_bound(workload, reference, a.double(), b.double()))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_plans_what_the_strides_say(kind: str, layout: str) -> None:
    """Through the front door, addresses off 16 bytes too."""
    for shape, off in ((shape, off) for shape in SHAPES for off in (0, 1, 2)):
        workload = Workload("matmul", shape, kind, layout)
        with workload.precision():
            a, b = SPEC.make_inputs(workload, torch.device("cpu"), 1)
            shifted = torch.empty(a.numel() + off, dtype=a.dtype)[off:].as_strided(a.shape, a.stride())
            plan = RECIPES["matmul"][""].plan(shifted, b, SPEC.empty_output(a, b))
        found = "".join("N" if x.is_contiguous() else "T" for x in (a, b))  # a row or a column is both
        assert found == "NN" or plan.kernel.startswith(f"matmul_transposed_{kind}_")
        assert plan.kernel.endswith(f"_{found.lower()}") == (found != "NN")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_hopper_multiplies_by_wgmma_where_b_lies_along_k(kind: str) -> None:
    """The rows of the boxes are what a wgmma reads along K: 64 elements."""
    large, few = Product(4096, 4096, 4096, kind, layout="NT"), Product(16, 4096, 1024, kind, layout="NT")
    for product in (large, few):
        boxes = [config.launch(product, HOPPER).matrices for config in offered(product, HOPPER).values()]
        boxes = [maps for maps in boxes if maps]
        assert len(boxes) >= 10
        for maps in boxes:
            assert maps[1][:2] == (product.n, product.k)
            assert (maps[1].box_columns, maps[1].box_rows % 8) == (64, 0)
    for other in (large._replace(layout="TN"), large._replace(alignment=8), large._replace(k=4100)):
        assert not any("wgmma" in config.kernel(kind) for config in offered(other, HOPPER).values())
