"""Bitwise: planted kernels that are not repeatable, or whose rows depend on their batch, are told from those that are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_kernels import EAGER
from recorded_runs import cell, store_of, stored
from torch import Tensor

from opwise.backends.protocol import Implementation, Variant
from opwise.choosing.asked import NothingMeasured
from opwise.choosing.query import choose_from
from opwise.choosing.store import Store
from opwise.measure import sameness
from opwise.measure.sameness import Facts, by_rows, difference, digest, digests, facts, of
from opwise.ops import OPS, Workload
from opwise.record import Record
from opwise.report.tables import ANSWERS
from opwise.runner.facts import all_facts, joined

CPU = torch.device("cpu")
AT = {"softmax": "softmax/5x33/float32", "matmul": "matmul/5x40x7/float32", "mean": "mean/5x33/float32", "gelu": "gelu/5x33/float16"}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sameness, "BATCHES", (7, 64, 100))


def made(op: str, compute: Callable[..., Tensor]) -> Implementation:
    def build(*tensors: Tensor) -> Callable[..., Callable[[], Tensor]]:
        return lambda *bound: lambda: bound[-1].copy_(compute(*bound[:-1]))

    return Implementation("toy", OPS[op], "", Variant(build, ""))


def in_order(x: Tensor, order: list[int]) -> Tensor:
    """Softmax whose sums are taken in an order: floats are not associative."""
    e = torch.exp(x - x.amax(1, keepdim=True))
    total = torch.zeros_like(e[:, :1])
    for i in order:
        total = total + e[:, i : i + 1]
    return e / total


def test_what_is_the_same_each_time_and_in_any_batch() -> None:
    found = of(made("softmax", lambda x: in_order(x, list(range(33)))), Workload.parse(AT["softmax"]), CPU)
    assert found == Facts(True, True, "", found.bits)
    assert len(found.bits) == 16
    for op, invariant in (("mean", None), ("gelu", None)):
        assert of(made(op, EAGER[op]), Workload.parse(AT[op]), CPU)[:3] == (True, invariant, "")


def test_a_sum_in_any_order_as_atomics_take_it_is_not_repeatable() -> None:
    shuffles = itertools.count()

    def compute(x: Tensor) -> Tensor:
        order = torch.randperm(33, generator=torch.Generator().manual_seed(next(shuffles))).tolist()
        return in_order(x, order)

    found = of(made("softmax", compute), Workload.parse(AT["softmax"]), CPU)
    assert (found.repeatable, found.batch_invariant) == (False, None)
    assert "of 20: element" in found.differs


@pytest.mark.parametrize("rows", [7, 64, 100])
def test_a_split_by_the_number_of_rows_is_not_batch_invariant(rows: int) -> None:
    def compute(a: Tensor, b: Tensor) -> Tensor:
        parts = 4 if a.shape[0] == rows else 1
        return torch.stack([x @ y for x, y in zip(a.chunk(parts, 1), b.chunk(parts, 0), strict=True)]).sum(0)

    found = of(made("matmul", compute), Workload.parse(AT["matmul"]), CPU)
    assert (found.repeatable, found.batch_invariant) == (True, False)
    assert f"of {rows}: element" in found.differs


def test_a_row_that_depends_on_its_place_is_not_batch_invariant() -> None:
    def compute(x: Tensor) -> Tensor:
        whole = in_order(x, list(range(33)))
        if x.shape[0] == 64:
            whole[40:] = in_order(x[40:], list(range(32, -1, -1)))
        return whole

    found = of(made("softmax", compute), Workload.parse(AT["softmax"]), CPU)
    assert found.batch_invariant is False
    assert "at place 4" in found.differs
    assert "of 64" in found.differs


def test_where_rows_are_alike_is_the_reference_s_to_tell() -> None:
    told = {op: by_rows(OPS[op], Workload.parse(text)) for op, text in AT.items()}
    assert told == {"softmax": True, "matmul": True, "mean": False, "gelu": False}
    assert not by_rows(OPS["matmul"], Workload("matmul", (5, 40, 7), "float32", "TN")), "its rows are columns in memory"


def test_bits_are_compared_and_not_values() -> None:
    a = torch.tensor([[1.0, float("nan"), 0.0]])
    assert difference(a, a.clone()) == ""
    assert difference(a, torch.tensor([[1.0, float("nan"), -0.0]])) == "element (0, 2) is 0.0, was -0.0; 1 of 3 differ"
    assert digest(a) != digest(torch.tensor([[1.0, float("nan"), -0.0]]))


def test_a_second_process_has_its_say() -> None:
    cells = (("torch_eager/softmax", AT["softmax"]), ("nobody/softmax", AT["softmax"]))
    one, other = facts(lambda name, phase: None, "cpu", cells), digests(lambda name, phase: None, "cpu", cells)
    assert joined(one[cells[0]], other[cells[0]]).repeatable is True
    assert one[cells[1]].repeatable is None
    assert one[cells[1]].differs
    assert joined(one[cells[0]], "another") == Facts(False, None, "another process has another result", one[cells[0]].bits)
    assert joined(one[cells[0]], "").repeatable is None
    assert all_facts([], {}, "cpu", None, print) == {}, "a stand-in tells nothing of a GPU"


def test_records_keep_the_answers_and_are_as_before_where_nobody_asked() -> None:
    record = Record.of("triton_jit/softmax", Workload.parse(AT["softmax"]), status="ok", repeatable=True, batch_invariant=False, bits="ab")
    assert Record.from_json(record.to_json()) == record
    unasked = Record.of("triton_jit/softmax", Workload.parse(AT["softmax"]), status="ok")
    assert not {"repeatable", "batch_invariant", "differs", "bits"} & set(unasked.to_json().split('"'))
    assert Record.from_json(unasked.to_json()) == unasked
    assert ANSWERS[record.batch_invariant] == "no"


def test_the_choice_among_the_invariant_tells_its_price() -> None:
    def row(backend: str, us: float, **told: object) -> Record:
        return cell(backend, us, shape=(5, 33), dtype="float32", **told)

    varies = row("torch_eager", 8.0, repeatable=True, batch_invariant=False, differs="a row alone", bits="ab")
    store = store_of(varies, row("cupy_raw", 5.0), row("triton_jit", 6.0, repeatable=True, batch_invariant=True, bits="ab"))
    workload, gpu = Workload.parse(AT["softmax"]), store.gpus[0]
    assert choose_from(store, workload, gpu).backend == "cupy_raw"
    found = choose_from(store, workload, gpu, invariant=True)
    assert (found.backend, found.why.endswith("Batch-invariant costs 1.20 of the fastest here, cupy_raw.")) == ("triton_jit", True)
    assert found.excluded["torch_eager"] == "not batch-invariant: a row alone"
    assert f"opwise run {workload} --facts" in found.excluded["cupy_raw"]
    with pytest.raises(NothingMeasured, match="--facts"):
        choose_from(store_of(row("cupy_raw", 5.0)), workload, gpu, invariant=True)


def test_variants_called_invariant_are_chosen_among_the_invariant_alone() -> None:
    shape, whole = (5, 40, 7), {"op": "matmul", "dtype": "float32", "repeatable": True, "bits": "ab"}
    fast = cell("cupy_raw", 5.0, shape=shape, **whole, batch_invariant=False, differs="a row alone")
    slow = cell("cupy_raw", 5.5, shape=shape, **whole, batch_invariant=True, variant="invariant")
    store, workload = store_of(fast, slow), Workload.parse("matmul/5x40x7/float32")
    free, kept = (choose_from(store, workload, store.gpus[0], invariant=asked) for asked in (False, True))
    assert (free.implementation, kept.implementation) == ("cupy_raw/matmul", "cupy_raw/matmul:invariant")
    assert [s.backend for s in free.ranking] == ["cupy_raw"]
    assert kept.why.endswith("Batch-invariant costs 1.10 of the fastest here, cupy_raw.")


def test_what_a_newer_run_was_not_asked_for_an_older_one_of_the_same_kernels_has(tmp_path: Path) -> None:
    old = cell("cupy_raw", 5.0, repeatable=True, batch_invariant=True, bits="ab")
    brief = replace(cell("cupy_raw", 4.0, time="2026-01-03T00:00:00+00:00"), kernel_warm_us=None)
    for n, (newer, filled) in enumerate([(brief, True), (replace(brief, source="ef"), False), (replace(brief, driver="2.0"), False)]):
        folder = tmp_path / str(n)
        paths = [stored(folder, old), stored(folder, newer, name="20260103T000000Z-core-abc1234")]
        (found,) = Store.load(paths, "softmax").records
        assert found.kernel_cold_us == newer.kernel_cold_us
        assert (found.bits, found.batch_invariant) == (("ab", True) if filled else ("", None))
        assert Store.load(paths, "softmax", "graph").records == [old], "of a graph the warm time counts, which a brief run has not"
