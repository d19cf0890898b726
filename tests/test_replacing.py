"""`opwise.replacing()`: a torch program's own calls are computed by what is chosen, and come to what torch comes to."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from fake_kernels import EAGER, FakeKernels, each_op, inputs_of
from recorded_runs import cell, store_of
from torch import Tensor

import opwise
from opwise.backends import BACKENDS
from opwise.choosing.selection import Fallback

pytestmark = pytest.mark.usefixtures("fresh")
X, W = torch.randn(6, 8), torch.randn(8, 5)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> FakeKernels:
    """Figures of every op and layout here, by which CuPy's is the fastest."""
    layouts = ("", "NT", "TN")
    sizes = {"matmul": [(6, 8, 5), (8, 6, 5), (6, 5, 8), (7, 33, 7)], "softmax": [(6, 8), (7, 33)]}
    return FakeKernels(monkeypatch, store_of(*(
        cell(backend, 5.0 if backend == "cupy_raw" else 9e3, op=op, shape=shape, dtype="float32", layout=layout if op == "matmul" else "")
        for backend in BACKENDS for op in EAGER for shape in sizes.get(op, [(48,), (231,)])
        for layout in (layouts if op == "matmul" else ("",))
    )))  # fmt: skip


@each_op
def test_torch_s_call_is_computed_by_the_chosen_backend(op: str, kernels: FakeKernels) -> None:
    inputs = inputs_of(op)
    with opwise.replacing() as mode:
        result = EAGER[op](*inputs)
    assert (set(kernels.calls), mode.replaced) == ({"cupy_raw"}, 1)
    made = len(kernels.calls)
    assert torch.allclose(result, EAGER[op](*inputs))
    assert len(kernels.calls) == made, "outside nothing is replaced"


@pytest.mark.parametrize(
    ("call", "replaced"),
    [
        (lambda: X * X, 1), (lambda: X**2, 1), (lambda: X.mean((0, 1), keepdim=True), 1), (lambda: torch.nn.functional.linear(X, W.t()), 1),
        (lambda: torch.mean(X), 1), (lambda: X.mean(0), 0), (lambda: torch.softmax(X, 0), 0), (lambda: torch.nn.functional.gelu(X), 0),
        (lambda: torch.mm(X, W, out=torch.empty(6, 5)), 0), (lambda: X.long() ** 2, 0), (lambda: X.double() @ W.double(), 0),
        (lambda: torch.nn.functional.linear(X, W.t(), torch.ones(5)), 0), (lambda: (X > 0) * (X > 0), 0),
        (lambda: torch.ops.aten._softmax(X, dim=1, half_to_float=False), 1), (lambda: torch.mm(X.to_sparse(), W), 0),
    ],
)  # fmt: skip
def test_other_spellings_are_replaced_and_other_functions_are_not(call: Callable[[], Tensor], replaced: int, kernels: FakeKernels) -> None:
    with opwise.replacing() as mode:
        result = call()
    expected = call()
    assert (bool(kernels.calls), mode.replaced) == (bool(replaced), replaced)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert torch.allclose(result.double(), expected.double(), atol=1e-6)


def test_a_module_trains_as_it_does_by_torch_and_its_backward_products_are_replaced_too(kernels: FakeKernels) -> None:
    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        layer = torch.nn.Linear(8, 5, bias=False)
        x = torch.arange(48.0).view(6, 8).requires_grad_()
        (layer(x) ** 2).mean().backward()
        assert layer.weight.grad is not None
        assert x.grad is not None
        return [layer.weight.grad, x.grad]

    expected = gradients()
    with opwise.replacing() as mode:
        found = gradients()
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(found, expected, strict=True))
    assert mode.replaced >= 5, "x @ w.t(), a square, a mean, and two products of the backward pass"
    assert len(kernels.calls) >= 3


def test_under_autocast_what_torch_has_cast_is_replaced(kernels: FakeKernels) -> None:
    with (
        pytest.warns(Fallback, match="no stream time of matmul in bfloat16"),
        torch.autocast("cpu", torch.bfloat16),
        opwise.replacing() as mode,
    ):
        result = X @ W
    assert (result.dtype, mode.replaced) == (torch.bfloat16, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_product_with_a_size_of_0_has_torch_s_values_and_gradients(dtype: torch.dtype) -> None:
    """Also in memory that held nan: a sum without terms is written, too."""

    def computed(m: int, k: int, n: int, wanted: tuple[bool, bool]) -> list[Tensor]:
        a, b = torch.ones(m, k, dtype=dtype, requires_grad=wanted[0]), torch.ones(k, n, dtype=dtype, requires_grad=wanted[1])
        freed = [torch.full((m * k + k * n + m * n,), torch.nan, dtype=dtype) for _ in range(4)]
        del freed
        out = a @ b
        if any(wanted):
            out.sum().backward()
        return [x for x in (out, a.grad, b.grad) if x is not None]

    for sizes in itertools.product((0, 3, 8), repeat=3):
        for wanted in itertools.product((False, True), repeat=2):
            with opwise.replacing():
                found = computed(*sizes, wanted)
            expected = computed(*sizes, wanted)
            assert len(found) == len(expected) == 1 + sum(wanted)
            assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True)), (sizes, wanted)
