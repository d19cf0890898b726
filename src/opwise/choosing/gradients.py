"""Gradients: a backend computes the forward pass, torch's own formulas the backward pass.

The formulas are torch operators throughout, so second derivatives are torch's, too. The operators that torch.compile sees (traced.py) have
no call among their inputs, and use `keep` and `backward` only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

# What a Function in Python adds to the CPU's part of a forward and a backward pass: 4 and 6 us on the 2-core machine of the tests.
AUTOGRAD_US = 10.0


class Computed(Function):
    """An autograd Function whose forward is the given call."""

    @classmethod
    def forward(cls, ctx: Any, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        output = call(*inputs)
        cls.keep(ctx, inputs, output)
        return output

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """What the backward pass needs: here, the op's inputs."""
        ctx.save_for_backward(*inputs)


class Square(Computed):
    """d(x x) = 2 x dx."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, grad * (x * 2)


class Mean(Computed):
    """Each of n elements has 1 / n of the gradient."""

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad.expand(ctx.shape) / ctx.shape.numel()


class Gelu(Computed):
    """Of the tanh form, by torch's own kernel."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, torch.ops.aten.gelu_backward(grad, x, approximate="tanh")


class Softmax(Computed):
    """y (g - sum of y g) over a row, by torch's own kernel, of the y that the backend computed."""

    @staticmethod
    def keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return None, torch.ops.aten._softmax_backward_data(grad, out, -1, out.dtype)


class Matmul(Computed):
    """dA = G B^T, dB = A^T G, of those that are wanted."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        wants_a, wants_b = ctx.needs_input_grad[-2:]
        return None, grad @ b.mT if wants_a else None, a.mT @ grad if wants_b else None


FUNCTIONS: Mapping[str, Any] = {"square": Square, "mean": Mean, "gelu": Gelu, "softmax": Softmax, "matmul": Matmul}
