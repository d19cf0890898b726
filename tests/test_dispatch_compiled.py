"""What torch.compile and torch.export see of opwise.softmax(x) and its kin."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fake_kernels import EAGER, FakeKernels, each_op, inputs_of, softmax_store
from torch import Tensor

import opwise

pytestmark = pytest.mark.usefixtures("fresh")


@each_op
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_it_is_one_opaque_operator_without_a_graph_break(op: str, backend: str) -> None:
    function, inputs = getattr(opwise, op), inputs_of(op)
    graphs: list[torch.fx.GraphModule] = []

    def noting(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, examples)

    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: function(*x) * 2, fullgraph=True, backend=noting)
    assert torch.equal(compiled(*inputs), EAGER[op](*inputs) * 2)
    assert torch.equal(torch.compile(function, fullgraph=True, backend=noting)(*inputs), EAGER[op](*inputs)), "the function itself"
    assert len(graphs) == 2
    for graph in graphs:
        assert sum(getattr(torch.ops.opwise, op) in (n.target, getattr(n.target, "overloadpacket", None)) for n in graph.graph.nodes) == 1


@each_op
def test_compiled_with_a_gradient_it_is_the_operator_with_torch_s_formula(op: str) -> None:
    function, inputs = getattr(opwise, op), tuple(x.requires_grad_() for x in inputs_of(op))
    torch._dynamo.reset()
    targets: list[str] = []

    def noting(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, examples)

    compiled = torch.compile(lambda *x: function(*x).sin().sum(), fullgraph=True, backend=noting)
    expected = torch.autograd.grad(EAGER[op](*inputs).sin().sum(), inputs)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))
    assert sum(f"opwise.{op}" in target for target in targets) == 1


@each_op
def test_the_operator_passes_torch_s_own_checks(op: str) -> None:
    operator = getattr(torch.ops.opwise, op).default
    torch.library.opcheck(operator, inputs_of(op))
    strided = torch.randn(33, 7).mT
    torch.library.opcheck(operator, (strided, torch.randn(33, 5)) if op == "matmul" else (strided,))


def test_the_compiled_operator_calls_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: opwise.softmax(x) + 1, fullgraph=True, backend="eager")
    (x,) = inputs_of("softmax")
    assert torch.equal(compiled(x), EAGER["softmax"](x) + 1)
    assert set(fake.calls) == {"cupy_raw"}


def test_exported_it_is_the_operator_too() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return opwise.softmax(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Model(), inputs_of("softmax"), strict=False)
    assert "opwise.softmax" in str(exported.graph)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_it_is_the_operator_with_its_gradient() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return opwise.mean(opwise.square(opwise.softmax(opwise.gelu(opwise.matmul(x, w)))))

    x, w = (t.requires_grad_() for t in inputs_of("matmul"))
    scripted = torch.jit.script(Layer())
    assert all(f"ops.opwise.{op}" in scripted.code for op in EAGER)
    expected = torch.autograd.grad(Layer()(x, w), (x, w))
    assert all(torch.allclose(a, b) for a, b in zip(torch.autograd.grad(scripted(x, w), (x, w)), expected, strict=True))


@pytest.mark.parametrize("backend", [None, "cupy_raw"], ids=["chosen", "forced"])
def test_under_autocast_it_is_torch_s_own_function_compiled_or_not(backend: str | None) -> None:
    (a, b), dtypes = inputs_of("matmul"), []
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16), opwise.use(backend) if backend else nullcontext():
        for function in (torch.matmul, opwise.matmul, torch.compile(lambda *x: opwise.matmul(*x), fullgraph=True, backend="aot_eager")):
            dtypes.append(function(a, b).dtype)
    assert dtypes == [torch.bfloat16] * 3
