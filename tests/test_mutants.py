"""The checker against kernels that are wrong on purpose: each must be rejected wherever it differs from the truth.

Whether it differs is decided here, in NumPy, on a buffer of its own, and not by the checker: a transposed 1x1 product is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pipelines import LOOPS, in_float32, with_tf32_factors
from support import DEVICE, INPUT_KINDS, ON_GPU, Truth, bits, needs_gpu, ranks, truth
from torch import Tensor

from opwise.measure.validate import Launch, check, judge, overflow_threshold
from opwise.ops import OPS, OpSpec, Workload

CASES = [(op, dtype) for op, spec in OPS.items() for dtype in spec.dtypes]
SHAPES = {
    1: ((1,), (33,), (1025,)),
    2: ((1, 1), (3, 33), (32, 32), (1, 600), (37, 53)),
    3: ((1, 1, 1), (17, 33, 19), (32, 32, 32), (2, 600, 3)),
}
SEEDS = 1000 if ON_GPU else 250
PAD = 4096  # elements around the buffer of `differs`


@dataclass(frozen=True)
class Setting:
    """What a mutant sees: the op, its inputs, where to write, and the right answer to spoil."""

    spec: OpSpec
    workload: Workload
    inputs: tuple[Tensor, ...]
    out: Tensor
    known: Truth

    def right(self) -> Tensor:
        return in_float32(self.spec, self.inputs)

    def write(self, value: Tensor) -> None:
        self.out.copy_(value.reshape(self.out.shape))


def zeros(s: Setting) -> None:
    s.out.zero_()


def last_output_again(s: Setting) -> None:
    s.write(in_float32(s.spec, s.spec.make_inputs(s.workload, DEVICE, 977)))


def no_op(s: Setting) -> None:
    pass


def one_element_off(s: Setting, at: int = -1) -> None:
    """By four bounds, the least that rounding to the output's dtype cannot bring back."""
    wrong = s.right().reshape(-1)
    r, b = s.known.reference.reshape(-1)[at], s.known.bound.reshape(-1)[at]
    wrong[at] = r - torch.where(r < 0, -4 * b, 4 * b)
    s.write(wrong)


def one_tile_missing(s: Setting) -> None:
    flat, right = s.out.view(-1), s.right().reshape(-1)
    tile = max(1, flat.numel() // 8)
    begin = flat.numel() // 2
    flat[:begin] = right[:begin]
    flat[begin + tile :] = right[begin + tile :]


def last_block_unmasked(s: Setting, block: int = 256) -> None:
    """Writes whole blocks: what is past the end of the output is not the kernel's."""
    n = s.out.numel()
    past = torch.as_strided(s.out, (-n % block,), (1,), s.out.storage_offset() + n)
    s.write(s.right())
    past.zero_()


def first_block_too_early(s: Setting) -> None:
    s.write(s.right())
    torch.as_strided(s.out, (1,), (1,), s.out.storage_offset() - 1).zero_()


def last_block_skipped(s: Setting, block: int = 256) -> None:
    whole = s.out.numel() // block * block
    s.out.view(-1)[:whole] = s.right().reshape(-1)[:whole]


def no_max_subtraction(s: Setting) -> None:
    e = s.inputs[0].float().exp() if s.spec.name == "softmax" else None
    s.write(s.right() if e is None else e / e.sum(-1, keepdim=True))


def low_precision_accumulation(s: Setting) -> None:
    low = s.inputs[0].dtype if s.inputs[0].dtype.itemsize == 2 else torch.bfloat16
    if s.spec.name in LOOPS:
        s.write(LOOPS[s.spec.name](low, *s.inputs))
    else:
        s.write(s.spec.reference(*(x.to(low) for x in s.inputs)))


def wrong_axis(s: Setting) -> None:
    """Rows taken for columns, in and out; a mean over all elements has no axis, so it takes the mean of its first part."""
    if s.out.ndim == 0:
        x = s.inputs[0].float()
        s.write(s.spec.reference(x[0] if x.ndim > 1 else x[: (x.numel() + 1) // 2]))
    elif s.out.ndim == 2 and all(x.ndim == 2 and (x.shape[0] == x.shape[1] or len(s.inputs) == 1) for x in s.inputs):
        s.write(in_float32(s.spec, tuple(x.t() for x in s.inputs)).t())
    else:
        s.write(s.right())


def transposed_output(s: Setting) -> None:
    right = s.right()
    s.write(right.t().contiguous() if right.ndim == 2 else right)


def inputs_overwritten(s: Setting) -> None:
    """As an in-place scratch would: right output, one input no longer what it was."""
    s.write(s.right())
    s.inputs[-1].view(-1)[-1] += 1


def added_to_what_was_there(s: Setting) -> None:
    s.out.add_(s.right())


def nan_to_zero(s: Setting) -> None:
    """Hides the poison: what was not written becomes zero."""
    s.out.nan_to_num_(0.0)


def to_inf(s: Setting) -> None:
    wrong = s.right().reshape(-1)
    wrong[-1] = math.inf
    s.write(wrong)


MUTANTS: tuple[Callable[[Setting], None], ...] = (
    *(zeros, last_output_again, no_op, one_element_off, one_tile_missing, last_block_unmasked, first_block_too_early),
    *(last_block_skipped, no_max_subtraction, low_precision_accumulation, wrong_axis, transposed_output, inputs_overwritten),
    *(added_to_what_was_there, nan_to_zero, to_inf),
)
# By construction right for some ops: an elementwise op has no axis, a square in its own 16 bits is one rounding.
NOT_FOR_ALL = {no_max_subtraction, low_precision_accumulation, wrong_axis, transposed_output}


def settings(op: str, dtype: str) -> Iterator[tuple[Workload, Truth]]:
    for rank in ranks(OPS[op]):
        for shape in SHAPES[rank]:
            for kind in INPUT_KINDS:
                workload = Workload(op, shape, dtype)
                yield workload, truth(workload, kind, 3)


def prepared(mutant: Callable[[Setting], None], workload: Workload, known: Truth) -> Callable[..., Launch]:
    def prepare(*inputs: Tensor, out: Tensor) -> Launch:
        return lambda: mutant(Setting(OPS[workload.op], workload, inputs, out, known))

    return prepare


def differs(mutant: Callable[[Setting], None], workload: Workload, known: Truth) -> bool:
    """One run on a plain padded buffer, compared in NumPy's float64: the outcome the checker must agree with."""
    n, inputs = known.reference.numel(), tuple(x.clone() for x in known.inputs)
    buffer = torch.full((n + 2 * PAD,), 7.0, dtype=inputs[0].dtype, device=DEVICE)
    out = buffer[PAD : PAD + n].view(known.reference.shape)
    out.fill_(math.nan)
    mutant(Setting(OPS[workload.op], workload, inputs, out, known))
    if any(not torch.equal(bits(x), bits(y)) for x, y in zip(inputs, known.inputs, strict=True)):
        return True
    whole = buffer.double().cpu().numpy()
    if not ((whole[:PAD] == 7.0).all() and (whole[PAD + n :] == 7.0).all()):
        return True
    got, r, b = whole[PAD : PAD + n], known.reference.reshape(-1).cpu().numpy(), known.bound.reshape(-1).cpu().numpy()
    beyond = np.isinf(got) & (np.sign(got) == np.sign(r)) & (np.abs(r) + b >= overflow_threshold(inputs[0].dtype))
    with np.errstate(invalid="ignore"):
        return not ((np.abs(got - r) <= b) | beyond).all()


@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_mutants_are_rejected_where_they_differ(mutant: Callable[[Setting], None], op: str, dtype: str) -> None:
    shown = 0
    for workload, known in settings(op, dtype):
        if not differs(mutant, workload, known):
            continue
        shown += 1
        inputs = tuple(x.clone() for x in known.inputs)
        verdict = check(prepared(mutant, workload, known), inputs, known.reference, known.bound)
        assert not verdict.ok, f"{mutant.__name__} passed as {workload}: {verdict}"
        assert verdict.error_ratio > 1
        assert verdict.reason
    assert shown >= 3 or mutant in NOT_FOR_ALL, f"{mutant.__name__} of {op} in {dtype} differs from the truth in {shown} settings"


@pytest.mark.parametrize("mutant", sorted(NOT_FOR_ALL, key=lambda m: m.__name__), ids=lambda m: m.__name__)
def test_mutants_made_for_some_ops_differ_there_in_every_dtype(mutant: Callable[[Setting], None]) -> None:
    shown = {op: [any(differs(mutant, w, known) for w, known in settings(op, dtype)) for dtype in OPS[op].dtypes] for op in OPS}
    assert any(all(found) for found in shown.values()), shown
    expected = {low_precision_accumulation: set(LOOPS), no_max_subtraction: {"softmax"}, wrong_axis: set(LOOPS)}.get(mutant, set())
    assert all(all(shown[op]) for op in expected & set(OPS)), shown


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_mutant_of_the_first_launch_alone_is_rejected(op: str, dtype: str) -> None:
    """Right once, then nothing: what a benchmark that checks the first launch and times the rest would believe."""
    for workload, known in settings(op, dtype):
        launches = []

        def once(s: Setting, launches: list[int] = launches) -> None:
            launches.append(1)
            if len(launches) == 1:
                s.write(s.right())

        assert not check(prepared(once, workload, known), known.inputs, known.reference, known.bound).ok


@needs_gpu
@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("default", [True, False], ids=["default-stream", "own-stream"])
def test_a_mutant_on_another_stream_is_rejected(op: str, dtype: str, default: bool) -> None:
    other = torch.cuda.default_stream() if default else torch.cuda.Stream()

    def elsewhere(s: Setting) -> None:
        with torch.cuda.stream(other):
            s.write(s.right())

    for workload, known in settings(op, dtype):
        torch.cuda.synchronize()
        assert not check(prepared(elsewhere, workload, known), known.inputs, known.reference, known.bound).ok, workload


@needs_gpu
def test_a_mutant_on_another_stream_is_rejected_where_the_cpu_is_late() -> None:
    """The first spins are over before the launch: a machine with other work to do."""

    def late(s: Setting) -> None:
        time.sleep(0.01)
        with torch.cuda.stream(torch.cuda.default_stream()):
            s.write(s.right())

    workload, known = next(settings("square", "float32"))
    assert not check(prepared(late, workload, known), known.inputs, known.reference, known.bound).ok


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_right_kernels_pass_the_whole_check(op: str, dtype: str) -> None:
    for workload, known in settings(op, dtype):
        for offset in (0, 1):
            verdict = check(
                prepared(lambda s: s.write(s.right()), workload, known), known.inputs, known.reference, known.bound, offset=offset
            )
            assert verdict.ok, (workload, verdict)


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_right_kernels_pass_many_seeds(op: str, dtype: str) -> None:
    spec = OPS[op]
    shapes = [shape for rank in ranks(spec) for shape in SHAPES[rank]]
    kernel = with_tf32_factors if dtype == "tfloat32" else in_float32
    for seed in range(SEEDS):
        workload = Workload(op, shapes[seed % len(shapes)], dtype)
        inputs = (spec.hard_inputs if seed // len(shapes) % 2 else spec.make_inputs)(workload, DEVICE, seed)
        wide = tuple(x.double() for x in inputs)
        reference = spec.reference(*wide)
        verdict = judge(kernel(spec, inputs), reference, spec.error_bound(workload, reference, *wide))
        assert verdict.ok, (seed, workload, verdict)
