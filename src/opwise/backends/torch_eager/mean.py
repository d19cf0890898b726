"""mean in eager PyTorch, three ways (GPU MODE, lecture 1). All accumulate 16-bit inputs in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.backends.protocol import Variant
from opwise.backends.torch_eager.eager import compiled, expression, into


def method(x: Tensor) -> Tensor:
    return x.mean()


def sum_over_count(x: Tensor) -> Tensor:
    """The sum is rounded to the input's dtype before it is divided: in float16 it overflows above 65504."""
    return torch.sum(x) / x.numel()


def _mean(x: Tensor, *, out: Tensor) -> None:
    torch.mean(x, dim=tuple(range(x.ndim)), out=out)  # torch.mean(x) has no out=


VARIANTS = {
    "": Variant(into(_mean), "torch.mean(x)", call=torch.mean, takes_strided=True),
    "method": expression(method, "x.mean()"),
    "sum": expression(sum_over_count, "torch.sum(x) / x.numel()", fault="rounds the sum itself to 16 bits: overflow in float16"),
    "compile": compiled(method, "torch.compile of x.mean()"),
}
