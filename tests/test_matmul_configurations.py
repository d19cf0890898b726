"""Every configuration of matmul in CUDA C++: what it says of its launch, its kernel and its work agrees. Arithmetic: no GPU is needed."""

from __future__ import annotations

from collections import Counter
from itertools import product as every

import pytest

from opwise.backends.cuda_src.matmul import configs, offered
from opwise.backends.cuda_src.matmul.configurations import KINDS, TMA_LIMIT, Config
from opwise.backends.cuda_src.matmul.kernels.ffma import Ffma
from opwise.backends.cuda_src.plan import ELEMENT_BYTES
from opwise.backends.cuda_src.sources import UNITS, UNITS_OF_ONE, unit_of, units
from opwise.backends.gemm.cost import Product, predicted_us
from opwise.backends.gemm.gpu import H100, HOPPER, Machine

AMPERE, TURING, BLACKWELL = Machine(108, (8, 0), 163 * 1024), Machine(40, (7, 5), 64 * 1024), Machine(148, (10, 0), 227 * 1024)
ROWS, DEPTHS, COLUMNS = (1, 2, 3, 4, 8, 16, 17, 65, 130, 1003), (32, 520, 701), (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 776, 1001)
PRODUCTS = [Product(*shape, kind, alignment) for *shape, kind, alignment in every(ROWS, DEPTHS, COLUMNS, KINDS, (2, 4, 8, 16))
            if alignment >= Product(1, 1, 1, kind).size]  # fmt: skip
ALL = [(kind, config) for config in configs() for kind in KINDS if config.serves(kind)]
each = pytest.mark.parametrize(("kind", "config"), ALL, ids=lambda x: x if isinstance(x, str) else x.name)


def taken(kind: str, config: Config, machine: Machine = HOPPER) -> list[Product]:
    products = (p._replace(layout=config.layout) for p in PRODUCTS if p.kind == kind)
    return [p for p in products if config.takes(p, machine)]


@each
def test_a_launch_fits_the_gpu_and_reads_what_the_product_is(kind: str, config: Config) -> None:
    machine = HOPPER if taken(kind, config) else TURING
    products = taken(kind, config, machine)
    assert products, "some product can have it"
    for product in products[::7]:
        found = config.launch(product, machine)
        resident = getattr(config, "ctas_per_sm", 1) if config.UNIT != "matmul" else 1  # of any GPU's the launch bounds say as many
        assert resident * (found.shared_bytes + 1024) <= 228 * 1024, "as many CTAs fit an SM as it says"
        assert found.shared_bytes == config.shared_bytes(kind)
        assert found.block[0] in range(32, 1025, 32)
        m, k, n = product[:3]
        b = (n, k) if config.layout == "NT" else (k, n)
        assert [matrix[:2] for matrix in found.matrices] == [(m, k), b, (m, n)][: len(found.matrices)]
        for matrix in found.matrices:
            assert max(matrix.box_rows, matrix.box_columns) <= 256, "TMA's limit"
            wide = matrix.box_columns * ELEMENT_BYTES[matrix.element]
            assert wide <= 128 or matrix.classes or matrix.element == 7, "rows no wider than the swizzle"


@each
def test_the_kernel_is_in_a_unit_that_defines_it(kind: str, config: Config) -> None:
    kernel = config.kernel(kind)
    unit = unit_of(kernel)
    text = {**UNITS, **UNITS_OF_ONE["sm_90"]}[unit]
    lines = [line for (where, name), line in config.instances().items() if (where, name) == (unit, kernel)]
    assert len(lines) == 1
    assert f"{lines[0]}\n" in text
    assert kernel.removeprefix("matmul_") in lines[0] or isinstance(config, Ffma)
    assert (unit in units("sm_100")) == (unit in UNITS)


@each
def test_its_work_is_what_is_launched(kind: str, config: Config) -> None:
    for product in taken(kind, config)[::11]:
        work, found = config.work(product), config.launch(product, HOPPER)
        if work.persistent:
            assert found.grid[0] == min(work.ctas, HOPPER.sms // work.cluster * work.cluster)
        else:
            assert found.grid[0] == work.ctas
        assert work.ctas % work.cluster == 0
        deeper = config.work(product._replace(k=16 * product.k))
        assert 0 < predicted_us(work, H100) <= predicted_us(deeper, H100)


def test_names_tell_configurations_apart() -> None:
    for kind in KINDS:
        assert max(Counter(config.name for config in configs() if config.serves(kind)).values()) == 1


def test_every_product_can_be_computed_on_every_gpu() -> None:
    for product, layout, machine in every(PRODUCTS[::3], ("NN", "NT", "TN", "TT"), (HOPPER, AMPERE, TURING, BLACKWELL)):
        if machine.capability >= (8, 0) or (product.kind != "tfloat32" and (layout == "NN" or product.kind == "float32")):
            found = offered(product._replace(layout=layout), machine)
            assert found, (product, layout, machine)
            assert all(config.layout == layout for config in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_only_hopper_has_its_own_kernels(kind: str) -> None:
    product = Product(4096, 4096, 4096, kind)
    for machine in (AMPERE, BLACKWELL):
        assert all(unit_of(config.kernel(kind)) in UNITS for config in offered(product, machine).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{"alignment": 8}, {"k": 4098}, {"n": 4092 - 2}, {"m": TMA_LIMIT + 1, "k": 64, "n": 64}], ids=str)
def test_tensor_maps_are_of_rows_on_16_bytes_and_sides_of_30_bits(kind: str, change: dict[str, int]) -> None:
    product = Product(4096, 4096, 4096, kind)._replace(**change)
    for config in offered(product, HOPPER).values():
        maps = config.launch(product, HOPPER).matrices if max(product[:3]) <= TMA_LIMIT else ()
        assert all(matrix.classes for matrix in maps), config.name
        assert max(product[:3]) <= TMA_LIMIT or unit_of(config.kernel(kind)) in UNITS or "cluster" in config.kernel(kind)
