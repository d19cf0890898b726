"""numba_cuda's products of transposed factors: which kernels take them, and that these are right, in fibres.

wgmma's are in test_numba_hopper.py; all are compiled by test_compile.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from numba_parts_fibres import product
from numba_product_fibres import MAIN, module
from support import Tally, Truth, guarded_copy, in_stand_in, needs, truth_of, worst_error

import opwise
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER, Machine
from opwise.ops import OPS, Workload
from opwise.ops.spec import LAYOUTS

needs("numba.cuda")
each_layout = pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout])
KINDS = "float32", "tfloat32", "float16", "bfloat16"
AMPERE = Machine(108, (8, 0), 163 * 1024)


def stored(layout: str, inputs: tuple[torch.Tensor, ...], offset: int = 0) -> tuple[torch.Tensor, ...]:
    """The factors, in memory as the layout says, nan around them."""
    laid_out = (x.t().contiguous().t() if by == "T" else x for x, by in zip(inputs, layout, strict=True))
    return tuple(guarded_copy(x, offset) for x in laid_out)


def factors(layout: str, kind: str, shape: tuple[int, int, int], seed: int) -> tuple[torch.Tensor, ...]:
    return stored(layout, OPS["matmul"].make_inputs(Workload("matmul", shape, kind), torch.device("cpu"), seed))


@in_stand_in
@each_layout
@pytest.mark.parametrize("kind", ["float32", "tfloat32", "bfloat16"])
def test_each_tile_is_right_whatever_comes_first(kind: str, layout: str) -> None:
    """A ring that goes round and parts of tiles, whose rows start on 16 bytes; then of odd sizes, and one element."""
    found = module("matmul").offered(Product(1, 1, 1, kind, layout=layout), AMPERE).values()
    for seed, tile in enumerate(found):
        deep = 64 // (4 if "float32" in kind else 2) * (tile.stages + 1)
        small = tile.rows < 128
        odd = ((tile.rows + 1, 35, tile.columns + 3), (1, 1, 1), (3, 7, 2)) if small else ((5, 3, 131),)
        for whole, shape in ((True, (tile.rows + 8, deep + 8 if small else 40, tile.columns + 16)), *((False, shape) for shape in odd)):
            a, b = factors(layout, kind, shape, seed)
            error = worst_error(product(tile, kind, whole, a, b, seed), Workload("matmul", shape, kind), a, b)
            assert error <= 1, (tile, whole, shape)


@in_stand_in
@each_layout
@pytest.mark.parametrize("kind", KINDS)
def test_the_op_takes_views_at_any_alignment(kind: str, layout: str) -> None:
    tally = Tally(MAIN[0])
    check_views(tally, kind, layout, ((17, 33, 19), (24, 40, 16), (2, 1, 3), (24, 8, 66), (7, 32, 24)))
    tally.close()
    with pytest.raises(ValueError, match="row-major storage is taken"):
        opwise.implementation("numba_cuda/matmul:plain", torch.device("cpu"))(*factors(layout, "float32", (5, 3, 7), 1))


def check_views(tally: Tally, kind: str, layout: str, shapes: tuple[tuple[int, int, int], ...]) -> None:
    for seed, shape in enumerate(shapes):
        for offset in (0, 1) if seed < 2 else (0,):
            workload = Workload("matmul", shape, kind, layout)
            known = truth_of(workload, *OPS["matmul"].make_inputs(workload, torch.device("cpu"), seed))
            moved = stored(layout, known.inputs, offset)
            tally.check(workload, Truth(moved, known.reference, known.bound), offset=offset, note=f"offset {offset}")


@each_layout
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_gets_kernels_of_its_layout_and_their_names_say_it(kind: str, layout: str) -> None:
    offered = module("matmul").offered
    for machine in (HOPPER, AMPERE):
        for shape in ((1, 1, 1), (8, 4096, 4096), (4096, 4096, 4096)):
            found = offered(Product(*shape, kind, layout=layout), machine)
            assert found
            assert all(tile.layout == layout and name.endswith(f"_{layout.lower()}") for name, tile in found.items())
            by_tma = [name for name in found if not name.startswith(("mma", "fma"))]
            assert bool(by_tma) == (machine == HOPPER and layout == "NT" and "float32" not in kind and shape[1] > 1)


@pytest.mark.parametrize(
    ("layout", "sizes", "of_float32", "of_float16"),
    [("NN", (3, 8, 16), True, True), ("NN", (3, 7, 16), True, False), ("NN", (8, 8, 3), False, False),
     ("NT", (3, 8, 16), True, True), ("NT", (3, 7, 16), True, False), ("TN", (3, 8, 16), False, False), ("TN", (8, 3, 16), True, True),
     ("TT", (8, 3, 16), True, False), ("TT", (8, 8, 3), False, False), ("TT", (8, 16, 8), True, True)],
)  # fmt: skip
def test_rows_are_looked_at_as_they_lie_in_memory(layout: str, sizes: tuple[int, int, int], of_float32: bool, of_float16: bool) -> None:
    """In float32 neither A by rows nor B by columns is copied by 16 bytes."""
    whole_rows = module("matmul").whole_rows
    assert whole_rows(Product(*sizes, "float32", layout=layout)) == of_float32
    assert whole_rows(Product(*sizes, "float16", layout=layout)) == of_float16


PROGRAM = """
import importlib, json, re
m = importlib.import_module("opwise.backends.numba_cuda.matmul")
told = {}
for tiles in (m.WGMMA[2:3], m.SPLIT_K[:1], m.HOPPER_NT[2:3], m.HOPPER_NT[5:6]):
    text = m.sm90_kernel("bfloat16", tiles[0]).ptx("sm_90")
    told[tiles[0].name] = sorted(set(re.findall(r"(?:add|always), (1, 1, [01], [01]);", text)))
print(json.dumps(told))
"""


def test_wgmma_is_told_how_b_is_stored() -> None:
    """By the last of its immediates, which the fibres' wgmma does not read: 1 for a row-major B, 0 for one that lies along k, as A does."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    across, along = ["1, 1, 0, 1"], ["1, 1, 0, 0"]
    assert told == {"128x128": across, "64x64_s1": across, "128x128_nt": along, "64x64_s1_nt": along}
