"""What every implementation keeps, whatever its kernel: the call equals the launch, memory is shared, wrong arguments are refused."""

from __future__ import annotations

import contextlib
import gc
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from bad_arguments import bad_inputs, bad_outputs, good_inputs
from support import (
    DEVICE,
    INPUT_KINDS,
    ON_GPU,
    RUNS_TORCH_OPERATORS,
    Candidate,
    bits,
    by_dtype,
    candidates,
    launch_once,
    quick_candidates,
    taken_dtype,
    truth,
    workload_for,
)
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from opwise.backends import BACKENDS, implementation, probe, protocol
from opwise.backends.protocol import BackendUnavailable, Bind, Implementation, Launch, Variant
from opwise.measure.validate import agree, judge
from opwise.ops import OPS, Workload

QUICK = quick_candidates()
each_quick = pytest.mark.parametrize("candidate", QUICK, ids=str)
each_dtype = pytest.mark.parametrize(("candidate", "dtype"), by_dtype(QUICK), ids=str)


@each_dtype
def test_the_call_is_the_launch_with_an_output_of_its_own(candidate: Candidate, dtype: str) -> None:
    found = candidate.get()
    workload = workload_for(candidate, dtype)
    with workload.precision():
        for kind in INPUT_KINDS:
            known = truth(workload, kind, 21)
            launched, _ = launch_once(candidate, known.inputs)
            called = found(*known.inputs)
            assert (called.shape, called.dtype, called.device) == (launched.shape, launched.dtype, launched.device)
            assert judge(called, known.reference, known.bound).ok
            assert max(agree({"launch": launched, "call": called}, known.bound).values()) <= 1
            assert found(*known.inputs).data_ptr() != called.data_ptr(), "two calls, two outputs"


@each_quick
def test_an_output_is_a_tensor_as_torch_makes_them(candidate: Candidate) -> None:
    """Also where the backend allocates it by itself: of inference mode under it, without gradient, in memory that goes back."""
    found, inputs = candidate.get(), good_inputs(OPS[candidate.op], taken_dtype(candidate))
    with torch.inference_mode():
        assert found(*inputs).is_inference()
    out = found(*inputs)
    assert not out.is_inference()
    assert not out.requires_grad
    assert out.is_contiguous()
    assert out.untyped_storage().nbytes() == out.nbytes
    out.add_(1)
    memory = StorageWeakRef(out.untyped_storage())
    del out
    if not memory.expired():
        gc.collect()  # Triton's interpreter leaves cycles
    assert memory.expired()


@each_dtype
def test_a_launch_reads_the_callers_memory_when_it_runs(candidate: Candidate, dtype: str) -> None:
    """No copy: what is written to the inputs after prepare is what the next launch computes with."""
    workload = workload_for(candidate, dtype)
    first, second = truth(workload, "normal", 23), truth(workload, "normal", 24)
    inputs = tuple(x.clone() for x in first.inputs)
    with workload.precision():
        out, launch = launch_once(candidate, inputs)
        address = out.data_ptr()
        for known in (second, first, second):
            for x, fresh in zip(inputs, known.inputs, strict=True):
                x.copy_(fresh)
            out.fill_(float("nan"))
            launch()
            assert judge(out, known.reference, known.bound).ok
    assert out.data_ptr() == address


@each_quick
def test_a_launch_keeps_its_tensors_alive(candidate: Candidate) -> None:
    workload = workload_for(candidate, taken_dtype(candidate))
    known = truth(workload, "normal", 25)
    inputs = tuple(x.clone() for x in known.inputs)
    with workload.precision():
        out, launch = launch_once(candidate, inputs)
    storages = [StorageWeakRef(x.untyped_storage()) for x in (*inputs, out)]
    del inputs, out
    gc.collect(1)  # what was made just now
    assert not any(storage.expired() for storage in storages)
    with workload.precision():
        launch()
    del launch
    if not all(storage.expired() for storage in storages):
        gc.collect()  # Triton's interpreter leaves cycles
    assert all(storage.expired() for storage in storages), "nothing may hold a user's tensors once the launch is gone"


@each_quick
def test_one_build_serves_other_addresses(candidate: Candidate) -> None:
    workload = workload_for(candidate, taken_dtype(candidate))
    bound = []
    with workload.precision():
        for seed in (26, 27, 28):
            known = truth(workload, "normal", seed)
            out, launch = launch_once(candidate, known.inputs)
            bound.append((known, out, launch))
        for known, out, launch in reversed(bound):
            out.fill_(float("nan"))
            launch()
            assert judge(out, known.reference, known.bound).ok


@each_quick
def test_wrong_inputs_are_refused_by_prepare_and_by_the_call(candidate: Candidate) -> None:
    found = candidate.get()
    good = good_inputs(found.op, taken_dtype(candidate))
    out = found.op.empty_output(*good)
    for case in bad_inputs(found.op):
        for use in (lambda *inputs: found.prepare(*inputs, out=out), found):
            with pytest.raises(case.error) as refusal:
                use(*case.inputs)
            assert all(words in str(refusal.value) for words in case.says), (case.name, str(refusal.value))
    found(*good)


@each_quick
def test_wrong_outputs_are_refused(candidate: Candidate) -> None:
    found = candidate.get()
    for case, out in bad_outputs(found.op):
        with pytest.raises(case.error) as refusal:
            found.prepare(*case.inputs, out=out)
        assert all(words in str(refusal.value) for words in case.says), (case.name, str(refusal.value))


@each_quick
def test_a_strided_output_is_right_or_refused(candidate: Candidate) -> None:
    found = candidate.get()
    workload = workload_for(candidate, taken_dtype(candidate))
    known = truth(workload, "normal", 29)
    right = found.op.empty_output(*known.inputs)
    if right.ndim == 0:
        pytest.skip(f"{candidate.op} has one output: it has no strides")
    out = torch.full((*right.shape, 2), 5.0, dtype=right.dtype, device=DEVICE)[..., 0]
    if found.source.takes_strided:
        with workload.precision():
            found.prepare(*known.inputs, out=out)()
        assert judge(out, known.reference, known.bound).ok
        return
    with workload.precision(), pytest.raises(ValueError, match="out has strides") as refusal:
        found.prepare(*known.inputs, out=out)
    assert all(words in str(refusal.value) for words in (candidate.name, str(out.stride()), "row-major", "out.contiguous()"))


@pytest.mark.skipif(not ON_GPU, reason="no GPU here: all tensors are on the CPU anyway")
@each_quick
def test_cpu_tensors_are_refused_on_a_gpu(candidate: Candidate) -> None:
    if candidate.backend in RUNS_TORCH_OPERATORS:
        pytest.skip("torch's operators run wherever their tensors are")
    found = candidate.get()
    inputs = tuple(x.cpu() for x in good_inputs(found.op))
    for use in (lambda: found.prepare(*inputs, out=found.op.empty_output(*inputs)), lambda: found(*inputs)):
        with pytest.raises((TypeError, ValueError), match=r"(?i)cpu"):
            use()


@pytest.mark.parametrize("candidate", candidates(), ids=str)
def test_names_lead_back_to_the_implementation(candidate: Candidate) -> None:
    found = candidate.get()
    assert implementation(candidate.name, DEVICE) is found
    assert found.source.summary
    assert found.source.fault is None or found.source.fault
    assert found.op is OPS[candidate.op]
    assert f"{candidate.backend}/{candidate.op}" in {c.name for c in candidates()}, "an unnamed variant stands for the op"


def test_unknown_names_list_the_known() -> None:
    for name, known in (("cuda_c/square", BACKENDS), ("torch_eager/relu", OPS), ("torch_eager/square:fast", {"(unnamed)"})):
        with pytest.raises(KeyError) as refusal:
            implementation(name, DEVICE)
        assert all(word in str(refusal.value) for word in known), str(refusal.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probe_names_versions_or_the_remedy(backend: str) -> None:
    try:
        found = probe(backend, DEVICE)
    except BackendUnavailable as unavailable:
        problem = unavailable
    else:
        assert probe(backend, DEVICE) == found
        assert found.versions
        assert all(version and version[0].isdigit() for version in found.versions.values()), found.versions
        assert (found.stand_in is None) is ON_GPU
        return
    again = pickle.loads(pickle.dumps(problem))  # a worker sends it to its parent
    assert (again.reason, again.remedy, str(again)) == (problem.reason, problem.remedy, str(problem))
    assert problem.reason
    assert problem.remedy


class Counting:
    """A toy implementation of an op that counts what is asked of it."""

    def __init__(self, op: str, **source: bool) -> None:
        self.builds: list[str] = []
        self.made = Implementation("toy", OPS[op], "", Variant(self.build, "counts", **source))

    def build(self, *tensors: Tensor) -> Bind:
        self.builds.append(str(tensors[0].dtype))
        return self.bind

    def bind(self, *tensors: Tensor) -> Launch:
        *inputs, out = tensors

        def launch() -> None:
            out.copy_(self.made.op.reference(*inputs))

        return launch


def test_a_build_is_kept_by_dtype_shape_alignment_and_precision() -> None:
    toy = Counting("matmul")
    workload = Workload("matmul", (5, 6, 7), "float32")
    a, b = OPS["matmul"].make_inputs(workload, DEVICE, 0)
    for _ in range(2):
        toy.made(a, b)
        toy.made.prepare(a, b, out=torch.empty(5, 7, device=DEVICE))
        toy.made(a.clone(), b.clone())
    assert len(toy.builds) == 1
    toy.made(a.half(), b.half())
    toy.made(a[:4], b)
    with replace(workload, dtype="tfloat32").precision():
        toy.made(a, b)
    moved = torch.empty(31, device=DEVICE)[1:].view(5, 6).copy_(a)
    toy.made(moved, b)
    toy.made.prepare(a, b, out=torch.empty(36, device=DEVICE)[1:].view(5, 7))
    assert len(toy.builds) == 6


def test_nothing_is_built_for_nothing() -> None:
    for op, shapes, expected in (("square", [(0, 3)], None), ("matmul", [(2, 0), (0, 3)], 0.0), ("mean", [(0,)], float("nan"))):
        toy = Counting(op)
        out = toy.made(*(torch.empty(shape, device=DEVICE) for shape in shapes))
        assert not toy.builds
        assert expected is None or torch.equal(bits(out), bits(torch.full_like(out, expected)))


def test_an_op_that_was_right_once_still_checks_what_is_new() -> None:
    toy = Counting("square")
    x = torch.ones(3, device=DEVICE)
    toy.made(x)
    with pytest.raises(ValueError, match="requires grad"):
        toy.made(x.clone().requires_grad_())
    with pytest.raises(ValueError, match="row-major"):
        toy.made(torch.ones(3, 2, device=DEVICE).t())
    with pytest.raises(TypeError, match="takes 1 tensor"):
        toy.made(x, x)


def test_among_several_gpus_everything_runs_with_its_own_device_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without several GPUs: the guards are replaced by ones that tell what ran inside them."""
    guarded: list[str] = []
    inside = False

    @contextlib.contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        nonlocal inside
        before, inside = inside, True
        yield
        inside = before

    def on_device(device: torch.device, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_there(*given: Tensor) -> Any:
            with guard(device):
                return run(*given)

        return run_there

    def build(x: Tensor, out: Tensor) -> Bind:
        guarded.append(f"build {inside}")

        def bind(x: Tensor, out: Tensor) -> Launch:
            guarded.append(f"bind {inside}")
            return lambda: guarded.append(f"launch {inside}")

        return bind

    monkeypatch.setattr(protocol, "_several_gpus", lambda device: True)
    monkeypatch.setattr(protocol, "_current", guard)
    monkeypatch.setattr(protocol, "_on_device", on_device)
    implementation_ = Implementation("toy", OPS["square"], "", Variant(build, "tells where it is"))
    x = torch.ones(3)
    implementation_.prepare(x, out=torch.empty(3))()
    assert guarded == ["build True", "bind True", "launch True"]
    implementation_(x)
    assert set(guarded[3:]) == {"bind True", "launch True"}
    del guarded[:]
    implementation_(x)
    assert guarded == ["bind True", "launch True"], "a call that is known"


@pytest.mark.parametrize("current", [0, 1])
def test_a_launch_goes_to_its_own_device_and_leaves_the_current_one(monkeypatch: pytest.MonkeyPatch, current: int) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def device(index: int) -> Iterator[None]:
        seen.append(f"to {index}")
        yield
        seen.append("back")

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(torch.cuda, "device", device)
    run = protocol._on_device(torch.device("cuda", 1), lambda *given: seen.append(f"run {given}") or 7)
    assert run(1, 2) == 7
    assert seen == (["run (1, 2)"] if current == 1 else ["to 1", "run (1, 2)", "back"])
