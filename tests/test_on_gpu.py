"""What only a GPU can show: streams, graphs, device memory, a second device, and more elements than a 32-bit index counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import DEVICE, Candidate, bits, bound_launch, needs_gpu, our_candidates, quick_candidates, taken_workload, truth
from torch import Tensor

from opwise.measure.validate import judge
from opwise.ops import OPS, OpSpec, Workload
from opwise.runner.truth import kinds_of

pytestmark = needs_gpu

QUICK = quick_candidates()
OURS = our_candidates()
each_quick = pytest.mark.parametrize("candidate", QUICK, ids=str)
each_of_ours = pytest.mark.parametrize("candidate", OURS, ids=str)

SPIN_CYCLES = 60_000_000  # some 30 ms: longer than the slowest launch takes the CPU
SCRATCH_BYTES = 64 * 1024
LONG = 2**31 + 4097  # an index that has passed 2^31, and no multiple of a vector's width
HUGE = {"softmax": (65537, 32771), "matmul": (46349, 8, 46351)}  # a little over 2^31 elements; the others take (LONG,)
ROOM_BYTES = 60 << 30


def workload_and_two_inputs(candidate: Candidate) -> tuple[Workload, tuple[Tensor, ...]]:
    workload = taken_workload(candidate)
    return workload, tuple(x.clone() for x in truth(workload, "normal", 31).inputs)


@each_quick
def test_a_launch_goes_to_the_current_stream_and_waits_for_nothing(candidate: Candidate) -> None:
    """The inputs arrive late on a side stream: a launch anywhere else reads the old ones, one that waits finds the stream idle."""
    workload, inputs = workload_and_two_inputs(candidate)
    late = truth(workload, "normal", 32)
    with workload.precision():
        out = OPS[candidate.op].empty_output(*inputs)
        launch = bound_launch(candidate, inputs, out)
        out.fill_(float("nan"))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch()  # whatever a first launch on a stream has to set up
            torch.cuda.synchronize()
            torch.cuda._sleep(SPIN_CYCLES)
            for x, fresh in zip(inputs, late.inputs, strict=True):
                x.copy_(fresh)
            launch()
            waited = side.query()
        side.synchronize()
    assert not waited, "the launch waited for the GPU"
    verdict = judge(out, late.reference, late.bound)
    assert verdict.ok, verdict.reason


@each_quick
def test_a_captured_launch_computes_with_what_is_there_at_replay(candidate: Candidate) -> None:
    workload, inputs = workload_and_two_inputs(candidate)
    with workload.precision():
        out = OPS[candidate.op].empty_output(*inputs)
        launch = bound_launch(candidate, inputs, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            launch()
        for seed in (33, 34, 33):
            known = truth(workload, "normal", seed)
            for x, fresh in zip(inputs, known.inputs, strict=True):
                x.copy_(fresh)
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            verdict = judge(out, known.reference, known.bound)
            assert verdict.ok, f"after replay with inputs {seed}: {verdict.reason}"


def means(candidate: Candidate) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs that take many blocks, and what the candidate makes of each when it is alone: it adds in a fixed order, bit by bit."""
    inputs = [torch.randn(1 << 22, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed)) + seed for seed in range(2)]
    results = [candidate.get()(x) for x in inputs]
    torch.cuda.synchronize()
    for x, found in zip(inputs, results, strict=True):
        assert abs(found.double() - x.double().mean()) < 1e-5
    return inputs, results


def side_by_side(*work: Callable[[], Any]) -> None:
    """Each in a stream of its own, all let go at once."""
    streams = [torch.cuda.Stream() for _ in work]
    gate = torch.cuda.Event()
    torch.cuda._sleep(SPIN_CYCLES // 10)
    gate.record()
    for stream in streams:
        stream.wait_event(gate)
    for stream, do in zip(streams, work, strict=True):
        with torch.cuda.stream(stream):
            do()
    torch.cuda.synchronize()


each_mean = pytest.mark.parametrize("candidate", [c for c in OURS if c.op == "mean"], ids=str)


@each_quick
def test_a_call_goes_to_the_current_stream(candidate: Candidate) -> None:
    """As a launch does: its input arrives late on a side stream."""
    workload, inputs = workload_and_two_inputs(candidate)
    late, side = truth(workload, "normal", 32), torch.cuda.Stream()
    with workload.precision():
        candidate.get()(*inputs)  # builds
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            candidate.get()(*inputs)
            torch.cuda.synchronize()
            torch.cuda._sleep(SPIN_CYCLES)
            for x, fresh in zip(inputs, late.inputs, strict=True):
                x.copy_(fresh)
            out = candidate.get()(*inputs)
        side.synchronize()
    verdict = judge(out, late.reference, late.bound)
    assert verdict.ok, verdict.reason


@each_mean
def test_calls_on_two_streams_at_once_share_no_scratch(candidate: Candidate) -> None:
    inputs, results = means(candidate)
    outs: list[list[Tensor]] = [[], []]
    side_by_side(*(lambda at=at: outs[at].extend(candidate.get()(inputs[at]) for _ in range(50)) for at in range(2)))
    for found, result in zip(outs, results, strict=True):
        assert all(torch.equal(bits(out), bits(result)) for out in found)


@each_mean
def test_bindings_of_one_stream_may_be_launched_on_two(candidate: Candidate) -> None:
    """The first inherits the scratch of a call that is still under way on the stream where all are bound."""
    inputs, results = means(candidate)
    outs = [torch.full_like(result, float("nan")) for result in results]
    torch.cuda._sleep(SPIN_CYCLES // 10)
    called = candidate.get()(inputs[1])
    launches = [candidate.get().prepare(x, out=out) for x, out in zip(inputs, outs, strict=True)]
    side_by_side(*(lambda launch=launch: [launch() for _ in range(50)] for launch in launches))
    del launches
    last = candidate.get()(inputs[0])
    for out, result in zip((*outs, called, last), (*results, results[1], results[0]), strict=True):
        assert torch.equal(bits(out), bits(result))


@each_mean
@pytest.mark.parametrize("bound_within", [True, False])
def test_graphs_replayed_at_once_share_no_scratch(candidate: Candidate, bound_within: bool) -> None:
    inputs, results = means(candidate)
    outs, graphs, kept = [torch.zeros_like(result) for result in results], [], []
    for x, out in zip(inputs, outs, strict=True):
        graph = torch.cuda.CUDAGraph()
        launch = None if bound_within else candidate.get().prepare(x, out=out)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(20):
                launch() if launch else out.copy_(candidate.get()(x))
        graphs.append(graph)
        kept.append(launch)
    for _ in range(3):
        for out in outs:
            out.fill_(float("nan"))
        side_by_side(*(graph.replay for graph in graphs), lambda: [candidate.get()(inputs[0]) for _ in range(20)])
        for out, result in zip(outs, results, strict=True):
            assert torch.equal(bits(out), bits(result))


# Rows of every length that a kernel of its own reads, many and few; more of the longest than run at once; rows that nothing holds.
LONG_ROWS = ((300, 32_768), (200, 65_536), (1100, 65_536), (150, 131_072), (20, 262_144), (20, 600_000), (40, 1_048_576), (9, 1_500_000),
             (70, 300_008), (200, 12_304), (150, 40_016), (100, 131_104), (64, 600_000), (3, 32_776), (2, 300_008), (1, 1_048_576),
             (1, 3_000_016), (7, 3_000_016), (500, 120_008), (250, 200_016), (1000, 32_008))  # fmt: skip


@pytest.mark.parametrize("dtype", OPS["softmax"].dtypes)
@pytest.mark.parametrize("candidate", [c for c in OURS if c.op == "softmax"], ids=str)
def test_long_rows_again_and_again(candidate: Candidate, dtype: str) -> None:
    spec = OPS["softmax"]
    for seed, shape in enumerate(LONG_ROWS):
        workload = Workload("softmax", shape, dtype)
        for make in kinds_of(spec).values():
            (x,) = make(workload, DEVICE, seed)
            wide = x.double()
            reference = spec.reference(wide)
            bound = spec.error_bound(workload, reference, wide)
            out = torch.empty_like(x)
            launch = candidate.get().prepare(x, out=out)
            for _ in range(3):
                out.fill_(float("nan"))
                launch()
                verdict = judge(out, reference, bound)
                assert verdict.ok, f"{workload}: {verdict.reason}"


@each_of_ours
def test_a_launch_allocates_nothing_and_prepare_no_more_than_scratch(candidate: Candidate) -> None:
    workload, inputs = workload_and_two_inputs(candidate)
    with workload.precision():
        out = OPS[candidate.op].empty_output(*inputs)
        before = torch.cuda.memory_allocated()
        launch = bound_launch(candidate, inputs, out)
        assert torch.cuda.memory_allocated() - before <= SCRATCH_BYTES
        count = torch.cuda.memory_stats()["allocation.all.allocated"]
        taken = []
        for _ in range(5):  # other processes take device memory too, but not each time
            free = torch.cuda.mem_get_info()[0]
            launch()
            torch.cuda.synchronize()
            taken.append(free - torch.cuda.mem_get_info()[0])
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == count
        assert min(taken) <= 0, f"each launch takes memory that torch's allocator knows nothing of: {taken}"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
@each_quick
def test_another_device_than_the_current_one(candidate: Candidate) -> None:
    workload, _ = workload_and_two_inputs(candidate)
    known = truth(workload, "normal", 35)
    assert torch.cuda.current_device() == DEVICE.index
    inputs = tuple(x.to("cuda:1") for x in known.inputs)
    try:
        with workload.precision():
            out = OPS[candidate.op].empty_output(*inputs).fill_(float("nan"))
            candidate.get().prepare(*inputs, out=out)()
            called = candidate.get()(*inputs)
        torch.cuda.synchronize("cuda:1")
        assert torch.cuda.current_device() == DEVICE.index, "the current device was left changed"
    finally:
        torch.cuda.set_device(DEVICE)  # whatever this test finds is not the next one's fault
    assert called.device == out.device == torch.device("cuda", 1)
    for found in (out, called):
        verdict = judge(found.to(DEVICE), known.reference, known.bound)
        assert verdict.ok, verdict.reason


@pytest.mark.huge
@pytest.mark.usefixtures("roomy")
@each_of_ours
def test_more_elements_than_a_32_bit_index_counts(candidate: Candidate) -> None:
    if torch.cuda.mem_get_info()[0] < ROOM_BYTES:
        pytest.skip(f"{ROOM_BYTES >> 30} GiB of free device memory are needed")
    spec = OPS[candidate.op]
    workload = Workload(candidate.op, HUGE.get(candidate.op, (LONG,)), "bfloat16")
    inputs = spec.make_inputs(workload, DEVICE, 36)
    out = spec.empty_output(*inputs).fill_(float("nan"))
    candidate.get().prepare(*inputs, out=out)()
    torch.cuda.synchronize()
    for part in parts(spec, inputs, out):
        piece = inputs if out.ndim == 0 else (inputs[0][part], *inputs[1:])
        exact = tuple(x.double() for x in piece)
        reference = spec.reference(*exact)
        verdict = judge(out if out.ndim == 0 else out[part], reference, spec.error_bound(workload, reference, *exact))
        assert verdict.ok, f"{part}: {verdict.reason}"
    assert not out.isnan().any(), "elements were left unwritten"


def parts(spec: OpSpec, inputs: tuple[Tensor, ...], out: Tensor) -> list[slice]:
    """Along the first dimension: the beginning, both sides of element 2^31 of the output and of its bytes, and the end."""
    if out.ndim == 0:
        return [slice(None)]
    rows, width = out.shape[0], max(out.numel() // out.shape[0], 1)
    few = max(4096 // width, 8)
    around = [2**31 // width, 2**30 // width]
    return [slice(0, few), *(slice(max(at - few, 0), min(at + few, rows)) for at in around), slice(rows - few, rows)]
