"""What every implementation keeps, whatever its kernel: the call equals the launch, memory is shared, wrong arguments are refused."""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Callable
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
    by_dtype,
    candidates,
    launch_once,
    quick_candidates,
    taken_dtype,
    truth,
    workload_for,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from opwise.backends import BACKENDS, implementation, probe
from opwise.backends.protocol import BackendUnavailable
from opwise.measure.validate import agree, judge
from opwise.ops import OPS

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


@each_quick
def test_a_negated_view_is_right_or_refused(candidate: Candidate) -> None:
    """Its memory holds the opposite of its value. The call for tensors that are like it but for the bit is there already."""
    found, workload = candidate.get(), workload_for(candidate, taken_dtype(candidate))
    known = truth(workload, "normal", 31)
    views = tuple(torch._neg_view(-x) for x in known.inputs)
    with workload.precision():
        found(*known.inputs)
        if found.source.takes_strided:
            assert judge(found(*views), known.reference, known.bound).ok
            return
        with pytest.raises(ValueError, match=r"negative bit.*call \w+\.resolve_neg\(\)"):
            found(*views)


class Sub(Tensor):
    """Whatever its values are."""


# How a call is made -> of what: of these the memory does not hold the value, or may not.
UNPLAIN: dict[str, Callable[[Callable[..., Any], tuple[Tensor, ...]], Any]] = {
    "a Sub": lambda call, inputs: call(*(x.as_subclass(Sub) for x in inputs)),
    "a MaskedTensor": lambda call, inputs: call(*(masked_tensor(x, x > 0) for x in inputs)),
    "a FakeTensor": lambda call, inputs: call(*map(FakeTensorMode().from_tensor, inputs)),
    "no memory of its own": lambda call, inputs: torch.vmap(call)(*(torch.stack([x, x]) for x in inputs)),
    "no memory": lambda call, inputs: torch.func.functionalize(call)(*inputs),
    "no memory of": lambda call, inputs: torch.func.functionalize(lambda *all: call(*(x[1] for x in all)))(
        *(x.expand(2, *x.shape) for x in inputs)
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@each_quick
def test_a_tensor_whose_memory_does_not_hold_its_value_is_refused(candidate: Candidate) -> None:
    """Also where the call for plain tensors that are like it is there already. A call of torch's own operators takes it."""
    found, inputs = candidate.get(), good_inputs(OPS[candidate.op], taken_dtype(candidate))
    out = found(*inputs)
    known = len(found._calls)

    def launched(*inputs: Tensor) -> None:
        found.prepare(*inputs, out=out)

    for kind, of in UNPLAIN.items():
        for use in (launched,) if found.source.takes_strided else (launched, found):
            with pytest.raises(TypeError, match=rf"{re.escape(candidate.name)}: .* {kind}.*a plain torch.Tensor is taken.*hand one in"):
                of(use, inputs)
        if found.source.takes_strided and kind.startswith("no"):
            assert torch.allclose(of(found, inputs), out), kind
    assert len(found._calls) == known, "of such a tensor nothing is kept"


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
