"""The judge by itself: classes, thresholds, guard bands, fingerprints. What it makes of whole kernels is in test_mutants.py."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE, ON_GPU, needs_gpu
from torch import Tensor

from opwise.measure import validate
from opwise.measure.validate import Guarded, agree, check, fingerprint, judge, overflow_threshold
from opwise.ops.spec import STORAGE_DTYPES

DTYPES = sorted(STORAGE_DTYPES, key=str)


def t64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=DEVICE)


def test_within_the_bound_is_right_and_a_hair_outside_is_wrong() -> None:
    reference, bound = t64(1.0, -2.0, 0.0), t64(0.5, 0.25, 0.0)
    verdict = judge(t64(1.5, -2.25, 0.0), reference, bound)
    assert verdict.ok
    assert verdict.error_ratio == 1.0
    assert verdict.reason == ""
    for wrong in (t64(1.5 + 1e-12, -2.0, 0.0), t64(1.0, -2.0, 5e-324)):
        assert not judge(wrong, reference, bound).ok


def test_the_reason_counts_and_names_the_first() -> None:
    reference = torch.zeros(3, 4, dtype=torch.float64, device=DEVICE)
    out = reference.float()
    out[1, 2] = 2.5
    out[2, 0] = math.nan
    verdict = judge(out, reference, torch.full_like(reference, 0.5))
    assert verdict.reason == "2 of 12 elements wrong, first at (1, 2): got 2.5, expected 0, bound 0.5"
    assert verdict.error_ratio == math.inf


@pytest.mark.parametrize("got", [math.nan, math.inf, -math.inf, 1.0])
@pytest.mark.parametrize("expected", [math.nan, math.inf, -math.inf, 1.0])
def test_classes_must_match(got: float, expected: float) -> None:
    same = got == expected or (math.isnan(got) and math.isnan(expected))
    for bound in (1e-3, 1e300, math.inf):
        verdict = judge(t64(got).float(), t64(expected), t64(bound))
        # A bound that reaches the overflow threshold makes any finite float32 and the inf of that sign alike, as it says.
        reaches = expected == 1.0 and bound > 1e30 and not math.isnan(got)
        assert verdict.ok is (same or reaches), (got, expected, bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_inf_and_the_largest_number_are_both_right_near_the_threshold(dtype: torch.dtype) -> None:
    largest, threshold = torch.finfo(dtype).max, overflow_threshold(dtype)
    unit = 2 * (threshold - largest)
    reference = t64(threshold - 0.25 * unit)
    assert reference.to(dtype).item() == largest
    assert t64(threshold + 0.25 * unit).to(dtype).item() == math.inf
    bound = t64(unit)
    for value in (largest, math.inf):
        assert judge(t64(value).to(dtype), reference, bound).ok
        assert judge(t64(value).to(dtype), t64(threshold + 0.25 * unit), bound).ok
        assert judge(t64(-value).to(dtype), -reference, bound).ok
    assert not judge(t64(-math.inf).to(dtype), reference, bound).ok, "an inf of the other sign"
    assert not judge(t64(math.inf).to(dtype), t64(threshold - 3 * unit), bound).ok, "overflow too early"
    assert not judge(t64(largest).to(dtype), t64(threshold + 3 * unit), bound).ok, "saturated where the truth is inf"
    assert judge(t64(math.inf).to(dtype), t64(1e300), t64(1.0)).ok, "a finite reference far beyond the dtype rounds to inf"


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_bound_that_cannot_be_one_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="nan or negative"):
        judge(t64(0.0).float(), t64(0.0), t64(bad))
    assert judge(t64(math.nan).float(), t64(math.nan), t64(bad)).ok, "no bound is needed where nan is the truth"


def test_reference_and_bound_must_be_float64_of_the_same_shape() -> None:
    with pytest.raises(TypeError, match=r"reference64 is torch\.float32, float64 is taken"):
        judge(t64(0.0), t64(0.0).float(), t64(1.0))
    with pytest.raises(ValueError, match=r"bound64 has shape \(\), out has \(1,\)"):
        judge(t64(0.0), t64(0.0), t64(1.0)[0])


def test_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong element anywhere, in any chunk, is seen, and its index is right."""
    whole = validate._chunks
    size = 2**25 if ON_GPU else 2**20
    n = 2 * size + 7
    out = torch.zeros(n, dtype=torch.float16, device=DEVICE)
    reference = torch.zeros(n, dtype=torch.float64, device=DEVICE)
    bound = torch.full_like(reference, 0.5)
    assert len(list(whole(out))) == 3
    for at in (0, size - 1, size, n - 1):
        out[at] = 1.0
        verdict = judge(out, reference, bound)
        assert f"1 of {n} elements wrong, first at ({at},)" in verdict.reason
        out[at] = 0.0
    assert judge(out, reference, bound).ok


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (37, 53)])
def test_guard_bands_see_a_byte_on_either_side(shape: tuple[int, ...], dtype: torch.dtype, offset: int) -> None:
    guarded = Guarded(shape, dtype, DEVICE, offset=offset)
    assert guarded.tensor.shape == shape
    assert guarded.tensor.dtype == dtype
    assert guarded.tensor.is_contiguous()
    assert (guarded.tensor.data_ptr() - offset * dtype.itemsize) % 256 == 0 or guarded.tensor.numel() == 0
    guarded.poison(math.nan)
    assert guarded.intact() == ""
    around = torch.empty(0, dtype=dtype, device=DEVICE).set_(guarded.tensor.untyped_storage())
    begin, n = guarded.tensor.storage_offset(), guarded.tensor.numel()
    around[begin + n] = 0.0
    assert f"{dtype.itemsize} bytes after the end of the output were overwritten, the nearest 0 bytes away" in guarded.intact()
    around[begin - 2] = 0.0
    assert f"{dtype.itemsize} bytes before the start of the output were overwritten, the nearest {dtype.itemsize}" in guarded.intact()


@pytest.mark.parametrize("dtype", DTYPES)
def test_fingerprints_tell_every_single_change(dtype: torch.dtype) -> None:
    x = torch.randn(61, 67, device=DEVICE).to(dtype)
    before = fingerprint([x, x.clone()])
    assert fingerprint([x, x.clone()]) == before
    flat = x.view(-1)
    for at in (0, 1, 2000, flat.numel() - 1):
        kept = flat[at].clone()
        flat[at] = torch.nextafter(kept.float(), torch.tensor(9.0, device=DEVICE)).to(dtype) if dtype == torch.float32 else kept * 1.02
        assert fingerprint([x, x]) != before
        flat[at] = kept
    assert fingerprint([x, x]) == before
    assert fingerprint([x.view(67, 61)]) != fingerprint([x])
    swapped = x.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert fingerprint([swapped]) != fingerprint([x])
    zero = torch.zeros(3, dtype=dtype, device=DEVICE)
    assert fingerprint([zero]) != fingerprint([-zero]), "-0 is another byte"
    assert fingerprint([x.t()]) == fingerprint([x.t().contiguous()])


def test_agree_names_pairs_and_knows_inf_from_overflow() -> None:
    bound = t64(0.5, 1.0)
    threshold = overflow_threshold(torch.float16)
    outputs = {
        "a": t64(1.0, math.inf).half(),
        "b": t64(2.0, math.inf).half(),
        "c": t64(1.0, math.nan).half(),
        "d": t64(1.0, 65504.0).half(),
    }
    pairs = agree(outputs, bound)
    assert set(pairs) == {("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")}
    assert pairs["a", "b"] == 1.0
    assert pairs["a", "c"] == pairs["c", "d"] == math.inf
    assert pairs["a", "d"] == (threshold - 65504.0) / 2.0
    assert agree({"c": outputs["c"], "e": outputs["c"].clone()}, bound) == {("c", "e"): 0.0}


def test_check_lets_exceptions_of_prepare_through() -> None:
    def prepare(x: Tensor, *, out: Tensor) -> validate.Launch:
        raise KeyError("as it was")

    with pytest.raises(KeyError, match="as it was"):
        check(prepare, (t64(1.0).float(),), t64(1.0), t64(1.0))


@pytest.mark.parametrize("offset", [0, 1])
def test_check_hands_over_an_aligned_or_an_unaligned_output(offset: int) -> None:
    seen = []

    def prepare(x: Tensor, *, out: Tensor) -> validate.Launch:
        seen.append(out.data_ptr() % 256)

        def launch() -> None:
            out.copy_(x)

        return launch

    assert check(prepare, (t64(1.0).float(),), t64(1.0), t64(0.0), offset=offset).ok
    assert seen == [4 * offset]


@pytest.mark.parametrize("expected", [validate.SENTINEL, math.nan])
def test_no_poison_can_be_taken_for_the_truth(expected: float) -> None:
    """A kernel that writes nothing is wrong where the truth is nan, and where it is the sentinel."""

    def prepare(x: Tensor, *, out: Tensor) -> validate.Launch:
        return lambda: None

    verdict = check(prepare, (t64(1.0).float(),), t64(expected), t64(1.0))
    assert not verdict.ok
    assert verdict.error_ratio == math.inf
    assert verdict.reason.endswith("; 1 unwritten" if math.isnan(expected) else "; 1 unwritten or nan")


@needs_gpu
def test_check_runs_once_on_another_stream_than_the_callers() -> None:
    streams = []

    def prepare(x: Tensor, *, out: Tensor) -> validate.Launch:
        def launch() -> None:
            streams.append(torch.cuda.current_stream().cuda_stream)
            out.copy_(x)

        return launch

    assert check(prepare, (t64(1.0).float(),), t64(1.0), t64(0.0)).ok
    assert len(streams) == len(set(streams)) == 2
    assert torch.cuda.current_stream().cuda_stream == streams[0]
