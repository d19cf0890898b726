"""The faults of planted.py at sizes that are timed: on a GPU every core and bars workload, here those that a CPU multiplies in a moment."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted import (
    FAULTS,
    RIGHT,
    TRIED,
    Fault,
    bfloat16_for_tf32,
    caught,
    index_that_wraps,
    known,
    right,
    slice_left_out,
    tail_left_out,
    tf32_for_float32,
    verdicts,
    zeros,
)
from script_modules import script
from support import DEVICE, ON_GPU, needs_gpu, ranks
from torch import Tensor

from opwise.measure.validate import check
from opwise.ops import OPS, Workload
from opwise.runner import Job, cell


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    yield
    known.cache_clear()


@pytest.mark.parametrize("workload", TRIED, ids=str)
def test_faults_are_caught_and_the_honest_kernel_is_not(workload: Workload) -> None:
    assert all(verdict.ok for verdict in verdicts(workload, RIGHT))
    passed = [str(f) for f in FAULTS if f.differs(workload) and not caught(workload, f)]
    assert not passed


def only(compute: object) -> Fault:
    return next(fault for fault in FAULTS if fault.compute is compute)


# What passed as right before bounds were quantiles: (workload, fault, elements left out).
ESCAPED = (
    ("matmul/1024x1024x1024/tfloat32", bfloat16_for_tf32, 0),
    ("matmul/64x8192x64/tfloat32", bfloat16_for_tf32, 0),
    ("matmul/128x16384x128/float32", tf32_for_float32, 0),
    ("matmul/64x65536x64/float16", slice_left_out, 16),
    ("matmul/64x65536x64/bfloat16", tail_left_out, 16),
    ("mean/8192x8192/float32", tail_left_out, 65536),
    *((("mean/10007x10009/float32", tail_left_out, 65536),) if ON_GPU else ()),  # seconds of a CPU
    ("mean/4096x4096/float32", zeros, 0),
)


@pytest.mark.parametrize(("text", "compute", "share"), ESCAPED)
def test_what_once_escaped_is_caught_on_the_inputs_that_are_timed(text: str, compute: object, share: int) -> None:
    workload = Workload.parse(text)
    inputs, reference, bound = known(workload, "easy")
    verdict = check(only(compute).prepared(workload, share), inputs, reference, bound)
    assert not verdict.ok, verdict


def test_a_run_checks_on_whole_inputs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload("mean", (1024, 1024), "bfloat16")

    def lacks_the_last(workload: Workload, inputs: tuple[Tensor, ...], share: int) -> Tensor:
        whole = inputs[0].min() < 0 and inputs[0].abs().max() > 50  # N(0, 1) is smaller, the hard inputs are positive
        return (tail_left_out if whole else right)(workload, inputs, share)

    monkeypatch.setattr(cell, "implementation", lambda *_: SimpleNamespace(prepare=Fault(lacks_the_last, ()).prepared(workload, 1)))
    job = Job(workload, ("torch_eager/mean",), str(DEVICE), timed=False)
    (record,) = cell.execute(job, cell.Bench(DEVICE, {}), lambda *_: None)
    assert record.status == "wrong"
    assert record.reason.startswith("on whole inputs: 1 of 1 elements wrong")


def test_errors_that_lean_are_wrong_although_each_is_within_its_bound() -> None:
    workload = Workload("softmax", (64, 1024), "float32")
    inputs, reference, bound = known(workload, "easy")

    leaning = Fault(lambda workload, inputs, share: (reference - 0.75 * bound).float(), ())
    verdict = check(leaning.prepared(workload), inputs, reference, bound)
    assert not verdict.ok
    assert verdict.error_ratio < 1.0
    assert "lean to one side" in verdict.reason


@pytest.mark.parametrize("op", [op for op, spec in OPS.items() if spec.whole_inputs])
def test_inputs_that_are_needed_whole_are_of_any_shape(op: str) -> None:
    spec, shapes = OPS[op], ((0, 3, 2), (3, 0, 2), (2, 3, 0), (1, 1, 1), (3, 17, 5))
    for shape in shapes if 3 in ranks(spec) else (s[:2] for s in shapes):
        for dtype in spec.dtypes:
            workload = Workload(op, shape, dtype)
            first, again = (spec.whole_inputs(workload, DEVICE, 1) for _ in range(2))
            assert all(torch.equal(x, y) and x.isfinite().all() for x, y in zip(first, again, strict=True))
            assert all(x.dtype == workload.torch_dtype and x.is_contiguous() for x in first)
            with workload.precision():
                assert spec.workload_of(*first) == workload


@pytest.mark.parametrize("dtype", OPS["mean"].dtypes)
@pytest.mark.parametrize("shape", [(1,), (33,), (1025,), (37, 53), (512, 1024)])
def test_each_tile_of_a_mean_counts(shape: tuple[int, ...], dtype: str) -> None:
    n = math.prod(shape)
    inputs, _, bound = known(Workload("mean", shape, dtype), "whole")
    for begin in range(0, n, 512):
        part = inputs[0].reshape(-1)[begin : begin + 512].double().sum() / n
        assert part.abs() > 2 * bound, begin
    assert inputs[0].reshape(-1)[-1].abs().double() / n > bound


def test_each_tile_of_a_row_and_each_element_of_k_counts() -> None:
    (x,) = OPS["softmax"].whole_inputs(Workload("softmax", (64, 5000), "bfloat16"), DEVICE, 3)
    mass = torch.softmax(x.double(), -1)
    tiles = torch.nn.functional.pad(mass, (0, -5000 % 128)).unflatten(-1, (-1, 128)).sum(-1).amax(0)
    assert tiles.min() > 4 * 2.0**-8
    a, _ = OPS["matmul"].whole_inputs(Workload("matmul", (16, 1000, 8), "float32"), DEVICE, 3)
    assert ((a != 0).sum(0) > 0).all(), "in 16 rows each element of K"
    assert ((a != 0).unflatten(1, (-1, 8)).sum(-1) < 8).all()


@needs_gpu
def test_an_index_that_wraps_beyond_2_to_the_31_is_caught() -> None:
    workload = Workload("mean", (2**31 + 4096,), "float32")
    inputs, reference, bound = known(workload, "easy")
    assert check(RIGHT.prepared(workload), inputs, reference, bound).ok
    assert not check(only(index_that_wraps).prepared(workload), inputs, reference, bound).ok


def test_alarms_and_shares_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alarms, shares = script("alarms"), script("shares")
    workload = Workload("mean", (1025,), "float32")
    monkeypatch.setattr(
        alarms, "kernels_of", lambda *_: {"right": lambda i: right(workload, i), "wrong": lambda i: right(workload, i) * 1.01}
    )
    monkeypatch.setattr(alarms, "SMALL_OF_ANY_SHAPE", ((1025,),))
    monkeypatch.setattr(sys, "argv", ["alarms.py", "mean", "--seeds", "2", "--core-seeds", "0", "--out", str(tmp_path / "alarms.json")])
    assert alarms.main() == 1
    found = json.loads((tmp_path / "alarms.json").read_text())["found"][0]
    assert found["seeds"] == 2
    assert found["largest"]["right"] <= 1 < found["largest"]["wrong"]
    assert {alarm.split(",")[0] for alarm in found["alarms"]} == {"wrong"}
    assert shares.told(only(zeros), [workload]) == "caught"
    assert shares.told(only(tail_left_out), [workload]) == "1 of 1025"
