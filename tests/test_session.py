"""A backend that nothing here can run: compiled, not compiling, or without a compiler are three different answers."""

from __future__ import annotations

from typing import Any

import pytest

from opwise.runner import session
from opwise.runner.supervisor import WorkerLost


class FakeWorker:
    """A worker whose compiler does what the test wants."""

    answer: Any = None
    asked: list[tuple[str, str]]

    def __init__(self, device: str) -> None:
        type(self).asked = []

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, kind: str, payload: tuple[str, str], patience: object) -> Any:
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
    found = session.compile_all("torch_inline")
    assert found[0] == status
    assert reason in found[1]
    assert len(FakeWorker.asked) == (len(session.ARCHITECTURES) if isinstance(answer, dict) else 1)
