"""opwise.softmax(x) and its kin: who computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fake_kernels import EAGER, MISSING, FakeKernels, computed_by, each_op, inputs_of, softmax_store
from recorded_runs import cell, store_of
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import opwise
from opwise.backends.protocol import Implementation, UnsupportedWorkload
from opwise.choosing import dispatch, selection
from opwise.choosing.dispatch import DISPATCHERS, MOST_KEYS, Dispatcher
from opwise.choosing.selection import Fallback, StaleFigures

pytestmark = pytest.mark.usefixtures("fresh")


@each_op
def test_on_the_cpu_it_is_torch_eager_without_a_warning(op: str) -> None:
    inputs = inputs_of(op)
    assert torch.equal(getattr(opwise, op)(*inputs), EAGER[op](*inputs))


def test_the_chosen_backend_computes_and_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, triton_jit=6.0, torch_eager=9.0))
    (x,) = inputs_of("softmax")
    for _ in range(3):
        assert torch.equal(opwise.softmax(x), EAGER["softmax"](x))
    assert fake.calls == ["cupy_raw"] * 4, "once more for the building"
    assert fake.reads == 1
    with torch.no_grad():
        opwise.softmax(x.clone().requires_grad_())
    assert fake.calls == ["cupy_raw"] * 5, "no gradient is wanted"
    opwise.softmax(x.mT.contiguous().mT)
    assert fake.calls == ["cupy_raw"] * 5, "a strided tensor is torch eager's"


def test_a_gpu_without_figures_is_dispatched_by_another_one_s_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (("cupy_raw", 50.0), ("torch_eager", 90.0))
    store = store_of(*(cell(b, us, shape=(7, 33), dtype="float32", device="NVIDIA Kin") for b, us in times))
    fake = FakeKernels(monkeypatch, store)
    with pytest.warns(StaleFigures, match="another GPU's figures: opwise run softmax/7x33/float32"):
        opwise.softmax(torch.randn(7, 33))
    opwise.softmax(torch.randn(8, 33))
    assert set(fake.calls) == {"cupy_raw"}


@pytest.mark.parametrize("shape", [(33,), (7, 33), (1, 7, 33), (7, 1, 1, 33)], ids=str)
def test_softmax_of_any_rank_is_its_rows(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    x = torch.randn(shape)
    for _ in range(2):
        assert torch.equal(opwise.softmax(x), torch.softmax(x, -1))
    assert set(fake.calls) == {"cupy_raw"}
    x.requires_grad_()
    (found,) = torch.autograd.grad(opwise.softmax(x).sin().sum(), x)
    assert torch.allclose(found, torch.autograd.grad(torch.softmax(x, -1).sin().sum(), x)[0], atol=1e-7)
    DISPATCHERS["softmax"].small, DISPATCHERS["softmax"].columns = 10**6, 10**6
    assert torch.equal(opwise.softmax(torch.tensor(3.0)), torch.tensor(1.0))
    assert torch.equal(opwise.softmax(x[..., :0]), x[..., :0])


def test_many_matrices_times_one_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (("cupy_raw", 5.0), ("torch_eager", 90.0))
    fake = FakeKernels(monkeypatch, store_of(*(cell(b, us, op="matmul", shape=(6, 4, 5), dtype="float32") for b, us in times)))
    monkeypatch.setattr(selection, "_for_kernels", lambda op, inputs: all(x.ndim == 2 for x in inputs))
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    assert torch.allclose(opwise.matmul(a, b), a @ b)
    assert fake.calls == ["cupy_raw"] * 2
    inputs = a.requires_grad_(), b.requires_grad_()
    expected = torch.autograd.grad((a @ b).sin().sum(), inputs)
    found = torch.autograd.grad(opwise.matmul(a, b).sin().sum(), inputs)
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(expected, found, strict=True))
    calls = list(fake.calls)
    for left, right in ((torch.randn(4), b.detach()), (a.detach(), torch.randn(2, 4, 5)), (a.detach().mT.contiguous().mT, b.detach())):
        assert torch.allclose(opwise.matmul(left, right), left @ right)
    assert fake.calls == calls, "the rest is torch eager's"


def test_of_strided_tensors_on_a_gpu_it_is_told_once_that_they_are_torch_eager_s() -> None:
    class OnGpu:
        is_cuda, layout = True, torch.strided

        def is_contiguous(self) -> bool:
            return False

    there = Dispatcher("gelu", lambda x: x)
    with pytest.warns(Fallback, match="torch eager computes opwise.gelu of strided tensors"):
        there.left(OnGpu())  # type: ignore[arg-type]
    there.left(OnGpu())  # type: ignore[arg-type]  # a second warning would be an error


def test_autocast_is_torch_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which computes in another dtype there, as no kernel does."""
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    monkeypatch.setattr(dispatch, "_autocast", lambda: True)
    opwise.softmax(*inputs_of("softmax"))
    assert fake.calls == []


def test_within_1_percent_of_torch_eager_torch_s_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, triton_jit=5.0, torch_eager=5.04))
    opwise.softmax(*inputs_of("softmax"))
    assert fake.calls == []
    DISPATCHERS["softmax"].forget()  # not within 1 % of the fastest, but of the one that is chosen
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, triton_jit=5.04, torch_eager=5.07))
    opwise.softmax(*inputs_of("softmax"))
    assert fake.calls == []
    DISPATCHERS["softmax"].forget()
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, triton_jit=5.04, torch_eager=5.2))
    opwise.softmax(*inputs_of("softmax"))
    assert set(fake.calls) == {"triton_jit"}


def test_nothing_measured_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, store_of())
    with pytest.warns(Fallback, match="torch eager computes: .*opwise run softmax/7x33/float32"):
        opwise.softmax(torch.randn(7, 33))
    opwise.softmax(torch.randn(7, 34))  # a second warning would be an error
    opwise.gelu(torch.randn(9))
    assert fake.calls == []


def test_the_chosen_backend_missing_means_the_next_one_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, triton_jit=6.0, torch_eager=9.0), cupy_raw=MISSING)
    with pytest.warns(Fallback, match="cupy_raw would be faster for softmax, but: cupy is not installed: pip install cupy"):
        opwise.softmax(torch.randn(7, 33))
    opwise.softmax(torch.randn(14, 33))
    assert set(fake.calls) == {"triton_jit"}


def test_a_backend_that_breaks_costs_a_warning_and_a_refusal_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = softmax_store(cupy_raw=5.0, triton_jit=6.0, torch_eager=9.0)
    fake = FakeKernels(monkeypatch, store, cupy_raw=RuntimeError("nvcc died"), triton_jit=UnsupportedWorkload("too wide"))
    (x,) = inputs_of("softmax")
    with pytest.warns(Fallback, match="nvcc died") as caught:
        assert torch.equal(opwise.softmax(x), EAGER["softmax"](x))
    assert len(caught) == 1
    assert fake.calls == ["cupy_raw", "triton_jit"]
    fake = FakeKernels(monkeypatch, store, cupy_raw=torch.OutOfMemoryError("full"))
    DISPATCHERS["softmax"].forget()
    with pytest.raises(torch.OutOfMemoryError):
        opwise.softmax(x)


def test_stale_figures_are_used_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = store_of(*(cell(b, us, shape=(7, 33), dtype="float32", source="0123") for b, us in (("cupy_raw", 5.0), ("torch_eager", 9.0))))
    fake = FakeKernels(monkeypatch, stale)
    with pytest.warns(StaleFigures, match="opwise run softmax/7x33/float32 refreshes"):
        opwise.softmax(torch.randn(7, 33))
    opwise.softmax(torch.randn(8, 33))
    assert set(fake.calls) == {"cupy_raw"}


def test_a_shape_first_met_in_a_capture_is_torch_eager_s_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    (x,) = inputs_of("softmax")
    opwise.softmax(x)
    assert fake.calls == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    opwise.softmax(x)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    opwise.softmax(x)
    assert fake.calls == ["cupy_raw"] * 3


def test_the_precision_switch_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [cell(b, us, shape=(7, 33, 7), op="matmul", dtype=d) for d, times in (("float32", (5.0, 9.0)), ("tfloat32", (9.0, 5.0)))
            for b, us in zip(("cupy_raw", "torch_eager"), times, strict=True)]  # fmt: skip
    fake = FakeKernels(monkeypatch, store_of(*both))
    inputs = inputs_of("matmul")
    opwise.matmul(*inputs)
    assert fake.calls == ["cupy_raw"] * 2
    torch.set_float32_matmul_precision("high")
    opwise.matmul(*inputs)
    torch.set_float32_matmul_precision("highest")
    assert fake.calls == ["cupy_raw"] * 2


@pytest.mark.parametrize(
    "x", [torch.ones(3, 4, 5), torch.ones(3, 4, dtype=torch.float64), torch.nn.Parameter(torch.ones(3, 4)), torch.ones(0, 4)]
)
def test_what_the_kernels_do_not_take_is_torch_eager_s(x: Tensor) -> None:
    assert torch.equal(opwise.softmax(x), torch.softmax(x, -1))
    weight = torch.nn.Parameter(torch.randn(4, 3))
    assert torch.equal(opwise.matmul(x.detach().float(), weight), torch.matmul(x.detach().float(), weight)) if x.shape[-1] == 4 else True


class Meaning(Tensor):
    """Its values are twice those in its memory."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func not in set(EAGER.values()):
                return func(*args, **(kwargs or {}))
            return func(*(x * 2 if type(x) is cls else x for x in args), **(kwargs or {}))


# How a call is made -> of what. Their memory does not hold their values, or they have none.
UNPLAIN: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "negative": lambda function, x: function(torch._neg_view(x)),
    "functionalized": lambda function, x: torch.func.functionalize(function)(x),
    "a functionalized part": lambda function, x: torch.func.functionalize(function)(torch.stack([x, x])[1]),
    "vmapped": lambda function, x: torch.vmap(function)(torch.stack([x, -x])),
    "differentiated": lambda function, x: torch.func.grad(lambda x: function(x).sin().sum())(x),
    "with a tangent": lambda function, x: torch.func.jvp(function, (x,), (x,))[1],
    "zero": lambda function, x: function(torch._efficientzerotensor(*x.shape)) * 1,
    "on meta": lambda function, x: torch.empty_like(function(x.to("meta")), device="cpu").fill_(1.0),
    "sparse": lambda function, x: function(x.to_sparse()).to_dense(),
    "of compressed rows": lambda function, x: function(x.to_sparse_csr()).to_dense(),
    "nested": lambda function, x: function(torch.nested.nested_tensor([x, x])).to_padded_tensor(0.0),
    "of a subclass": lambda function, x: function(x.as_subclass(Meaning)).as_subclass(Tensor),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("forced", [False, True], ids=["chosen", "forced"])
@pytest.mark.parametrize("kind", UNPLAIN)
@each_op
def test_what_has_no_memory_of_its_value_is_torch_eager_s_and_nothing_is_kept_of_it(
    op: str, kind: str, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    x, *others = inputs_of(op)

    def of(function: Callable[..., Tensor]) -> Tensor:
        return UNPLAIN[kind](lambda x: function(x, *others), x)

    with opwise.use("cupy_raw") if forced else nullcontext():
        try:
            expected = of(EAGER[op])
        except (NotImplementedError, RuntimeError) as refusal:
            with pytest.raises(type(refusal)):
                of(getattr(opwise, op))
        else:
            assert torch.allclose(of(getattr(opwise, op)), expected)
        assert fake.calls == []
        if op == "softmax":
            opwise.softmax(x)
            assert fake.calls[-1:] == ["cupy_raw"], "a plain call is as it was"


@pytest.mark.parametrize("op", EAGER)
def test_what_is_no_tensor_is_refused_with_what_to_do(op: str) -> None:
    with pytest.raises(TypeError, match="torch.as_tensor"):
        getattr(opwise, op)(*[[1.0]] * (2 if op == "matmul" else 1))


def test_shapes_that_never_repeat_do_not_fill_the_memory() -> None:
    calls = DISPATCHERS["square"].calls
    for n in range(MOST_KEYS + 10):
        calls[n] = torch.square
    opwise.square(torch.ones(3))
    assert len(calls) == 1


def _exponentials(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max(-1, keepdims=True))


BY_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "square": np.square,
    "mean": lambda x: np.array(x.mean()),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3))),
    "softmax": lambda x: _exponentials(x) / _exponentials(x).sum(-1, keepdims=True),
    "matmul": np.matmul,
}

# How a function is traced by examples; none of them runs it again when the trace is called.
TRACERS: dict[str, Callable[..., Callable[..., Tensor]]] = {
    "jit": lambda function, *x: torch.jit.trace(function, x),
    "make_fx real": lambda function, *x: make_fx(function)(*x),
    "make_fx fake": lambda function, *x: make_fx(function, tracing_mode="fake")(*x),
    "make_fx symbolic": lambda function, *x: make_fx(function, tracing_mode="symbolic")(*x),
    "make_fx of a gradient": lambda function, *x: make_fx(torch.func.grad(lambda *x: function(*x).sum()))(*x),
    "symbolic_trace": lambda function, *x: torch.fx.symbolic_trace(function),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("met", ["new", "known", "wanting a gradient", "forced"])
@pytest.mark.parametrize("tracer", TRACERS)
@each_op
def test_a_trace_holds_an_operation_and_not_a_kernel_s_output(op: str, tracer: str, met: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (7, 33, 7) if op == "matmul" else (7, 33)
    fake = FakeKernels(
        monkeypatch, store_of(*(cell(b, us, op=op, shape=shape, dtype="float32") for b, us in (("cupy_raw", 5.0), ("torch_eager", 9.0))))
    )

    def hidden(name: str, device: torch.device) -> Implementation:
        def call(*inputs: Tensor) -> Tensor:
            fake.calls.append(name)
            return torch.from_numpy(BY_NUMPY[op](*(x.detach().numpy() for x in inputs)))  # as a kernel's, nothing of it is recorded

        return computed_by(call, op)

    monkeypatch.setattr(selection, "implementation", hidden)
    monkeypatch.setattr(dispatch, "implementation", hidden)
    function, inputs = getattr(opwise, op), inputs_of(op)
    others = tuple(torch.randn(x.shape) for x in inputs)
    if met == "known":
        function(*inputs)
        assert fake.calls
        fake.calls.clear()
    if met == "wanting a gradient":
        inputs, others = ([x.requires_grad_() for x in xs] for xs in (inputs, others))
    two = (lambda a, b: function(a, b)) if op == "matmul" else (lambda a: function(a))
    with opwise.use("cupy_raw") if met == "forced" else nullcontext():
        traced = TRACERS[tracer](two, *inputs)
        if met != "forced" and tracer != "jit":  # which also calls the function as it is, to compare
            assert fake.calls == []
        expected = EAGER[op](*others)
        if "gradient" in tracer:
            expected = torch.func.grad(lambda *x: EAGER[op](*x).sum())(*others)
        assert torch.allclose(traced(*others), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_forced_backend_is_traced_as_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(torch_eager=9.0))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    with opwise.use("cupy_raw"):
        traced = torch.jit.trace(lambda x: opwise.softmax(x), inputs_of("softmax"))
        assert "opwise::softmax" in str(traced.graph)
        assert "opwise.softmax" in make_fx(lambda x: opwise.softmax(x))(*inputs_of("softmax")).code
        fake.calls.clear()
        traced(*inputs_of("softmax"))
    assert fake.calls == ["cupy_raw"]
