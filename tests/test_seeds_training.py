"""What the training notes and the lectures name without a figure: backends that are gone, micro-batches, hidden waits, vector addition."""

from __future__ import annotations

import pytest
import torch

from opwise.seeds import training


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
