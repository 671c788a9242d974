import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.stats import (
    LEVEL,
    StatsError,
    computed,
    exactly,
    fewest_for,
    median_interval,
    num_left_out,
    paired_ratio,
    pairs_interval,
    quantile_interval,
    ratio_by_repeat,
    unpaired_ratio,
)

positive = st.floats(1e-3, 1e3)
samples = st.lists(positive, min_size=2, max_size=12)


@settings(max_examples=40, deadline=None)
@given(samples)
def test_the_interval_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert min(values) <= interval.low <= interval.median <= interval.high <= max(values)
    assert interval.n == len(values)


@settings(max_examples=40, deadline=None)
@given(samples, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_the_values_scales_the_interval(values: list[float], scale: float) -> None:
    plain = median_interval(values)
    scaled = median_interval([scale * value for value in values])
    # Powers of two scale floating-point numbers exactly.
    assert (scaled.low, scaled.median, scaled.high) == (scale * plain.low, scale * plain.median, scale * plain.high)


@settings(max_examples=40, deadline=None)
@given(samples)
def test_a_sample_over_itself_is_exactly_one(values: list[float]) -> None:
    assert paired_ratio(values, values) == exactly(1.0, len(values))


def test_ratios_join_on_the_repeat_whatever_the_order_and_what_never_ended_is_0_or_infinite() -> None:
    found = ratio_by_repeat({3: 6.0, 1: 2.0, 0: 9.0}, {1: 1.0, 2: 5.0, 3: 3.0})
    assert found is not None
    assert found.sample == (2.0, 2.0)
    assert ratio_by_repeat({0: 1.0}, {1: 1.0}) is None
    never = ratio_by_repeat({0: 1.0, 1: math.inf}, {0: math.inf, 1: 1.0})
    assert never is not None
    assert never.sample == (0.0, math.inf)


def test_pairing_cancels_drift_that_unpaired_division_keeps() -> None:
    drift = np.linspace(1.0, 3.0, 9)
    a, b = (1.1 * drift).tolist(), drift.tolist()
    paired, unpaired = paired_ratio(a, b), unpaired_ratio(a, b)
    assert paired.high - paired.low < 1e-9
    assert unpaired.high - unpaired.low > 0.1


@pytest.mark.parametrize("level", [LEVEL, 1 - 0.05 / 2, 1 - 0.05 / 14])
@pytest.mark.parametrize("n", range(10, 41, 3))
def test_a_median_lies_outside_in_no_more_cases_than_said_and_one_repeat_less_would_not_do(
    n: int, level: float
) -> None:
    """A repeat lies above the median as often as a coin shows heads."""

    def outside(left_out: int) -> float:
        return 2 * sum(math.comb(n, heads) for heads in range(left_out + 1)) / 2**n

    left_out = num_left_out(n, level)
    assert outside(left_out) <= 1 - level < outside(left_out + 1)


def test_six_to_eight_repeats_reach_from_the_lowest_to_the_highest() -> None:
    assert [num_left_out(n, LEVEL) for n in (2, 5, 6, 7, 8, 9, 12, 15, 17)] == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    found = median_interval([5.0, 1.0, 3.0, 2.0, 4.0, 9.0, 7.0, 8.0, 6.0])
    assert (found.low, found.median, found.high) == (2.0, 5.0, 8.0)


def test_an_interval_depends_on_its_values_and_on_nothing_that_was_asked_before() -> None:
    values = [1.0, 1.3, 0.9, 1.1, 1.2, 1.25, 0.95]
    first = median_interval(values)
    median_interval([*values, 2.0])
    assert median_interval(values) == first


def test_one_repeat_has_unknown_bounds_rather_than_none_at_all() -> None:
    interval = median_interval([2.0])
    assert interval.median == 2.0
    assert not interval.has_bounds
    assert not interval.covers(LEVEL)


def test_a_run_that_never_converged_counts_as_infinite() -> None:
    interval = median_interval([1.0, 2.0, math.inf])
    assert interval.median == 2.0
    assert interval.high == math.inf
    assert median_interval([math.inf] * 3).low == math.inf


def test_few_repeats_are_a_range_and_exact_values_never_are() -> None:
    assert median_interval([1.0] * 5).is_range
    assert not median_interval([1.0] * 6).is_range
    assert not exactly(1.0, 1).is_range


def test_a_higher_level_needs_more_repeats_and_widens_the_interval() -> None:
    found = median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9])
    assert [fewest_for(level) for level in (0.95, 1 - 0.05 / 2, 1 - 0.05 / 14)] == [6, 7, 10]
    assert found.covers(1 - 0.05 / 14)
    assert not found.covers(1 - 0.05 / 100)
    assert found.at(1 - 0.05 / 14).low < found.low
    assert found.times(2.0).at(1 - 0.05 / 14).low == 2 * found.at(1 - 0.05 / 14).low
    assert found.over(1.0).low == 1 / found.high
    assert found.over(1.0).at(0.99).high == 1 / found.at(0.99).low


def test_an_interval_without_its_repeats_has_one_level() -> None:
    ratio = unpaired_ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert ratio.at(LEVEL) == ratio
    with pytest.raises(StatsError, match="one level"):
        ratio.at(0.99)


def test_what_a_virtual_clock_repeats_is_exact_and_what_it_varies_is_not() -> None:
    assert computed(median_interval([0.74])) == exactly(0.74, 1)
    assert computed(median_interval([0.74, 0.74])) == exactly(0.74, 2)
    varied = median_interval([0.74, 0.75])
    assert computed(varied) is varied


def test_a_mean_over_pairs_is_resampled_by_what_they_are_pairs_of() -> None:
    pairs = {(i, j): 1.0 if i < 4 else -1.0 for i in range(5) for j in range(i + 1, 6)}
    found = pairs_interval(pairs, 6)
    assert found.median == pytest.approx(13 / 15)
    assert found.low < found.median <= found.high == 1.0
    assert quantile_interval([float(n) for n in range(101)], 0.95).median == 95.0


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_values_without_a_median_are_refused(values: list[float]) -> None:
    with pytest.raises(StatsError):
        median_interval(values)


def test_ratios_refuse_unequal_pairs_and_denominators_of_zero() -> None:
    with pytest.raises(StatsError, match="2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])
    with pytest.raises(StatsError, match="positive"):
        unpaired_ratio([1.0], [0.0])
