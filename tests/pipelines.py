"""Right kernels and slow truths in plain torch: float32 throughout, one rounding at the end. The op's tests and the mutants use them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opwise.ops import OpSpec
from opwise.ops.mean import chain


def in_float32(spec: OpSpec, inputs: tuple[Tensor, ...]) -> Tensor:
    """A careful kernel: the definition in float32, rounded once at the end."""
    return spec.reference(*(x.float() for x in inputs)).to(inputs[0].dtype)


def in_tf32(x: Tensor) -> Tensor:
    """Rounded to TF32, 10 explicit bits of significand, by adding half a unit and truncating."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def with_tf32_factors(spec: OpSpec, inputs: tuple[Tensor, ...]) -> Tensor:
    """The same with both factors rounded to TF32."""
    return in_float32(spec, tuple(map(in_tf32, inputs)))


def summed_in(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the last dimension with accumulators of `dtype`, one term after the other: the worst order there is."""
    total = torch.zeros(terms.shape[:-1], dtype=dtype, device=terms.device)
    for k in range(terms.shape[-1]):
        total = (total.float() + terms[..., k].float()).to(dtype)
    return total


def by_blocks(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in blocks as long as mean's bound allows, whose sums are added likewise."""
    n, length = terms.shape[-1], chain(terms.shape[-1])
    if n <= length:
        return summed_in(terms, dtype)
    blocks = torch.nn.functional.pad(terms, (0, -n % length)).unflatten(-1, (-1, length))
    return by_blocks(summed_in(blocks, dtype), dtype)


def truncated(x: Tensor, bits: int) -> Tensor:
    """float64 values cut towards zero to so many bits of significand."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.trunc(mantissa * 2.0**bits), exponent - bits)


def on_tensor_cores(a: Tensor, b: Tensor, step: int = 8, spare: int = 1) -> Tensor:
    """a @ b as tensor cores add: `step` exact products and what was summed so far are cut to float32's bits and `spare` ones below the
    largest, added, and cut to float32 (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330, 2021). float64, of float32 values."""
    a, b = a.double(), b.double()
    total = a.new_zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], step):
        terms = torch.cat([a[:, k : k + step, None] * b[None, k : k + step, :], total[:, None, :]], 1)
        unit = torch.ldexp(torch.ones_like(total), torch.frexp(terms.abs().amax(1))[1] - 24 - spare)[:, None, :]
        total = truncated((torch.trunc(terms / unit) * unit).sum(1), 24)
    return total


def as_tensor_cores_do(spec: OpSpec, inputs: tuple[Tensor, ...]) -> Tensor:
    """A product on tensor cores, of factors rounded to TF32 where they are float32."""
    rounded = tuple(in_tf32(x) if x.dtype == torch.float32 else x for x in inputs)
    return on_tensor_cores(*rounded).to(inputs[0].dtype)


def _mean(accumulator: torch.dtype, x: Tensor) -> Tensor:
    return (by_blocks(x.float().reshape(-1), accumulator).float() / x.numel()).to(x.dtype)


def _softmax(accumulator: torch.dtype, x: Tensor) -> Tensor:
    numerator = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (numerator / summed_in(numerator, accumulator).float()[:, None]).to(x.dtype)


def _matmul(accumulator: torch.dtype, a: Tensor, b: Tensor) -> Tensor:
    return summed_in(a.float()[:, None, :] * b.float().t()[None, :, :], accumulator).to(a.dtype)


# The ops that sum, each as loops whose accumulator's dtype is given: (dtype, *inputs) -> output.
LOOPS: dict[str, Callable[..., Tensor]] = {"mean": _mean, "softmax": _softmax, "matmul": _matmul}
LONG = {"mean": (4099,), "softmax": (5, 4099), "matmul": (3, 4099, 5)}  # sums long enough to tell a 16-bit accumulator
