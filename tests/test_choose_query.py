"""What `opwise.choose` is asked: tensors, shapes, dtypes and devices, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_runs import TOY, cell, store_of, stored

import opwise
from opwise.choosing import asked, query
from opwise.choosing.asked import workload_of
from opwise.ops import OPS, Workload


def test_tensors_and_shapes_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.ones(16, 32), torch.ones(32, 8, requires_grad=True)
    assert workload_of("matmul", (a, b)) == Workload("matmul", (16, 32, 8), "float32")
    for shape in (("16x32x8",), ((16, 32, 8),), (16, 32, 8), (torch.Size((16, 32, 8)),)):
        assert workload_of("matmul", shape, torch.float32) == Workload("matmul", (16, 32, 8), "float32")
    assert workload_of("square", (5,), "float16").shape == (5,)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert opwise.choose("softmax", "4096x4096", dtype=torch.float16).device == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("op", "given", "dtype", "error", "says"),
    [
        ("sofmax", ("4x4",), "float16", ValueError, "known are square"),
        ("softmax", ("4x4",), None, TypeError, "add dtype="),
        ("softmax", ("4x4",), "float64", ValueError, "taken are float32"),
        ("softmax", ("4xfour",), "float16", ValueError, "'4096x4096'"),
        ("softmax", ((4, 4, 4),), "float16", ValueError, "no shape of softmax"),
        ("matmul", ((4, 4),), "float16", ValueError, r"no shape of matmul \(2 sizes are given, 3 are taken\)"),
        ("square", ((-4,),), "float16", ValueError, "negative"),
        ("square", (torch.ones(2),), "float16", ValueError, "leave out dtype"),
        ("square", (torch.ones(2, dtype=torch.int32),), None, TypeError, "call x.to"),
    ],
)  # fmt: skip
def test_what_is_no_workload_is_refused_with_what_is_taken(
    op: str, given: tuple[Any, ...], dtype: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        workload_of(op, given, dtype)


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    store = store_of(cell("cupy_raw", 5.0), cell("cupy_raw", 5.0, device="NVIDIA Newer", time="2026-03-01T00:00:00+00:00"))
    assert asked.gpu_of(store, None).device == "NVIDIA Newer", "the one measured last"
    assert asked.gpu_of(store, "nvidia-toy") == asked.gpu_of(store, "NVIDIA Toy") == TOY
    with pytest.raises(ValueError, match="known are NVIDIA Newer, NVIDIA Toy"):
        asked.gpu_of(store, "a100")


def test_measuring_stores_a_run_of_that_workload_alone_and_chooses_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The session is a stand-in that stores what a GPU would have measured; what it is asked to do is the real plan's."""
    from opwise.runner import session, survey
    from opwise.runner.jobs import Entry, plan

    catalogue = {b: Entry(b, variants={op: {"": "", "textbook": ""} for op in OPS}) for b in ("torch_eager", "cupy_raw")}
    jobs = []

    class Stand:
        path = tmp_path / "nvidia-toy" / "20260102T000000Z-core-part-abc1234.jsonl"

        @classmethod
        def planned(cls, found: Any, filters: list[str], set_name: str, *, variants: bool, timed: bool, out: Path) -> Any:
            assert (found, timed, out) == ("a survey of cuda:1", True, tmp_path)
            jobs.extend(plan(catalogue, filters, set_name, "cuda:1", variants=variants))
            return cls()

        def events(self) -> Any:
            stored(tmp_path, cell("torch_eager", 9.0, shape=(77, 5)), cell("cupy_raw", 5.0, shape=(77, 5)), name=self.path.stem)
            yield from ()

    monkeypatch.setattr(session, "Session", Stand)
    monkeypatch.setattr(survey, "survey", lambda device: f"a survey of {device}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(asked, "here", lambda name: TOY)
    monkeypatch.setattr(query, "machine_with", lambda gpu: None)
    choice = opwise.choose("softmax", (77, 5), dtype="float16", device="cuda:1", measure=True, results=tmp_path)
    assert [(str(job.workload), job.implementations) for job in jobs] == [
        ("softmax/77x5/float16", ("torch_eager/softmax", "cupy_raw/softmax"))
    ]
    assert (choice.backend, choice.chosen.basis, choice.refresh) == ("cupy_raw", "measured", "")
    with pytest.raises(ValueError, match="give cuda:0"):
        opwise.choose("softmax", (77, 5), dtype="float16", device="nvidia-toy", measure=True, results=tmp_path)


def test_all_that_is_public_is_in_dir() -> None:
    assert set(opwise.__all__) <= set(dir(opwise))
