"""gelu in eager PyTorch: the fused kernel, and by hand as eight kernels one after the other (CS336, lecture 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.backends.protocol import Variant
from opwise.backends.torch_eager.eager import compiled, expression, into


def fused(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def by_hand(x: Tensor) -> Tensor:
    """Every operation is a kernel that reads and writes the whole tensor; 16-bit dtypes are rounded after each."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def _gelu(x: Tensor, *, out: Tensor) -> None:
    torch._C._nn.gelu(x, approximate="tanh", out=out)  # type: ignore[call-arg]  # the stub lacks `out`


VARIANTS = {
    "": Variant(into(_gelu), "torch.nn.functional.gelu(x, approximate='tanh')", call=fused, takes_strided=True),
    "manual": expression(by_hand, "gelu by hand, a kernel an operation", fault="in 16 bits every intermediate is rounded"),
    "compile": compiled(by_hand, "torch.compile of gelu by hand"),
}
