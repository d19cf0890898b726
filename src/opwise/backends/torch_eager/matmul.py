"""matmul in eager PyTorch: cuBLAS, with float32 accumulation of 16-bit products (torch's default, kept)."""

from __future__ import annotations

import torch
from torch import Tensor

from opwise.backends.protocol import Variant
from opwise.backends.torch_eager.eager import compiled, into


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


VARIANTS = {
    "": Variant(into(torch.mm), "torch.matmul(a, b)", call=torch.matmul, takes_strided=True),
    "compile": compiled(product, "torch.compile of a @ b"),
}
