"""What the tests of the dispatch share: torch's functions, inputs, and kernels of a GPU that is pretended to be here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch
from recorded_runs import TOY, cell, store_of
from torch import Tensor

from opwise.backends.protocol import BackendUnavailable, Implementation, Probe, Variant
from opwise.choosing import dispatch, selection
from opwise.choosing.store import Store
from opwise.ops import OPS

EAGER: dict[str, Callable[..., Tensor]] = {
    "square": torch.square,
    "mean": torch.mean,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "matmul": torch.matmul,
}
each_op = pytest.mark.parametrize("op", EAGER)


def inputs_of(op: str, *shape: int) -> tuple[Tensor, ...]:
    x = torch.randn(shape or (7, 33), generator=torch.Generator().manual_seed(3))
    return (x, x.mT.contiguous()) if op == "matmul" else (x,)


class FakeKernels:
    """Implementations that compute on the CPU and keep a list of who was called; the toy GPU is pretended to be there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, **problems: Exception) -> None:
        self.calls: list[str] = []
        self.problems = problems
        self.reads = 0
        monkeypatch.setattr(selection, "_for_kernels", lambda op, inputs: True)
        monkeypatch.setattr(selection, "here", lambda name: TOY)
        monkeypatch.setattr(selection, "_gpus", lambda: (TOY,))
        monkeypatch.setattr(selection, "implementation", self.implementation)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(dispatch, "probe", lambda backend, device: Probe({}))

        def recorded() -> Store:
            self.reads += 1
            return store

        recorded.cache_clear = lambda: None  # type: ignore[attr-defined]
        monkeypatch.setattr(selection, "recorded", recorded)

    def implementation(self, name: str, device: torch.device) -> Implementation:
        backend, op = name.split("/")
        if isinstance(self.problems.get(backend), BackendUnavailable):
            raise self.problems[backend]

        def call(*inputs: Tensor) -> Tensor:
            self.calls.append(backend)
            if backend in self.problems:
                raise self.problems[backend]
            return EAGER[op](*inputs)

        return computed_by(call, op, backend)


def computed_by(call: Callable[..., Tensor], op: str, backend: str = "cupy_raw") -> Implementation:
    def build(*tensors: Tensor) -> NoReturn:
        raise AssertionError("what is called as it is needs no build")

    return Implementation(backend, OPS[op], "", Variant(build, "", call=call, takes_transposed=True))


def softmax_store(dtype: str = "float32", **times: float) -> Store:
    return store_of(*(cell(backend, us, shape=(7, 33), dtype=dtype) for backend, us in times.items()))


MISSING = BackendUnavailable("cupy is not installed", "pip install cupy")
