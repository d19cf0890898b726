"""The matmul kernels of cuda_src that its stand-in runs, each against float64, those too that no plan picks at sizes it can afford."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import product as every
from typing import Any

import pytest
import torch
from test_cuda_on_cpu import compiler_or_skip

from opwise.backends.cuda_on_cpu import MACHINE, NOT_RUN, suite
from opwise.backends.cuda_src.matmul import configs
from opwise.backends.cuda_src.matmul.configurations import BYTES, Config
from opwise.backends.cuda_src.matmul.extra.skinny_m import SkinnyM
from opwise.backends.cuda_src.matmul.extra.skinny_n import SkinnyN
from opwise.backends.cuda_src.matmul.extra.small_gemm import SmallGemm
from opwise.backends.cuda_src.matmul.kernels.gemv import Gemv
from opwise.backends.cuda_src.matmul.kernels.portable import MmaSync, Simt
from opwise.backends.cuda_src.plan import Plan
from opwise.backends.cuda_src.sources import UNITS, unit_of
from opwise.backends.gemm.cost import Product
from opwise.measure.validate import judge
from opwise.ops import OPS, Workload

pytestmark = pytest.mark.xdist_group("cuda_on_cpu")
RUN = [(kind, config) for config in configs() for kind in config.kinds if unit_of(config.kernel(kind)) in UNITS]


def of(*classes: type[Config]) -> pytest.MarkDecorator:
    those = [(kind, config) for kind, config in RUN if isinstance(config, classes)]
    return pytest.mark.parametrize(("kind", "config"), those, ids=lambda x: x if isinstance(x, str) else x.name)


def in_turns(*axes: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Every case with its kind of inputs, ordinary or hard, of which the cases beside it have the other."""
    for places in every(*(range(len(axis)) for axis in axes)):
        yield *(axis[at] for axis, at in zip(axes, places, strict=True)), sum(places) % 2 == 1


def assert_right(config: Config, kind: str, shape: tuple[int, int, int], hard: bool = False, seed: int = 5) -> None:
    """The kernel, whatever the plan would take for the product."""
    layout = "" if config.layout == "NN" else config.layout
    workload, spec, (m, k, n) = Workload("matmul", shape, kind, layout), OPS["matmul"], shape
    plan: Plan = config.launch(Product(m, k, n, kind, layout=config.layout), MACHINE)
    a, b = (spec.hard_inputs if hard else spec.make_inputs)(workload, torch.device("cpu"), seed)
    out = spec.empty_output(a, b).fill_(float("nan"))
    suite.kernels().launch(plan.kernel, plan.grid, plan.block, (a.data_ptr(), b.data_ptr(), out.data_ptr(), m, k, n), plan.shared_bytes)
    reference = spec.reference(a.double(), b.double())
    verdict = judge(out, reference, spec.error_bound(workload, reference, a.double(), b.double()))
    assert verdict.ok, verdict.reason


@of(MmaSync, Simt)
def test_every_tile_is_right(kind: str, config: MmaSync | Simt) -> None:
    compiler_or_skip()
    assert_right(config, kind, (config.rows + 8, 200, config.columns + 8))


@of(Gemv)
def test_every_kernel_of_few_columns_is_right(kind: str, config: Gemv) -> None:
    """Less K than its threads have, and some turns of them and a part; rows that end within a thread's four."""
    compiler_or_skip()
    each = config.vector_bytes // BYTES[kind]
    for (m, k), hard in in_turns(((9, each), (37, 2 * config.sharing * each + 3 * each))):
        assert_right(config, kind, (m, k, config.count), hard)


@of(SmallGemm)
def test_every_kernel_of_a_small_product_is_right(kind: str, config: SmallGemm) -> None:
    """Of a tile and parts of three more; of a part of a step, of one, and of some and a part."""
    compiler_or_skip()
    each = config.vector_bytes // BYTES[kind]
    for k, hard in in_turns((each, config.depth, 2 * config.depth + 5 * each)):
        assert_right(config, kind, (config.rows + 3, k, config.columns + 3 * each), hard)


@of(SkinnyM)
def test_every_kernel_of_sixteen_rows_is_right(kind: str, config: SkinnyM) -> None:
    """Of fewer rows, too; of less than a step of K, of some turns of all warps and a part of one more."""
    compiler_or_skip()
    each = config.vector_bytes // BYTES[kind]  # elements of an access
    deep = 2 * 3 * config.warps * 64 // BYTES[kind]
    for rows, k, hard in in_turns((16, 5), (3 * each, deep + 5 * each)):
        assert_right(config, kind, (rows, k, 32 + 3 * each), hard)


# (m, k): less than a step of K, some turns of all warps and a part of one more, rows that end on every byte.
OF_COLUMNS = ((300, 40), (133, 1032), (530, 72), (61, 32), (300, 296), (17, 4), (530, 262), (61, 66), (301, 5), (77, 1031), (33, 1))


@of(SkinnyN)
def test_every_kernel_of_five_to_sixteen_columns_is_right(kind: str, config: SkinnyN) -> None:
    """Of all its columns and, where it may have fewer, of three fewer."""
    compiler_or_skip()
    fewer = () if config.vector_bytes == 16 else (config.count - 3,)
    taken = tuple((m, k) for m, k in OF_COLUMNS if k * BYTES[kind] % config.of_a == 0)
    for (m, k), n, hard in in_turns(taken, (config.count, *fewer)):
        assert_right(config, kind, (m, k, n), hard)


def test_what_is_not_run_is_what_the_stand_in_lacks() -> None:
    compiler_or_skip()
    for config, kind in [(each, kind) for each in configs() for kind in each.kinds]:
        kernel = config.kernel(kind)
        if (kind, config) in RUN:
            suite.kernels().kernel(kernel)
        else:
            assert any(fnmatch(kernel, pattern) for pattern in NOT_RUN["matmul"][0].split(" and ")), kernel
            with pytest.raises(KeyError):
                suite.kernels().kernel(kernel)
