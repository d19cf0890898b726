"""What the training notes and the lectures name without a figure: backends that are gone, micro-batches, hidden waits, vector addition."""

from __future__ import annotations

import pytest
import support
import torch

from opwise.seeds import addition, training, waiting
from opwise.seeds.place import Place


def test_a_backend_that_is_gone_is_said_so() -> None:
    assert training.asked_for("nvfuser").startswith('dynamo.optimize("nvfuser") is gone: torch ')
    assert training.asked_for("inductor") == 'dynamo.optimize("inductor") is taken'


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_what_autograd_holds_is_the_activations_of_one_part(parts: int) -> None:
    """Of a linear layer, a ReLU and another: the ReLU's output, which both it and the second layer save."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    x = torch.randn(64, 16)
    held = training.most_held(model, lambda: training.accumulated(model, x, parts))
    rows = 64 // parts
    assert held == 4 * rows * (32 + 32 + 8), "twice the ReLU's, and the result, which is squared"


def test_printing_a_loss_reads_values_and_a_loop_without_reads_none() -> None:
    found = waiting.hidden_wait(Place(torch.device("cpu")))
    assert found.shown, found.found
    assert waiting.values_read(lambda: torch.ones(3).sum().item()) == 1
    assert waiting.values_read(lambda: torch.ones(2) + 1) == 0


@support.interpreted
def test_both_models_add_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    found = addition.vectors(Place(torch.device("cpu")))
    assert found.shown, found.found
    assert found.figures == {"Triton, lines": 4, "Numba, lines": 4}
    from opwise.seeds import triton_kernels

    right = triton_kernels.bound_add
    monkeypatch.setattr(triton_kernels, "bound_add", lambda x, y, out: right(x, x, out))
    wrong = addition.vectors(Place(torch.device("cpu")))
    assert not wrong.shown
    assert wrong.found == "Triton is wrong"
