"""opwise.softmax(x) and its kin: who computes, what a call costs, and what torch.compile sees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import timeit
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_runs import H200, TOY, cell, core_run, store_of
from torch import Tensor

import opwise
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload
from opwise.choosing import selection
from opwise.choosing.dispatch import DISPATCHERS, MOST_KEYS
from opwise.choosing.selection import Fallback, StaleFigures, eager_up_to
from opwise.choosing.store import Store

SOURCE = Path(__file__).resolve().parents[1] / "src"
CPU = torch.device("cpu")
EAGER: dict[str, Callable[..., Tensor]] = {
    "square": torch.square,
    "mean": torch.mean,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.softmax(x, dim=-1),
    "matmul": torch.matmul,
}
each_op = pytest.mark.parametrize("op", EAGER)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    selection.forget()
    yield
    selection.forget()


def inputs_of(op: str, *shape: int) -> tuple[Tensor, ...]:
    x = torch.randn(shape or (7, 33), generator=torch.Generator().manual_seed(3))
    return (x, x.mT.contiguous()) if op == "matmul" else (x,)


class FakeKernels:
    """Implementations that compute on the CPU and keep a list of who was called; the toy GPU is pretended to be there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, **problems: Exception) -> None:
        self.calls: list[str] = []
        self.problems = problems
        self.reads = 0
        monkeypatch.setattr(selection, "_for_kernels", lambda op, inputs: True)
        monkeypatch.setattr(selection, "here", lambda name: TOY)
        monkeypatch.setattr(selection, "_gpus", lambda: (TOY,))
        monkeypatch.setattr(selection, "implementation", self.implementation)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

        def recorded() -> Store:
            self.reads += 1
            return store

        recorded.cache_clear = lambda: None  # type: ignore[attr-defined]
        monkeypatch.setattr(selection, "recorded", recorded)

    def implementation(self, name: str, device: torch.device) -> Callable[..., Tensor]:
        backend, op = name.split("/")
        if isinstance(self.problems.get(backend), BackendUnavailable):
            raise self.problems[backend]

        def call(*inputs: Tensor) -> Tensor:
            self.calls.append(backend)
            if backend in self.problems:
                raise self.problems[backend]
            return EAGER[op](*inputs)

        return call


def softmax_store(dtype: str = "float32", **times: float) -> Store:
    return store_of(*(cell(backend, us, shape=(7, 33), dtype=dtype) for backend, us in times.items()))


MISSING = BackendUnavailable("cupy is not installed", "pip install cupy")

# --- who computes ---------------------------------------------------------------------------------------------------------------


@each_op
def test_on_the_cpu_it_is_torch_eager_without_a_warning(op: str) -> None:
    inputs = inputs_of(op)
    assert torch.equal(getattr(opwise, op)(*inputs), EAGER[op](*inputs))


@each_op
def test_a_gradient_comes_through_torch_s_own_function(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=1.0, torch_eager=9.0))
    inputs = tuple(x.requires_grad_() for x in inputs_of(op))
    expected = torch.autograd.grad(EAGER[op](*inputs).sin().sum(), inputs)
    found = torch.autograd.grad(getattr(opwise, op)(*inputs).sin().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert fake.calls == []


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


# --- forced ---------------------------------------------------------------------------------------------------------------------


def test_a_forced_backend_that_is_missing_or_unknown_is_an_error() -> None:
    (x,) = inputs_of("softmax")
    with opwise.use("torch_inline"), pytest.raises(BackendUnavailable, match="GPU"):
        opwise.softmax(x)
    assert torch.equal(opwise.softmax(x), EAGER["softmax"](x)), "outside of the block nothing is forced"
    with pytest.raises(ValueError, match="known are torch_eager"), opwise.use("tritn"):
        pass
    with opwise.use("torch_eager"):
        y = x.clone().requires_grad_()
        assert opwise.softmax(y).requires_grad


def test_a_forced_backend_that_cannot_compute_this_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from opwise.choosing import dispatch

    fake = FakeKernels(monkeypatch, store_of(), cupy_raw=UnsupportedWorkload("too wide"))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    (x,) = inputs_of("softmax")
    with opwise.use("cupy_raw"), pytest.raises(UnsupportedWorkload, match="too wide"):
        opwise.softmax(x)
    with opwise.use("triton_jit"):
        opwise.softmax(x)
        with opwise.use("numba_cuda"):
            opwise.softmax(x)
        opwise.softmax(x)
    assert fake.calls == ["cupy_raw", "triton_jit", "numba_cuda", "triton_jit"]


@pytest.mark.parametrize(
    ("value", "says"), [("torch_inline", "BackendUnavailable"), ("tritn", "OPWISE_BACKEND names 'tritn'"), ("", "fine")]
)
def test_the_environment_variable_forces_one(value: str, says: str) -> None:
    code = (
        "import torch, opwise\ntry:\n    opwise.square(torch.ones(3)); print('fine')\n"
        "except Exception as e:\n    print(type(e).__name__, e)"
    )
    environment = os.environ | {"OPWISE_BACKEND": value, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, timeout=100)
    assert says in done.stdout


def test_what_one_thread_forces_no_other_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads at once, each with its own choice or none, on shapes that all of them meet for the first time."""
    from opwise.choosing import dispatch

    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    found: dict[int, set[str]] = {}
    barrier, local = threading.Barrier(8), threading.local()
    plain = fake.implementation

    def noting(name: str, device: torch.device) -> Callable[..., Tensor]:
        call = plain(name, device)

        def noted(*inputs: Tensor) -> Tensor:
            local.seen.add(name.split("/")[0])
            return call(*inputs)

        return noted

    monkeypatch.setattr(selection, "implementation", noting)
    monkeypatch.setattr(dispatch, "implementation", noting)

    def work(n: int) -> None:
        local.seen = set()
        barrier.wait(20)
        for columns in range(33, 63):
            x = torch.full((7, columns), float(n))
            if n % 2:
                with opwise.use("triton_jit"):
                    opwise.softmax(x)
            else:
                opwise.softmax(x)
        found[n] = local.seen

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[n] for n in range(8)] == [{"triton_jit"} if n % 2 else {"cupy_raw"} for n in range(8)]
    assert fake.reads == 30, "each shape is looked up once, whoever meets it first"


# --- what a call costs ----------------------------------------------------------------------------------------------------------


def seconds(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> float:
    arguments = ", ".join("ab"[: len(inputs)])
    names = {"call": call, **dict(zip("ab", inputs, strict=False))}
    return min(timeit.repeat(f"call({arguments})", globals=names, number=2000, repeat=60)) / 2000


@each_op
def test_the_own_overhead_is_at_most_a_microsecond(op: str) -> None:
    """With a call behind it that does nothing, both ways: the look-up by key, and the comparison of small tensors."""
    inputs, function, dispatcher = inputs_of(op), getattr(opwise, op), DISPATCHERS[op]
    result = inputs[0]

    def nothing(*inputs: Tensor) -> Tensor:
        return result

    function(*inputs)
    (key,) = dispatcher.calls
    dispatcher.calls[key] = nothing
    cost = min(seconds(function, inputs) - seconds(nothing, inputs) for _ in range(3))
    assert function(*inputs) is result
    assert cost <= 1e-6


@pytest.mark.parametrize("op", ["square", "mean", "gelu", "softmax"])
def test_a_small_tensor_costs_little_more_than_torch_eager(op: str) -> None:
    inputs, function, dispatcher = inputs_of(op), getattr(opwise, op), DISPATCHERS[op]
    dispatcher.small, dispatcher.columns = 10_000, 1000
    cost = min(seconds(function, inputs) - seconds(EAGER[op], inputs) for _ in range(3))
    assert torch.equal(function(*inputs), EAGER[op](*inputs))
    assert not dispatcher.calls
    assert cost <= 0.4e-6


def test_the_size_up_to_which_all_is_torch_eager_s() -> None:
    store = store_of(*core_run())
    bounds = {op: eager_up_to(store, op, [H200]) for op in EAGER}
    assert bounds["matmul"] == (-1, 0)
    for op, (most, columns) in bounds.items():
        for r in store.records:
            shape = r.shape if op == "softmax" else (1, r.workload.shape[0])
            if (
                r.op == op
                and r.backend == "torch_eager"
                and torch.Size(r.shape).numel() <= most
                and (op != "softmax" or shape[-1] <= columns)
            ):
                rivals = [o for o in store.records if o.workload == r.workload and o.backend != "torch_eager"]
                eager = max(r.kernel_cold_us.median, r.call_us.median)
                assert all(eager < 1.01 * max(o.kernel_cold_us.median, o.call_us.median) for o in rivals), r.workload
    assert 1024 <= bounds["gelu"][0] < 4096 * 4096
    assert bounds["softmax"][1] <= 1024
    assert eager_up_to(store, "gelu", [H200, TOY]) == (-1, 0), "a GPU without figures decides nothing"


# --- torch.compile --------------------------------------------------------------------------------------------------------------


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
    (graph,) = graphs
    assert sum(getattr(torch.ops.opwise, op) in (n.target, getattr(n.target, "overloadpacket", None)) for n in graph.graph.nodes) == 1


@each_op
def test_compiled_with_a_gradient_it_is_torch_s_function(op: str) -> None:
    function, inputs = getattr(opwise, op), tuple(x.requires_grad_() for x in inputs_of(op))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: function(*x).sin().sum(), fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(EAGER[op](*inputs).sin().sum(), inputs)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    assert all(torch.allclose(a, b) for a, b in zip(expected, found, strict=True))


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
