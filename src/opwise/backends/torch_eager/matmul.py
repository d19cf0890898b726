"""matmul in eager PyTorch: cuBLAS. `Workload.precision` switches off torch's default of 16-bit split-K reductions."""

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
