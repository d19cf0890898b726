"""Products of transposed factors: what a workload says, what is on record of them, and what opwise.matmul hands to which backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_kernels import FakeKernels
from invoking import invoke
from recorded_runs import cell, store_of, stored
from torch import Tensor

import opwise
from opwise import library
from opwise.backends.gemm.cost import Product
from opwise.backends.protocol import Implementation, UnsupportedWorkload, Variant
from opwise.choosing.asked import NothingMeasured, workload_of
from opwise.choosing.query import choose_from
from opwise.choosing.selection import Fallback
from opwise.ops import OPS, Workload
from opwise.ops.spec import LAYOUTS
from opwise.record import Record
from opwise.runner.jobs import Entry, plan
from opwise.verifying.case import Case

MATMUL = OPS["matmul"]
CPU = torch.device("cpu")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def factors(layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """(6, 8) and (8, 5)."""
    return MATMUL.make_inputs(Workload("matmul", (6, 8, 5), str(dtype).removeprefix("torch."), layout), CPU, 3)


def of(layout: str, **us: float) -> list[Record]:
    return [cell(name, time, op="matmul", shape=(6, 8, 5), dtype="float32", layout=layout) for name, time in us.items()]


@each_layout
def test_a_workload_says_its_layout_and_its_inputs_have_it(layout: str) -> None:
    a, b = factors(layout)
    assert all(torch.equal(x, y) for x, y in zip((a, b), factors(""), strict=True)), "the same factors in every layout"
    workload = MATMUL.workload_of(a, b)
    assert workload.layout == layout
    assert Workload.parse(str(workload)) == workload
    assert Case.parse(f"{workload}/offset=1/seed=7") == Case(workload, offsets=(1, 1, 1), seed=7)
    for kind in (MATMUL.hard_inputs, MATMUL.whole_inputs):
        assert kind is not None
        assert MATMUL.workload_of(*kind(workload, CPU, 0)) == workload
    product = Product.of(a, b, torch.empty(6, 5), "float32")
    assert product.layout == (layout or "NN")
    assert product.pitches == (6 if layout[:1] == "T" else 8, 8 if layout[1:] == "T" else 5, 5)
    with pytest.raises(ValueError, match="known are NT, TN, TT"):
        Workload.parse("matmul/6x8x5/float32/NX")


@each_layout
def test_a_record_keeps_it_and_a_row_major_one_reads_as_it_always_did(layout: str) -> None:
    (record,) = of(layout, cupy_raw=5.0)
    assert Record.from_json(record.to_json()) == record
    assert ('"layout"' in record.to_json()) is bool(layout)
    assert record.workload.layout == layout


def test_figures_of_one_layout_say_nothing_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(*of("", torch_eager=9.0, cupy_raw=5.0), *of("NT", torch_eager=5.0, cupy_raw=9.0))
    chosen = {layout: choose_from(store, Workload("matmul", (6, 8, 5), "float32", layout), store.gpus[0]).backend for layout in ("", "NT")}
    assert chosen == {"": "cupy_raw", "NT": "torch_eager"}
    assert workload_of("matmul", factors(""), layout="NN").layout == workload_of("matmul", ("6x8x5",), "float32", "NN").layout == ""
    with pytest.raises(ValueError, match="layout NN is given, but the tensors make it NT"):
        workload_of("matmul", factors("NT"), layout="NN")
    with pytest.raises(NothingMeasured, match=r"factors as TN.*opwise run matmul/6x8x5/float32/TN"):
        choose_from(store, Workload("matmul", (6, 8, 5), "float32", "TN"), store.gpus[0])
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "none")
    stored(tmp_path, *store.records)
    asked = ("choose", "matmul", "--shape", "6x8x5", "--dtype", "float32", "--device", "nvidia-toy", "--out", str(tmp_path))
    assert "matmul/6x8x5/float32/NT for stream" in invoke(*asked, "--layout", "NT").output
    assert "NT, TN, TT is taken" in " ".join(invoke(*asked, "--layout", "XX").output.split())


def test_a_workload_that_is_spelled_out_is_that_one_alone() -> None:
    catalogue = {"toy": Entry("toy", variants={"matmul": {"": ""}})}
    shape = next(w for w in MATMUL.workloads["layers"] if not w.layout)

    def asked(*filters: str) -> list[str]:
        return [job.workload.layout for job in plan(catalogue, filters, "layers", "cpu") if job.workload.shape == shape.shape]

    assert (asked(str(shape)), asked(f"{shape}/NT"), asked("matmul", "NT"), asked("matmul")) == ([""], ["NT"], ["NT"], ["", "NT"])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("gradient", [False, True])
def test_a_transposed_factor_goes_to_what_is_chosen_for_its_layout(monkeypatch: pytest.MonkeyPatch, gradient: bool) -> None:
    fake = FakeKernels(monkeypatch, store_of(*of("", torch_eager=9e3, triton_jit=5.0), *of("NT", torch_eager=9e3, cupy_raw=5.0)))
    for layout in ("", "NT", ""):
        a, b = factors(layout)
        a.requires_grad_(gradient)
        assert torch.allclose(opwise.matmul(a, b), a @ b)
    called = list(dict.fromkeys(fake.calls))
    assert called == ["triton_jit", "cupy_raw"]
    rows = torch.randn(2, 3, 8)
    assert torch.allclose(opwise.matmul(rows, factors("NT")[1]), rows @ factors("NT")[1])
    with pytest.warns(Fallback, match="nothing measured|factors as TT"):
        opwise.matmul(*factors("TT"))


@pytest.mark.usefixtures("fresh")
def test_what_is_no_transpose_is_torch_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, store_of(*of("", torch_eager=9e3, triton_jit=5.0)))
    a, _ = factors("")
    every_other = torch.randn(8, 10)[:, ::2]
    assert torch.allclose(opwise.matmul(a, every_other), a @ every_other)
    assert fake.calls == []


def test_a_variant_takes_transposes_where_it_says_so() -> None:
    def build(a: Tensor, b: Tensor, out: Tensor) -> Any:
        return lambda a, b, out: lambda: torch.mm(a, b, out=out)

    a, b = factors("TT")
    out = torch.empty(6, 5)
    Implementation("toy", MATMUL, "", Variant(build, "", takes_transposed=True)).prepare(a, b, out=out)()
    assert torch.equal(out, a @ b)
    with pytest.raises(UnsupportedWorkload, match=r"row-major storage is taken: call a.contiguous\(\)"):
        Implementation("toy", MATMUL, "", Variant(build, "")).prepare(a, b, out=out)
    with pytest.raises(ValueError, match="row-major storage and its transpose are taken"):
        Implementation("toy", MATMUL, "", Variant(build, "", takes_transposed=True)).prepare(a, torch.randn(8, 10)[:, ::2], out=out)
