"""The truth itself: references against formulations that share nothing with them, bounds that hold and that bite."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from bad_arguments import good_inputs
from pipelines import LONG, LOOPS, in_float32
from support import DEVICE, INPUT_KINDS, ranks, small_workload, truth, truth_of

from opwise.measure.validate import judge
from opwise.ops import OPS, OURS, Workload
from opwise.ops.spec import DTYPES, LEAST_SUBNORMAL, STORAGE_DTYPES, UNIT_ROUNDOFF, tf32_allowed
from opwise.runner import SETS

CASES = [(op, dtype) for op, spec in OPS.items() for dtype in spec.dtypes]
each_case = pytest.mark.parametrize(("op", "dtype"), CASES)
each_op = pytest.mark.parametrize("op", OPS)


def gelu_by_sigmoid(x: float) -> float:
    """0.5 (1 + tanh a) = 1 / (1 + e^-2a), written so that neither exponential overflows."""
    a = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + math.exp(-a)) if a >= 0 else x * math.exp(max(a, -745.0)) / (1 + math.exp(max(a, -745.0)))


def softmax_rows(x: list[list[float]]) -> list[list[float]]:
    out = []
    for row in x:
        top = max(row)
        log_sum = top + math.log(math.fsum(math.exp(v - top) for v in row))
        out.append([math.exp(v - log_sum) for v in row])
    return out


def exact_product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*b, strict=True))
    return [[float(sum(Fraction(p) * Fraction(q) for p, q in zip(row, column, strict=True))) for column in columns] for row in a]


# Python's own arithmetic on lists: exact, or with math.fsum, which rounds once.
INDEPENDENT: dict[str, Callable[..., object]] = {
    "square": lambda x: [[float(Fraction(v) ** 2) for v in row] for row in x],
    "mean": lambda x: math.fsum(v for row in x for v in row) / sum(map(len, x)),
    "gelu": lambda x: [[gelu_by_sigmoid(v) for v in row] for row in x],
    "softmax": softmax_rows,
    "matmul": exact_product,
}


@pytest.mark.parametrize("kind", INPUT_KINDS)
@each_case
def test_reference_against_python_arithmetic(op: str, dtype: str, kind: str) -> None:
    if op not in INDEPENDENT:
        pytest.skip(f"no second formulation of {op} is written down here")
    workload = Workload(op, (5, 7) if 2 in ranks(OPS[op]) else (3, 11, 4), dtype)
    known = truth(workload, kind)
    expected = torch.tensor(INDEPENDENT[op](*(x.tolist() for x in known.inputs)), dtype=torch.float64)
    # float64's own rounding, magnified by the exponent of a softmax or the sum of a product: far below any bound.
    difference = (known.reference.cpu() - expected).abs()
    assert (difference <= 1e-12 * expected.abs() + 1e-6 * known.bound.cpu()).all()


@pytest.mark.parametrize("kind", INPUT_KINDS)
@each_case
def test_the_bound_holds_for_a_plain_float32_loop(op: str, dtype: str, kind: str) -> None:
    for seed in range(3):
        known = truth(Workload(op, LONG.get(op, (1, 4099)), dtype), kind, seed)
        out = LOOPS[op](torch.float32, *known.inputs) if op in LOOPS else in_float32(OPS[op], known.inputs)
        verdict = judge(out, known.reference, known.bound)
        assert verdict.ok, (seed, verdict)


@pytest.mark.parametrize("accumulator", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype in CASES if op in LOOPS])
def test_the_bound_rejects_a_16_bit_accumulator(op: str, dtype: str, accumulator: torch.dtype) -> None:
    for seed in range(2):
        verdicts = []
        for kind in INPUT_KINDS:
            known = truth(Workload(op, LONG[op], dtype), kind, seed)
            verdicts.append(judge(LOOPS[op](accumulator, *known.inputs), known.reference, known.bound))
        assert not all(v.ok for v in verdicts), (seed, verdicts)


@each_case
def test_the_bound_is_never_under_the_output_rounding(op: str, dtype: str) -> None:
    """The truth itself, rounded once, must be right: also where it is subnormal or overflows."""
    for kind in INPUT_KINDS:
        known = truth(small_workload(OPS[op], dtype), kind)
        assert judge(known.reference.to(known.inputs[0].dtype), known.reference, known.bound).ok


@pytest.mark.parametrize("storage", sorted(STORAGE_DTYPES, key=str), ids=str)
def test_units_are_those_of_torch(storage: torch.dtype) -> None:
    assert UNIT_ROUNDOFF[storage] == torch.finfo(storage).eps / 2
    assert LEAST_SUBNORMAL[storage] == torch.finfo(storage).smallest_normal * torch.finfo(storage).eps


@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype in CASES if op not in LOOPS and DTYPES[dtype].itemsize == 2])
def test_two_units_in_the_last_place_of_16_bits_are_seen_in_ops_without_a_sum(op: str, dtype: str) -> None:
    known = truth(small_workload(OPS[op], dtype), "normal")
    storage = known.inputs[0].dtype
    rounded = known.reference.to(storage)
    assert not judge((rounded.double() * (1 + 4 * UNIT_ROUNDOFF[storage])).to(storage), known.reference, known.bound).ok


@each_case
def test_inputs_are_fresh_by_seed_and_the_same_by_seed(op: str, dtype: str) -> None:
    spec = OPS[op]
    workload = small_workload(spec, dtype)
    for make in (spec.make_inputs, spec.hard_inputs):
        first, again, other = (make(workload, DEVICE, seed) for seed in (1, 1, 2))
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
        assert not any(torch.equal(x, y) for x, y in zip(first, other, strict=True))
        assert all(x.isfinite().all() and x.dtype == workload.torch_dtype and x.is_contiguous() for x in first)
        with workload.precision():
            assert spec.workload_of(*first) == workload
    assert not tf32_allowed()


@each_op
def test_workloads_are_written_and_read_back(op: str) -> None:
    spec = OPS[op]
    for named in spec.workloads.values():
        for workload in named:
            assert Workload.parse(str(workload)) == workload
            assert workload.op == op
            assert workload.dtype in spec.dtypes
    for scalar in (Workload(op, (), "float32"), Workload(op, (0, 3), "float16")):
        assert Workload.parse(str(scalar)) == scalar


@pytest.mark.parametrize(
    "text", ["", "softmax", "softmax/4x4", "softmax/4xq/float32", "softmax/4x4/float8", "a/b/c/d", "softmax/-1x4/float32"]
)
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no workload: write op/shape/dtype|unknown dtype|negative size"):
        Workload.parse(text)


@each_op
def test_cost_counts_each_input_and_output_once(op: str) -> None:
    spec = OPS[op]
    for dtype in spec.dtypes:
        workload = small_workload(spec, dtype)
        known = truth(workload, "normal")
        cost = spec.cost(workload)
        assert cost.read_bytes == sum(x.numel() * x.element_size() for x in known.inputs)
        assert cost.write_bytes == known.reference.numel() * workload.torch_dtype.itemsize
        assert cost.bytes == cost.read_bytes + cost.write_bytes
        assert cost.flops >= max(known.reference.numel(), *(x.numel() for x in known.inputs))
        assert cost.unit in {"fma", f"tensor_{dtype}"}


@each_op
def test_nothing_in_nothing_out(op: str) -> None:
    spec = OPS[op]
    for dtype in spec.dtypes:
        shape = (0, 3, 2) if 3 in ranks(spec) else (0, 3)
        known = truth_of(Workload(op, shape, dtype), *spec.make_inputs(Workload(op, shape, dtype), DEVICE, 0))
        assert known.reference.numel() == known.bound.numel()
        if known.reference.numel():
            assert judge(torch.full_like(known.reference, spec.value_of_nothing), known.reference, known.bound).ok


@each_op
def test_under_no_grad_a_parameter_is_an_input_like_any_other(op: str) -> None:
    spec = OPS[op]
    with torch.no_grad():
        spec.check_inputs(*(x.requires_grad_() for x in good_inputs(spec)))


@pytest.mark.parametrize("op", OURS)
def test_every_op_has_the_sets_that_run_offers(op: str) -> None:
    spec = OPS[op]
    assert {*SETS} - {*spec.workloads} == {"bars"}, "which are of all ops together"
    for name, workloads in spec.workloads.items():
        assert all(w.op == op and w.dtype in spec.dtypes for w in workloads), name
        assert len({*workloads}) == len(workloads) > 0, "each once"


@each_op
def test_layers_are_of_one_token_and_of_many_and_fit_any_gpu(op: str) -> None:
    layers = OPS[op].workloads["layers"]
    assert {w.dtype for w in layers} == {"bfloat16"}
    assert {w.shape[0] for w in layers} >= {1, 2048}, "one that is generated, and a prompt"
    assert max(OPS[op].cost(w).bytes for w in layers) < 2 * 2**30


@pytest.mark.parametrize("op", OURS)
def test_random_shapes_are_the_published_ones_half_of_them_off_16_bytes(op: str) -> None:
    found = OPS[op].workloads["random"]
    assert len(found) == 120
    off = [any(side * w.torch_dtype.itemsize % 16 for side in w.shape[1:]) for w in found]
    assert off == [False, True] * 60
    assert max(OPS[op].cost(w).bytes for w in found) < 2**31
    first = {"square": "25x568", "mean": "9x36", "gelu": "9560x6936", "softmax": "184300x476", "matmul": "65x376x14172"}
    assert str(found[0]) == f"{op}/{first[op]}/float32"
