"""The variant `invariant` of matmul: one order of summation for all m, and configurations of one order have the same bits."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace

import pytest
import torch
from support import DEVICE, needs_gpu

from opwise.backends import BACKENDS, tuned
from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import choose, choose_invariant
from opwise.backends.gemm.cost import Product, Work, split_summation
from opwise.backends.gemm.gpu import Machine
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.tuned_table import TUNABLE
from opwise.measure.sameness import difference
from opwise.ops import OPS, Workload
from opwise.tuning.bench import built
from opwise.tuning.matmul import offered

TABLES = [name for name in TUNABLE if TUNABLE[name].op == "matmul"]
THROUGH = {"cuda_src": ("torch_inline", "cupy_raw")}
H100 = Machine(capability=(9, 0), sms=132, shared_bytes=232448)
AMPERE = replace(H100, capability=(8, 0), shared_bytes=163840)
FACTORS = [(4096, 4096), (3072, 768), (13824, 5120), (32, 4096), (4096, 32), (1000, 1000), (999, 1001), (1, 1)]


@pytest.mark.parametrize("machine", [H100, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("kind", ["bfloat16", "tfloat32", "float32"])
@pytest.mark.parametrize("table", TABLES)
def test_a_factor_has_one_order_of_summation_whatever_m_is(table: str, kind: str, machine: Machine) -> None:
    for k, n in FACTORS:
        for layout in ("NN", "NT"):
            orders = set()
            for m in (1, 7, 64, 300, 4096, 100_000):
                product = Product(m, k, n, kind, layout=layout)
                name = choose_invariant(product, lambda other: offered(table, other, machine), gpu.H100).name
                orders.add(offered(table, product, machine)[name].summation(product))
            assert len(orders) == 1
            assert "" not in orders


@dataclass(frozen=True)
class Planted:
    """Takes products of some numbers of rows. us: by which it is predicted, so to speak."""

    name: str
    order: str
    steps: int
    least: int = 0
    most: int = 1 << 30
    layout: str = "NN"

    def work(self, product: Product) -> Work:
        return Work(132, self.steps, "wgmma", 1e6, 1e4, 1e4, 4, 1e6, 1e6, 1e4)

    def summation(self, product: Product) -> str:
        return self.order


def test_the_quickest_order_that_serves_all_rows() -> None:
    ways = (
        Planted("split_by_m", "", 1),
        Planted("few_rows", "few", 1, most=8),
        Planted("many_rows", "many", 1, least=64),
        Planted("one_row", "whole", 20, most=8),
        Planted("tile", "whole", 20),
        Planted("other", "halves", 90),
    )

    def found(product: Product) -> dict[str, Planted]:
        return {w.name: w for w in ways if w.least <= product.m <= w.most}

    for m, expected, free in ((1, "one_row", "split_by_m"), (64, "tile", "split_by_m")):
        product = Product(m, 64, 64, "bfloat16")
        assert choose_invariant(product, found, gpu.H100).name == expected
        assert choose(product, found(product), gpu.H100).name == free
    with pytest.raises(UnsupportedWorkload, match="alike for every number of rows: use the unnamed"):
        choose_invariant(Product(1, 64, 64, "bfloat16"), lambda p: {"split_by_m": ways[0]}, gpu.H100)


def test_orders_of_split_k() -> None:
    """64 x 64 by 8 CTAs: whose sums come first goes by the row too. Steps of 64 and 128 share out K alike where both divide it."""
    assert split_summation(4096, 4, 1, 64) == "wgmma"
    assert split_summation(4096, 4, 8, 64) == ""
    assert split_summation(4096, 4, 4, 64) == split_summation(4096, 8, 4, 128) != split_summation(4096, 4, 2, 64)
    assert split_summation(3000, 4, 2, 64) != split_summation(3000, 4, 2, 128)


@needs_gpu
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "tfloat32", "float32"])
@pytest.mark.parametrize("backend", [b for table in TABLES for b in THROUGH.get(table.split("/")[0], (table.split("/")[0],))])
def test_configurations_of_one_order_have_the_same_bits(backend: str, kind: str) -> None:
    table = next(t for t in TABLES if backend in (*THROUGH.get(t.split("/")[0], ()), t.split("/")[0]))
    build = importlib.import_module(f"{BACKENDS[backend]}.matmul").VARIANTS[""].build
    machine, different = Machine.of(DEVICE), []
    for k, n in ((1024, 512), (992, 136), (4096, 32), (32, 1024)):
        alone: dict[str, torch.Tensor] = {}
        for m in (1, 7, 64, 300):
            workload = Workload("matmul", (m, k, n), kind)
            with workload.precision():
                a, b = OPS["matmul"].make_inputs(workload, DEVICE, 7)
                a[m - 1] = OPS["matmul"].make_inputs(replace(workload, shape=(1, k, n)), DEVICE, 8)[0][0]
                b = OPS["matmul"].make_inputs(replace(workload, shape=(1, k, n)), DEVICE, 8)[1]
                product = Product(m, k, n, kind)
                for name, config in offered(table, product, machine).items():
                    if order := config.summation(product):
                        out = torch.full((m, n), float("nan"), dtype=a.dtype, device=DEVICE)
                        built(build, table, name)(a, b, out)(a, b, out)()
                        if why := difference(out[m - 1], alone.setdefault(order, out[m - 1].clone())):
                            different.append(f"{name} at {m}x{k}x{n}, of {order}: {why}")
    assert not different, "\n".join(different)
    assert tuned.look(table, DEVICE).forced == ""
