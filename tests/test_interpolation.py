"""What is said of shapes that nobody measured, and how far it can be trusted."""

from __future__ import annotations

import numpy as np
import pytest
from recorded_runs import H200, core_run, store_of

from opwise.choosing.interpolate import Interpolant, best_case
from opwise.choosing.query import choose_from
from opwise.ops import Workload


def test_what_was_measured_is_given_back_exactly_and_nothing_lies_outside_of_it() -> None:
    known = [((2**a, 2**b), 2.0 + a * b % 7) for a in range(4, 12, 2) for b in range(4, 12, 2)]
    field = Interpolant(known)
    for sizes, value in known:
        assert field.at(sizes)[0] == pytest.approx(value)
    rng = np.random.default_rng(5)
    values = [field.at(tuple(2 ** rng.integers(0, 16, 2))) for _ in range(200)]
    assert min(v for _, v in known) <= min(v for v, _, _ in values)
    assert max(v for v, _, _ in values) <= max(v for _, v in known)
    assert all(low <= v <= high for v, low, high in values)


def test_the_trend_carries_the_size() -> None:
    """Twice the bytes, twice the time: with the trend divided out such a field is flat, and exact far outside of what was measured."""
    trend = best_case([(10.0, 1e6, 0.0), (20.0, 2e6, 0.0)], lambda sizes: (float(sizes[0]), 0.0))
    field = Interpolant([((10**6,), 30.0), ((2 * 10**6,), 60.0)], trend)
    value, low, high = field.at((10**8,))
    assert value == pytest.approx(3000.0)
    assert low == pytest.approx(high)


def test_neighbours_of_the_same_alignment_count_for_more() -> None:
    field = Interpolant([((1000, 1000), 1.0), ((1000, 1001), 3.0)])
    assert field.at((1000, 1002 + 6))[0] < 1.1
    assert field.at((1000, 1003))[0] > 2.8
    assert field.at((1001, 1008))[0] < 1.1, "the number of rows aligns nothing"


def test_four_floats_are_sixteen_bytes() -> None:
    known = [((1000, 1000), 1.0), ((1000, 1001), 3.0)]
    assert Interpolant(known, granule=4).at((1000, 1004))[0] < 1.1
    assert Interpolant(known, granule=8).at((1000, 1004))[0] > 2.8


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_inside_and_outside_of_the_hull(dimensions: int) -> None:
    rng = np.random.default_rng(dimensions)
    known = [tuple(int(2**x) for x in rng.uniform(4, 12, dimensions)) for _ in range(12)]
    field = Interpolant([(sizes, 1.0) for sizes in known])
    logs = np.log2(known)
    for _ in range(40):
        mixed = rng.dirichlet(np.ones(len(known))) @ logs
        assert field.holds(tuple(round(2**x) for x in mixed))
    beyond = logs.max(axis=0) + 0.5
    assert not field.holds(tuple(round(2**x) for x in beyond))
    for axis in range(dimensions):
        off = logs.mean(axis=0)
        off[axis] = logs[:, axis].min() - 0.5
        assert not field.holds(tuple(round(2**x) for x in off))


@pytest.mark.parametrize(("shape", "basis"), [((4096, 4096), "measured"), ((3000, 5000), "interpolated"), ((1, 10**7), "extrapolated")])
def test_a_choice_says_where_its_figures_come_from(shape: tuple[int, ...], basis: str) -> None:
    choice = choose_from(store_of(*core_run()), Workload("softmax", shape, "float16"), H200)
    assert {s.basis for s in choice.ranking} == {basis}
    assert basis == "measured" or basis in choice.why


def test_the_same_number_of_elements_is_the_same_measured_size() -> None:
    choice = choose_from(store_of(*core_run()), Workload("gelu", (64, 256, 1024), "float16"), H200)
    assert {s.basis for s in choice.ranking} == {"measured"}
