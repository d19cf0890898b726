"""A backend that nothing here can run: compiled, not compiling, or without a compiler are three different answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from opwise.ops import Workload
from opwise.runner import session
from opwise.runner.jobs import Entry, Job
from opwise.runner.supervisor import WorkerLost
from opwise.runner.survey import Survey


class FakeWorker:
    """A worker whose compiler does what the test wants."""

    answer: Any = None
    asked: list[tuple[Any, ...]]

    def __init__(self, device: str) -> None:
        type(self).asked = []

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, kind: str, payload: tuple[Any, ...], patience: object) -> Any:
        self.asked.append(payload)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"square_float32": "8 registers"}, "unavailable", "compiled for sm_80, sm_90, sm_100, not run"),
        ("nvcc is missing: install the CUDA toolkit", "unavailable", "nvcc is missing"),
        (WorkerLost("RuntimeError: square.cu(3): error", ("", "compile")), "failed", "does not compile: RuntimeError: square.cu"),
    ],
)
def test_what_compiling_alone_finds_out(monkeypatch: pytest.MonkeyPatch, answer: Any, status: str, reason: str) -> None:
    monkeypatch.setattr(session, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "answer", answer)
    found = session.compile_op("torch_inline", "square")
    assert found[0] == status
    assert reason in found[1]
    assert len(FakeWorker.asked) == (len(session.ARCHITECTURES) if isinstance(answer, dict) else 1)
    assert {payload[-1] for payload in FakeWorker.asked} == {("square",)}, "one op's kernels, and not all that the backend has"


@pytest.mark.parametrize(
    ("compiling", "told"),
    [("no triton: install it", "no triton: install it"), ("compiled for sm_90", "compiled for sm_90. no triton: install it")],
)
def test_a_reason_is_told_once(compiling: str, told: str) -> None:
    entry = Entry("triton_jit", reason="no triton", remedy="install it")
    facts = {"device": "cpu", "driver": "", "capability": "", "versions": {}, "commit": "", "dirty": None}
    outcome: Future[tuple[str, str]] = Future()
    outcome.set_result(("unavailable", compiling))
    job, survey = Job(Workload.parse("square/1/float32"), (), "cpu"), Survey("cpu", facts, {"triton_jit": entry})
    record = session._compiled_record(job, "triton_jit/square", outcome, survey)
    assert record.reason == told
