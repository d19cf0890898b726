"""square in eager PyTorch: three spellings of one kernel (GPU MODE, lecture 1, times exactly these)."""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.backends.protocol import Variant
from opwise.backends.torch_eager.eager import compiled, into


def times_itself(x: Tensor) -> Tensor:
    return x * x


def power(x: Tensor) -> Tensor:
    return x**2


def _multiply(x: Tensor, *, out: Tensor) -> None:
    torch.mul(x, x, out=out)


def _power(x: Tensor, *, out: Tensor) -> None:
    torch.pow(x, 2, out=out)


VARIANTS = {
    "": Variant(into(torch.square), "torch.square(x)", call=torch.square, takes_strided=True),
    "mul": Variant(into(_multiply), "x * x", call=times_itself, takes_strided=True),
    "pow": Variant(into(_power), "x ** 2", call=power, takes_strided=True),
    "compile": compiled(times_itself, "torch.compile of x * x"),
}
