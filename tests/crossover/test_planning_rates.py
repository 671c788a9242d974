from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_jobs import costs

from crossover import JobCost, Refused, bound
from crossover.planning import fair_rates, shares_for, whole_shares
from crossover.planning.rates import cycle_speeds, turn_costs

SLACK = 1 + 1e-6  # of the solver
jobs = st.lists(costs(), min_size=1, max_size=5)


def test_identical_jobs_without_overlap_keep_their_speed_at_equal_parts() -> None:
    rates = fair_rates([JobCost(1, 1, 2)] * 2)
    assert rates.speeds == pytest.approx((1, 1))
    assert rates.rates_hz == pytest.approx((0.5, 0.5))
    assert rates.is_fair


def test_a_short_job_beside_a_long_one_gets_its_half_by_more_turns() -> None:
    pair = [JobCost(1, 0, 1), JobCost(3, 0, 3)]
    assert fair_rates(pair).rates_hz == pytest.approx((1 / 2, 1 / 6))
    shares = whole_shares(pair)
    assert shares.turns == (3, 1)
    assert shares.speeds == pytest.approx((0.5, 0.5))
    assert shares.loss == pytest.approx(0, abs=1e-9)


def test_what_the_fair_parts_leave_goes_to_the_heavier_job() -> None:
    """Both want 0.8 of the device at full speed; 0.2 + 0.2 of it are left once each has its half."""
    pair = [JobCost(0.8, 0.5, 1), JobCost(0.8, 0.5, 1)]
    assert fair_rates(pair, (2, 1)).speeds == pytest.approx((0.75, 0.5))
    assert fair_rates(pair, (1, 2)).speeds == pytest.approx((0.5, 0.75))


def test_the_link_limits_as_the_device_does() -> None:
    assert fair_rates([JobCost(0.1, 1, 1)] * 2).speeds == pytest.approx((0.5, 0.5))


def test_where_hand_overs_eat_the_fair_parts_the_least_speed_is_as_great_as_can_be() -> None:
    rates = fair_rates([JobCost(1, 0, 1)] * 2, handover_s=0.5)
    assert not rates.is_fair
    assert rates.speeds == pytest.approx((1 / 3, 1 / 3), rel=1e-6)
    uneven = fair_rates([JobCost(1, 0, 1), JobCost(1, 0, 2)], handover_s=0.5)
    assert not uneven.is_fair or min(uneven.speeds) >= 0.5
    assert not whole_shares([JobCost(1, 0, 1)] * 2, handover_s=0.5).is_fair


def test_interference_costs_what_theory_says() -> None:
    assert turn_costs([JobCost(1, 0.5, 1.5)], 0.01, 0.25) == pytest.approx((1 + 0.01 + 0.5 * 0.2,))


@pytest.mark.parametrize("weights", [(1,), (1, 0), (1, -1), (1, float("inf")), (1, float("nan"))])
def test_weights_that_make_no_sense_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(Refused, match="weights"):
        fair_rates([JobCost(1, 1, 2)] * 2, weights)


@given(jobs, st.data())
@settings(max_examples=60, deadline=None)  # the first solution imports scipy
def test_rates_are_feasible_and_fair(some: list[JobCost], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(some), max_size=len(some)))
    rates = fair_rates(some, weights)
    assert rates.is_fair
    assert sum(rate * cost.compute_s for rate, cost in zip(rates.rates_hz, some, strict=True)) <= SLACK
    assert sum(rate * cost.communication_s for rate, cost in zip(rates.rates_hz, some, strict=True)) <= SLACK
    assert all(1 / len(some) / SLACK <= speed <= SLACK for speed in rates.speeds)


@given(jobs)
@settings(max_examples=60, deadline=None)
def test_rates_are_never_below_equal_turns_where_these_are_fair(some: list[JobCost]) -> None:
    equal = bound(some)
    if equal.period_s <= len(some) * min(cost.solo_s for cost in some):
        assert fair_rates(some).throughput >= equal.gain / SLACK
        assert whole_shares(some).throughput >= equal.gain / SLACK


@given(jobs)
@settings(max_examples=40, deadline=None)
def test_whole_shares_are_small_and_their_cycle_is_possible(some: list[JobCost]) -> None:
    shares = whole_shares(some)
    assert all(1 <= turns <= 8 for turns in shares.turns)
    assert shares.throughput <= fair_rates(some).throughput * SLACK or not shares.is_fair
    cycle_s = shares.turns[0] * some[0].solo_s / shares.speeds[0]
    assert cycle_s * SLACK >= max(
        sum(n * cost.compute_s for n, cost in zip(shares.turns, some, strict=True)),
        sum(n * cost.communication_s for n, cost in zip(shares.turns, some, strict=True)),
        max(n * cost.solo_s for n, cost in zip(shares.turns, some, strict=True)),
    )


def test_equal_shares_in_a_cycle_are_the_bound_of_theory() -> None:
    mixed = [JobCost(0.3, 0.1, 0.35), JobCost(0.1, 0.4, 0.45)]
    speeds = cycle_speeds(mixed, turn_costs(mixed), (1, 1))
    assert sum(speeds) == pytest.approx(bound(mixed).gain)


def test_shares_for_costs_are_measured_with_the_real_turns() -> None:
    """In strict turns the short job would wait for its own messages between two turns, which a forecast sees."""
    assert shares_for([JobCost(0.1, 0, 0.1), JobCost(0.3, 0, 0.3)]) == (3, 1)
    assert shares_for([JobCost(0.1, 0.1, 0.2)] * 2) == (1, 1)
