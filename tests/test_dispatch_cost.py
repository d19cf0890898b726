"""What a dispatched call costs beyond the chosen one: microseconds of one core, which this file wants for itself."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_kernels import EAGER, computed_by, each_op, inputs_of
from support import alone
from torch import Tensor

import opwise
from opwise.choosing.dispatch import DISPATCHERS

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A pool of threads that wake for a small tensor would be timed with it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def seconds(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    arguments = ", ".join("ab"[: len(inputs)])
    names = {"call": call, **dict(zip("ab", inputs, strict=False))}
    return min(timeit.repeat(f"call({arguments})", globals=names, number=2000, repeat=30)) / 2000


@alone("cores")
@each_op
def test_the_own_overhead_is_at_most_a_microsecond(op: str) -> None:
    """Beyond the chosen implementation's own call, which here does nothing once it has looked its inputs up."""
    inputs, function, dispatcher = inputs_of(op), getattr(opwise, op), DISPATCHERS[op]
    result = inputs[0]

    def nothing(*inputs: Tensor) -> Tensor:
        return result

    function(*inputs)
    (key,) = dispatcher.calls
    dispatcher.calls[key] = nothing
    chosen = computed_by(nothing, op)
    assert chosen(*inputs) is function(*inputs) is result
    assert any(seconds(function, inputs) - seconds(chosen, inputs) <= 1e-6 for _ in range(3))
    assert any(seconds(function, inputs) - seconds(nothing, inputs) <= 2e-6 for _ in range(3)), "with the look-up"


@alone("cores")
@pytest.mark.parametrize("op", [op for op in EAGER if op != "matmul"])
def test_a_small_tensor_costs_little_more_than_torch_eager(op: str) -> None:
    inputs, function, dispatcher = inputs_of(op), getattr(opwise, op), DISPATCHERS[op]
    dispatcher.small, dispatcher.columns = 10_000, 1000
    cheap = any(seconds(function, inputs) - seconds(EAGER[op], inputs) <= 0.4e-6 for _ in range(3))
    assert torch.equal(function(*inputs), EAGER[op](*inputs))
    assert not dispatcher.calls
    assert cheap
