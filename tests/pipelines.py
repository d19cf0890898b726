"""Right kernels and slow truths in plain torch: float32 throughout, one rounding at the end. The op's tests and the mutants use them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opwise.ops import OpSpec


def in_float32(spec: OpSpec, inputs: tuple[Tensor, ...]) -> Tensor:
    """A careful kernel: the definition in float32, rounded once at the end."""
    return spec.reference(*(x.float() for x in inputs)).to(inputs[0].dtype)


def with_tf32_factors(spec: OpSpec, inputs: tuple[Tensor, ...]) -> Tensor:
    """The same with both factors rounded to TF32, 10 explicit bits of significand, by adding half a unit and truncating."""
    rounded = tuple(((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for x in inputs)
    return in_float32(spec, rounded)


def summed_in(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """A plain loop over the last dimension with an accumulator of `dtype`: the worst order there is."""
    total = torch.zeros(terms.shape[:-1], dtype=dtype, device=terms.device)
    for k in range(terms.shape[-1]):
        total = (total.float() + terms[..., k].float()).to(dtype)
    return total


def _mean(accumulator: torch.dtype, x: Tensor) -> Tensor:
    return (summed_in(x.float().reshape(-1), accumulator).float() / x.numel()).to(x.dtype)


def _softmax(accumulator: torch.dtype, x: Tensor) -> Tensor:
    numerator = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (numerator / summed_in(numerator, accumulator).float()[:, None]).to(x.dtype)


def _matmul(accumulator: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    return summed_in(a.float()[:, None, :] * b.float().t()[None, :, :], accumulator).to(a.dtype)


# The ops that sum, each as a loop whose accumulator's dtype is given: (dtype, *inputs) -> output.
LOOPS: dict[str, Callable[..., Tensor]] = {"mean": _mean, "softmax": _softmax, "matmul": _matmul}
LONG = {"mean": (4099,), "softmax": (5, 4099), "matmul": (3, 4099, 5)}  # sums long enough to tell a 16-bit accumulator
