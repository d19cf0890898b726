"""triton_jit's way to Triton's launcher, with a launcher that writes down what it is given."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import needs

needs("triton")
launch = importlib.import_module("opwise.backends.triton_jit.common.launch")
GRID = (7, 2, 1)


class Kernel:
    """Of an input, an output, a number and two constexprs; compiled for whatever it is given."""

    arg_names = ("x", "out", "n", "BLOCK", "WIDE")

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.launched: list[tuple[Any, ...]] = []

    def warmup(self, *samples: Any, grid: Any, **fixed: Any) -> Any:
        self.compiled.append((samples, grid, fixed))
        return SimpleNamespace(run=lambda *given: self.launched.append(given), function=0x1234, packed_metadata="packed")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The last is the current one."""
    current = [0x5550]
    monkeypatch.setattr(launch, "INTERPRETING", False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: current[-1], raising=False)
    return current


def test_a_launch_at_once_is_the_one_that_is_bound_first(stream: list[int]) -> None:
    kernel, fixed = Kernel(), {"BLOCK": 64, "WIDE": False, "num_warps": 4}
    x, out, others = torch.ones(8), torch.ones(8), (torch.ones(8), torch.ones(8))
    made = launch.built_of_one(kernel, GRID, x, out, 8, **fixed)
    assert made.run is not None
    assert len(kernel.compiled) == 1
    assert kernel.compiled[0][1:] == (GRID, fixed)
    for tensors in ((x, out), others):
        bound = made(*tensors)
        stream.append(stream[-1] + 16)  # a launch is on the stream of its time
        bound()
        made.run(*tensors)
        first, second = kernel.launched[-2:]
        assert first == second
        addresses = (tensor.data_ptr() for tensor in tensors)
        assert first == (*GRID, stream[-1], 0x1234, "packed", None, None, None, *addresses, 8, 64, False)
    assert len(kernel.launched) == 4, "nothing is launched by a bind"
