"""The statistics against brute force, and the rules made of them at their edges."""

from __future__ import annotations

import numpy as np
import pytest

from opwise.measure.stats import median, median_interval, paired, settled, tied


@pytest.mark.parametrize("n", [2, 5, 10, 31, 100, 301])
def test_interval_is_the_bootstraps(n: int) -> None:
    """Against 20000 real resamples: the ends differ by less than the bootstrap's own error."""
    rng = np.random.default_rng(n)
    samples = 100.0 + rng.gamma(2.0, 1.0, n)
    medians = np.median(rng.choice(samples, (20_000, n)), axis=1)
    expected = np.quantile(medians, (0.025, 0.975))
    middle, low, high = median_interval(list(samples))
    spread = np.std(medians) + 1e-9
    assert middle == pytest.approx(np.median(samples))
    assert abs(low - expected[0]) < 0.25 * spread
    assert abs(high - expected[1]) < 0.25 * spread


def test_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        _, low, high = median_interval(list(rng.exponential(1.0, 61)))
        hits += low <= np.log(2.0) <= high
    assert 0.91 <= hits / 400 <= 0.99


def test_interval_is_repeatable_and_holds_the_median() -> None:
    samples = [3.0, 1.0, 2.0, 8.0]
    assert median_interval(samples) == median_interval(samples)
    middle, low, high = median_interval(samples)
    assert (middle, low, high) == (2.5, pytest.approx(low), pytest.approx(high))
    assert 1.0 <= low <= middle <= high <= 8.0


def test_one_sample_and_equal_samples_have_no_width() -> None:
    assert median_interval([4.0]) == (4.0, 4.0, 4.0)
    assert median_interval([4.0] * 30) == (4.0, 4.0, 4.0)


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_outliers_are_kept_and_do_not_move_the_median() -> None:
    assert median([1.0] * 30 + [1000.0] * 5) == 1.0


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((100.0, 99.6, 100.4), True), ((100.0, 99.4, 100.1), False), ((100.0, 99.9, 100.6), False), ((float("inf"), 1.0, 2.0), False)],
)
def test_settled_needs_both_ends_within_half_a_percent(interval: tuple[float, float, float], expected: bool) -> None:
    assert settled(*interval) is expected


def test_paired_ratio_cancels_drift() -> None:
    drift = [1.0 + 0.02 * i for i in range(20)]
    ratio, low, high = paired([3.0 * d for d in drift], [2.0 * d for d in drift])
    assert (ratio, low, high) == (pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5))


def test_paired_ratio_needs_as_many_rounds() -> None:
    with pytest.raises(ValueError, match="given 2 and 3 rounds"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="given 0 and 0 rounds"):
        paired([], [])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [((1.005, 1.004, 1.006), True), ((1.05, 0.99, 1.11), True), ((1.05, 1.03, 1.07), False), ((0.9, 0.88, 0.92), False)],
)
def test_ties(ratio: tuple[float, float, float], expected: bool) -> None:
    assert tied(*ratio) is expected


def test_an_interval_of_one_tick_is_settled() -> None:
    assert not settled(4.16, 4.16, 4.192)
    assert settled(4.16, 4.16, 4.192, tick=0.032)
    assert not settled(4.16, 4.16, 4.224, tick=0.032)
