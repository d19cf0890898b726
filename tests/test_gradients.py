"""Gradients of opwise.softmax(x) and its kin: forward by the chosen backend, backward as torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_kernels import EAGER, FakeKernels, each_op, inputs_of
from recorded_runs import cell, store_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import opwise
from opwise.choosing import dispatch
from opwise.choosing.gradients import AUTOGRAD_US

pytestmark = pytest.mark.usefixtures("fresh")


def kernels(monkeypatch: pytest.MonkeyPatch, op: str, us: float = 50.0, call_us: float = 1.0) -> FakeKernels:
    """One of `us` where torch eager takes 90."""
    shape = (7, 33, 7) if op == "matmul" else (7, 33)
    times = (("cupy_raw", us, call_us), ("torch_eager", 90.0, 1.0))
    cells = [cell(b, t, c, op=op, shape=shape, dtype="float32") for b, t, c in times]
    return FakeKernels(monkeypatch, store_of(*cells))


def wanting(op: str) -> tuple[Tensor, ...]:
    return tuple(x.requires_grad_() for x in inputs_of(op))


def derivatives(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The first, and the second of one number of it."""
    first = torch.autograd.grad(function(*inputs).sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.cos().sum() for g in first), inputs)
    return [*first, *second]


@each_op
def test_first_and_second_derivatives_are_torch_s(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = derivatives(EAGER[op], wanting(op))
    fake = kernels(monkeypatch, op)
    found = derivatives(getattr(opwise, op), wanting(op))
    assert fake.calls == ["cupy_raw"] * 2, "once to build it, once forward"
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(expected, found, strict=True))


@each_op
def test_it_is_computed_again_within_a_checkpoint(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = wanting(op)
    expected = torch.autograd.grad(EAGER[op](*inputs).sin().sum(), inputs)
    fake = kernels(monkeypatch, op)
    found = torch.autograd.grad(checkpoint(getattr(opwise, op), *inputs, use_reentrant=False).sin().sum(), inputs)
    assert fake.calls == ["cupy_raw"] * (2 if op == "mean" else 3), "a mean keeps no tensor, so there is nothing to compute again"
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))


@each_op
def test_float64_is_torch_s_own_and_passes_gradcheck(op: str) -> None:
    inputs = tuple(x[:3, :3].double().contiguous().requires_grad_() for x in inputs_of(op))
    assert torch.autograd.gradcheck(getattr(opwise, op), inputs)
    assert torch.autograd.gradgradcheck(getattr(opwise, op), inputs)


def test_only_the_factor_that_wants_a_gradient_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch, "matmul")
    a, b = inputs_of("matmul")
    opwise.matmul(a, b.requires_grad_()).sum().backward()
    assert a.grad is None
    assert b.grad is not None


def test_what_autograd_costs_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is cheaper than torch eager's by less than that is taken where no gradient is wanted, and not where one is."""
    fake = kernels(monkeypatch, "softmax", us=1.0, call_us=90.0 - AUTOGRAD_US / 2)
    (x,) = wanting("softmax")
    opwise.softmax(x)
    assert fake.calls == []
    opwise.softmax(x.detach())
    assert set(fake.calls) == {"cupy_raw"}


def test_a_forced_backend_computes_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, store_of())
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    inputs = wanting("gelu")
    with opwise.use("triton_jit"):
        (found,) = torch.autograd.grad(opwise.gelu(*inputs).sum(), inputs)
    assert fake.calls == ["triton_jit"]
    assert torch.allclose(found, torch.autograd.grad(EAGER["gelu"](*inputs).sum(), inputs)[0])


@each_op
def test_forward_mode_is_torch_s_own(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, inputs = kernels(monkeypatch, op), inputs_of(op)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, torch.ones_like(x)) for x in inputs]
        expected, found = (forward_ad.unpack_dual(function(*duals)).tangent for function in (EAGER[op], getattr(opwise, op)))
    assert torch.equal(expected, found)
    assert fake.calls == []
