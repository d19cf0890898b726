"""Every implementation of every op in every dtype: right on awkward shapes, storage and values, or refused with a reason.

Where there is no GPU the same tests run on the CPU and in the stand-ins, on the shapes that those can afford.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from bad_arguments import good_inputs
from pipelines import in_float32
from support import (
    DEVICE,
    INPUT_KINDS,
    ON_GPU,
    RUNS_TORCH_OPERATORS,
    Candidate,
    Tally,
    Truth,
    affordable,
    by_dtype,
    faulty_candidates,
    few_shapes,
    guarded_copy,
    kinds_in_turns,
    quick_candidates,
    right_candidates,
    small_workload,
    truth,
    truth_of,
    workload_for,
    workloads_for,
)
from torch import Tensor

from opwise.backends import scratch, staged_rows
from opwise.backends.protocol import UnsupportedWorkload
from opwise.backends.scratch import Memory, Scratch
from opwise.measure.validate import judge
from opwise.ops import OPS, Workload

RIGHT = right_candidates()
QUICK = quick_candidates()
each_right = pytest.mark.parametrize(("candidate", "dtype"), by_dtype(RIGHT), ids=str)
each_quick = pytest.mark.parametrize(("candidate", "dtype"), by_dtype(QUICK), ids=str)


@each_right
def test_right_on_awkward_shapes(candidate: Candidate, dtype: str) -> None:
    candidate.get()
    tally = Tally(candidate)
    for seed, workload in enumerate(workloads_for(candidate, dtype)):
        for kind in kinds_in_turns(dtype, seed):
            tally.check(workload, truth(workload, kind, seed), note=kind)
    tally.close()


@each_quick
def test_right_on_many_seeds(candidate: Candidate, dtype: str) -> None:
    """The same shape again and again: what is built once must serve all."""
    candidate.get()
    tally = Tally(candidate)
    workload = workload_for(candidate, dtype)
    for seed in range(4 if ON_GPU else 1):
        for kind in INPUT_KINDS:
            tally.check(workload, truth(workload, kind, 100 + seed), note=f"{kind}, seed {seed}")
    tally.close()


OFFSETS = ((0, 0), (0, 1), (1, 0), (1, 1), (2, 3))  # elements, of the inputs and of the output


@each_quick
def test_storage_may_begin_off_alignment(candidate: Candidate, dtype: str) -> None:
    """Inputs and output on alignment and elements off it, after each other in one process."""
    candidate.get()
    tally = Tally(candidate)
    workloads = [w for w in workloads_for(candidate, dtype) if 0 not in w.shape and w.shape.count(1) < 2]
    small, cost = workload_for(candidate, dtype), OPS[candidate.op].cost
    largest = max(workloads, key=lambda w: cost(w).bytes)  # several blocks, where the stand-in affords them
    few = few_shapes(candidate)
    here = (small, largest) if cost(largest).bytes > 2 * cost(small).bytes and not few else (small,)
    chosen = dict.fromkeys((workloads[0], workloads[len(workloads) // 2], *here)) if ON_GPU else here
    for workload in chosen:
        known = truth(workload, "normal", 7)
        # Aligned, the largest is among the awkward ones.
        for offsets in OFFSETS[1:3] if few else OFFSETS if ON_GPU or workload == small else OFFSETS[1:4]:
            moved = tuple(guarded_copy(x, (offsets[0] + at) % 4) for at, x in enumerate(known.inputs))
            tally.check(workload, Truth(moved, known.reference, known.bound), offset=offsets[1], note=f"offsets {offsets}")
    tally.close()


def strided_views(x: Tensor) -> dict[str, Tensor]:
    """Tensors that equal x in storage that is not row-major."""
    if x.ndim < 2:
        return {"every second": torch.stack([x, x], dim=-1)[..., 0]}
    wide = torch.cat([x, x[:, :1]], dim=1)
    return {"transposed": x.t().contiguous().t(), "sliced": wide[:, :-1], "every second": torch.stack([x, x], dim=-1)[..., 0]}


@each_quick
def test_strided_inputs_are_right_or_refused(candidate: Candidate, dtype: str) -> None:
    candidate.get()
    tally = Tally(candidate)
    spec = OPS[candidate.op]
    workload = workload_for(candidate, dtype)
    known = truth(workload, "normal", 9)
    for at, name in enumerate(spec.inputs):
        for layout, view in strided_views(known.inputs[at]).items():
            assert not view.is_contiguous()
            assert torch.equal(view, known.inputs[at])
            inputs = (*known.inputs[:at], view, *known.inputs[at + 1 :])
            try:
                tally.check(workload, Truth(inputs, known.reference, known.bound), note=f"{name} {layout}")
            except ValueError as refusal:
                words = (candidate.name, name, str(view.stride()), "row-major", f"{name}.contiguous()")
                tally.ran += 1
                if not all(word in str(refusal) for word in words):
                    tally.failures.append(f"{name} {layout}: {refusal}")
    tally.close()


def special_values(workload: Workload) -> dict[str, tuple[float, ...]]:
    info = torch.finfo(workload.torch_dtype)
    largest = (2 - 2**-10) * 2.0**127 if workload.dtype == "tfloat32" else info.max  # above it rounding to TF32 gives inf
    least = info.smallest_normal * info.eps
    return {
        "inf": (math.inf,),
        "-inf": (-math.inf,),
        "nan": (math.nan,),
        "inf, -inf, nan": (math.inf, -math.inf, math.nan),
        "largest": (largest, -largest),
        "subnormal": (least, -least, info.smallest_normal, info.smallest_normal / 2, 0.0, -0.0),
        "results near the least": (0.0, -86.0, -87.0, -88.0, -89.0, -90.0, -91.0),  # softmax's in bfloat16, subnormals among them
        "moderate": (9.5, 10.0, 10.5, 89.0, -9.5, -10.0, -20.0, -89.0, 300.0, -300.0),
    }


def planted(inputs: tuple[Tensor, ...], values: tuple[float, ...], everywhere: bool) -> tuple[Tensor, ...]:
    """The values at the first, a middle and the last place of each input in turn, or instead of all elements of the first."""
    made = []
    for turn, x in enumerate(inputs):
        flat = guarded_copy(x).view(-1)
        n = flat.numel()
        places = range(n) if everywhere and turn == 0 else sorted({0, n // 2, n - 1})
        if not everywhere or turn == 0:
            pattern = torch.tensor([values[(k + turn) % len(values)] for k in range(len(places))], dtype=x.dtype, device=x.device)
            flat[torch.tensor(list(places), device=x.device)] = pattern
        made.append(flat.view(x.shape))
    return tuple(made)


@each_quick
def test_special_values_follow_the_reference(candidate: Candidate, dtype: str) -> None:
    """Wherever the definition in float32 follows it: a sum of the largest numbers overflows in any order."""
    candidate.get()
    tally = Tally(candidate)
    spec = OPS[candidate.op]
    workload = workload_for(candidate, dtype)
    cpus_product = not ON_GPU and (candidate.backend, workload.op, dtype) == ("torch_eager", "matmul", "bfloat16")
    left_out = 0
    for name, values in special_values(workload).items():
        if name == "subnormal" and not ON_GPU and candidate.backend in RUNS_TORCH_OPERATORS:
            continue  # VDPBF16PS, which torch's bfloat16 product uses on CPUs, takes subnormals as zero: not a kernel of ours
        for everywhere in (False, True):
            if cpus_product and not everywhere and not all(map(math.isfinite, values)):
                left_out += 1  # nor is AMX's, on one thread: it makes 64 of K = 33, and of 0 times an inf of the next row a nan
                continue
            known = truth_of(workload, *planted(truth(workload, "normal", 11).inputs, values, everywhere))
            if judge(in_float32(spec, known.inputs), known.reference, known.bound).ok:
                tally.check(workload, known, note=f"{name} {'everywhere' if everywhere else 'at three places'}")
    assert tally.ran + left_out >= 8 or tally.refused
    tally.close()


# Rows of which a block's registers hold all, some or nothing, by dtype: work for a kernel of its own, or for several blocks.
LONG_ROWS = ((2, 24_000), (1, 28_000), (3, 40_000), (2, 65_537))


@pytest.mark.parametrize(("candidate", "dtype"), [(c, d) for c, d in by_dtype(QUICK) if c.op == "softmax" and not c.variant], ids=str)
def test_long_rows_also_of_few_finite_elements(candidate: Candidate, dtype: str) -> None:
    """A running maximum is -inf for as long as nothing else was seen, and -inf - -inf is nan, which a sum keeps."""
    candidate.get()
    tally = Tally(candidate)
    for place, workload in enumerate(Workload("softmax", shape, dtype) for shape in LONG_ROWS):
        if not affordable(candidate, workload, times=10):
            continue
        for kind in kinds_in_turns(dtype, place):
            tally.check(workload, truth(workload, kind, 12), note=kind)
        for finite in (slice(0, 3), slice(-3, None)):
            x = guarded_copy(torch.full(workload.shape, -math.inf, dtype=workload.torch_dtype, device=DEVICE))
            x[:, finite] = truth(small_workload(OPS["softmax"], dtype), "normal", 12).inputs[0].flatten()[:3]
            tally.check(workload, truth_of(workload, x), note=f"finite in {finite}")
    tally.close()


class Littered(Scratch):
    """Scratch memory that holds nan wherever it may hold anything: behind what is 0 between launches."""

    lent: ClassVar[list[Memory]]

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        memory.tensor[memory.zeroed // 4 :] = math.nan
        self.lent.append(memory)


TO_ONE_ELEMENT = [(c, d) for c, d in by_dtype(QUICK) if OPS[c.op].output_shape(*(s.shape for s in good_inputs(OPS[c.op], d))) == ()]


@pytest.mark.parametrize(("candidate", "dtype"), TO_ONE_ELEMENT, ids=str)
def test_scratch_may_hold_anything(candidate: Candidate, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that reduces everything to one element reads of its scratch what this launch has written there, and what was 0, which it
    leaves 0."""
    candidate.get()
    monkeypatch.setattr(scratch, "Scratch", Littered)
    monkeypatch.setattr(Littered, "lent", [], raising=False)
    tally = Tally(candidate)
    for workload in workloads_for(candidate, dtype):
        tally.check(workload, truth(workload, "normal", 14))
    tally.close()
    assert not any(memory.tensor.view(torch.int32)[: memory.zeroed // 4].any() for memory in Littered.lent), "not left 0"


@pytest.mark.parametrize(("candidate", "dtype"), TO_ONE_ELEMENT, ids=str)
def test_sums_of_blocks_may_be_any_number(candidate: Candidate, dtype: str) -> None:
    """Each of several blocks' sums is one number, zeros of both signs among them: none may be taken for a sum that is not there yet."""
    candidate.get()
    tally = Tally(candidate)
    workload = Workload(candidate.op, (33_000,), dtype)
    if (candidate.backend, candidate.variant) == ("numba_cuda", "plain") or not affordable(candidate, workload, times=10):
        workload = Workload(candidate.op, (3_000,), dtype)  # blocks of it are small
    for value in (0.0, -0.0, 1.0, math.inf, math.nan):
        x = torch.full(workload.shape, value, dtype=workload.torch_dtype, device=DEVICE)
        tally.check(workload, truth_of(workload, x), note=f"of {value}")
    tally.close()


@pytest.mark.parametrize("candidate", faulty_candidates(), ids=str)
def test_a_stated_fault_shows(candidate: Candidate) -> None:
    """A variant with a fault is there to be shown: some workload must reject it, or the statement is wrong."""
    spec = OPS[candidate.op]

    def known_of(dtype: str) -> Iterator[tuple[Workload, Truth]]:
        shapes = [w for w in workloads_for(candidate, dtype) if spec.cost(w).flops]
        for workload in sorted(shapes, key=lambda w: spec.cost(w).bytes, reverse=True):
            yield from ((workload, truth(workload, kind, 13)) for kind in reversed(INPUT_KINDS))
        small = workload_for(candidate, dtype)
        for values in special_values(small).values():
            known = truth_of(small, *planted(truth(small, "normal", 11).inputs, values, True))
            if judge(in_float32(spec, known.inputs), known.reference, known.bound).ok:
                yield small, known

    for workload, known in (pair for dtype in reversed(spec.dtypes) for pair in known_of(dtype)):
        with workload.precision():
            try:
                out = candidate.get()(*known.inputs)
            except UnsupportedWorkload:
                continue
        if not judge(out, known.reference, known.bound).ok:
            return
    pytest.fail(f"{candidate} is right everywhere, but states: {candidate.get().source.fault}", pytrace=False)


# Of each form, more rows than a block's or a warp's, and a last block of few.
SHORT_ROWS = ((301, 5), (41, 13), (43, 31), (71, 17), (22, 61), (19, 127))


@pytest.mark.parametrize(("candidate", "dtype"), [(c, d) for c, d in by_dtype(QUICK) if c.op == "softmax" and not c.variant], ids=str)
def test_short_rows_as_those_of_large_tensors(candidate: Candidate, dtype: str) -> None:
    """By the kernels that tensors of at least staged_rows.FROM elements get."""
    tally = Tally(candidate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_rows, "FROM", 0)
        patch.setattr(staged_rows, "BYTES", 1024)
        for workload in (Workload("softmax", shape, dtype) for shape in SHORT_ROWS):
            for kind in INPUT_KINDS if affordable(candidate, workload) else ():
                tally.check(workload, truth(workload, kind, 14), note=kind)
    tally.close()


def test_backends_agree_with_each_other() -> None:
    """Every unnamed implementation against every other within twice the bound: a wrong reference shows as all against one."""
    from opwise.measure.validate import agree

    apart = {}
    for op, spec in OPS.items():
        for dtype in spec.dtypes:
            workload = small_workload(spec, dtype)
            known = truth(workload, "normal", 17)
            with workload.precision():
                outputs = {c.name: c.found(*known.inputs) for c in RIGHT if c.op == op and not c.variant and c.found is not None}
            outputs["float32 definition"] = in_float32(spec, known.inputs)
            assert len(outputs) > 1
            apart.update({(str(workload), pair): ratio for pair, ratio in agree(outputs, known.bound).items() if ratio > 1})
    assert not apart
    assert DEVICE.type in {"cuda", "cpu"}
