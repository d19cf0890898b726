"""softmax in PyTorch, by way of the logarithm. Run it beside the others:

opwise run softmax --with examples/my_torch.py
"""

import torch

import opwise


@opwise.kernel("softmax")
def by_logarithm(x: torch.Tensor) -> torch.Tensor:
    """exp of log_softmax, in float32 whatever comes in."""
    return x.float().log_softmax(dim=-1).exp().to(x.dtype)


@opwise.kernel("softmax", variant="out")
def into(x: torch.Tensor, out: torch.Tensor) -> None:
    """torch.softmax into a given tensor."""
    torch.softmax(x, dim=-1, out=out)
