"""Triton's products whose factors are transposes of row-major matrices, and what the compiler makes of them for sm_90."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from support import ON_GPU, Candidate, Tally, by_dtype, guarded_copy, right_candidates, truth_of
from triton_sass import LINE, compiled_once, disassembly

from opwise.backends import tuned
from opwise.backends.gemm.choice import Choice, choose
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import H100, HOPPER
from opwise.backends.gemm.measured import Time
from opwise.backends.protocol import Implementation
from opwise.backends.tuned import Choices
from opwise.ops import OPS
from opwise.ops.spec import LAYOUTS, Workload

SPEC, TRANSPOSED = OPS["matmul"], LAYOUTS[1:]
PRODUCTS = [c for c in right_candidates() if (c.backend, c.op) == ("triton_jit", "matmul") and c.variant in ("", "pointers")]
# Whole tiles; ragged on 16 elements, so that vectors end at masks; odd; one row. On a GPU beside those more rows than swap_ab's tiles have.
SHAPES = ((32, 128, 64), (80, 48, 112), (37, 71, 41), (1, 33, 35))
LARGE = ((16, 1032, 200), (200, 1032, 264), (384, 512, 512), (1003, 701, 463))
HALF = {"tma", "pingpong", "split_k"}

SPECIMENS = """
from dataclasses import replace
from opwise.backends.triton_jit.matmul import specimen_of
from opwise.backends.triton_jit.matmul.configurations import HALF_CONFIGS
of = {c.kernel + "_swap_ab" * c.swap_ab + "_split" * (c.split_k > 1): c for c in HALF_CONFIGS}  # one of each
specimens = {f"{name} {way}": specimen_of(replace(c, layout=way), "bfloat16") for name, c in of.items() for way in ("NN", "NT", "TN", "TT")}
"""


def laid_out(workload: Workload, seed: int) -> tuple[torch.Tensor, ...]:
    """With nan around each factor as it lies in memory."""
    found = SPEC.make_inputs(workload, torch.device("cuda" if ON_GPU else "cpu"), seed)
    return tuple(guarded_copy(x) if x.is_contiguous() else guarded_copy(x.t()).t() for x in found)


@pytest.mark.parametrize("layout", TRANSPOSED)
@pytest.mark.parametrize(("candidate", "dtype"), by_dtype(PRODUCTS), ids=str)
def test_every_configuration_takes_transposed_factors(candidate: Candidate, dtype: str, layout: str) -> None:
    from opwise.backends.triton_jit import matmul
    from opwise.backends.triton_jit.common.launch import machine_of

    found, tally = candidate.get(), Tally(candidate)
    assert found.source.takes_transposed
    for shape in (*SHAPES, *(LARGE if ON_GPU else ())):
        workload = Workload("matmul", shape, dtype, layout)
        inputs = laid_out(workload, 7)
        known = truth_of(workload, *inputs)
        product = Product.of(*inputs, known.reference.float(), dtype)
        names = [] if candidate.variant else list(matmul.offered(product, machine_of(inputs[0].device)))
        for name in names:
            fresh = Implementation(found.backend, found.op, found.variant, found.source, found.device_type)
            forced = Tally(replace(candidate, found=fresh))
            with tuned.forced(matmul.TABLE, name):
                forced.check(workload, known, note=name)
            tally.failures += forced.failures
        tally.check(workload, known)
    tally.close()


@pytest.mark.skipif(ON_GPU, reason="on a GPU the test above goes through descriptors")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("layout", TRANSPOSED)
def test_right_through_descriptors(layout: str, persistent: bool) -> None:
    from opwise.backends.triton_jit import matmul

    config = matmul.Config(32, 64, 32, 4, 3, 1, "tma", persistent=persistent, layout=layout)
    for shape in ((64, 64, 128), (72, 104, 136)):
        workload = Workload("matmul", shape, "float16", layout)
        a, b = laid_out(workload, 3)
        known, out = truth_of(workload, a, b), torch.full((shape[0], shape[2]), float("nan"), dtype=torch.float16)
        matmul.build_of(config, a, b, out, "ieee")(a, b, out)()
        assert bool(((out.double() - known.reference).abs() <= known.bound).all())


def test_what_a_layout_is_offered() -> None:
    """No kernel that takes row-major factors alone; what was measured of them decides among the others."""
    from opwise.backends.triton_jit.matmul.configurations import offered, whole_vectors

    for layout in TRANSPOSED:
        for dtype, kernels in (("float16", HALF | {"pointers"}), ("float32", {"pointers"}), ("tfloat32", {"pointers"})):
            product = Product(16, 4096, 4096, dtype, layout=layout)
            found = offered(product, HOPPER)
            assert {c.kernel for c in found.values()} == kernels
            assert all(c.layout == layout and name == c.name and name.endswith(layout) for name, c in found.items())
            assert not any(c.prefetch or (c.kernel == "pointers" and c.split_k > 1) for c in found.values())
            slowest = max(found, key=lambda name: found[name].BM)
            times = {replace(found[slowest], layout="NN").name: Time(0.1), slowest: Time(9.0)}
            ships = Choices(ships={f"matmul/16x4096x4096/{'16-bit' if dtype == 'float16' else dtype}": times})
            assert choose(product, found, H100, ships) == Choice(slowest, "measured")
            assert choose(product, found, H100, Choices()).by == "predicted"
            assert choose(product, found, H100, Choices(forced=slowest)).by == "forced"
    assert [whole_vectors(Product(48, 33, 48, "float16", layout=layout)) for layout in ("NN", *TRANSPOSED)] == [False, False, True, False]
    assert [whole_vectors(Product(33, 48, 33, "float16", layout=layout)) for layout in ("NN", *TRANSPOSED)] == [False, True, False, False]


@compiled_once
def test_wgmma_transposes_what_lies_in_shared_memory() -> None:
    """Both factors come from there, as TMA has left them. Of swapped factors the first is b."""
    for name, sass in disassembly(SPECIMENS).items():
        kernel, (a, b) = name.split()[0], name.split()[1]
        wanted = {"tnspA": a == "T", "tnspB": b == "N"} if "swap_ab" not in kernel else {"tnspA": b == "N", "tnspB": a == "T"}
        lines = [(each, rest) for _, each, rest in LINE.findall(sass)]
        products = [rest for each, rest in lines if each.startswith("HGMMA")]
        assert products, name
        assert all({flag: flag in rest for flag in wanted} == wanted for rest in products), name
        assert not any(re.search(r"R\d+, R\d+, gdesc", rest) for rest in products), f"{name}: a factor from registers"
        assert not [each for each, _ in lines if each.startswith(("LDSM", "LDL", "STL"))], name
