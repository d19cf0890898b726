"""rmsnorm in eager PyTorch: the library's, and what a model's code has."""

import torch
from torch import Tensor

from opwise.backends.torch_eager.eager import compiled, expression
from opwise_rmsnorm.op import EPS


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)


VARIANTS = {
    "": expression(rms_norm, "torch.nn.functional.rms_norm"),
    "manual": expression(by_hand, "rmsnorm by hand in float32"),
    "compile": compiled(by_hand, "torch.compile of rmsnorm by hand"),
}
