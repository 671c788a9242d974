"""Forecasts of the steady state, against the closed forms."""

import pytest
from closed_forms import gain_with_overlap, gain_without_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover.errors import Refused
from crossover.policies import Beat, Sharing
from crossover.simulator import Arrival, Forecast, LinkSharing, StepShape, forecast

EQUAL = StepShape.without_overlap(100, 100, forward_s=40)
EXTRA = {Sharing.CASSINI: {"beats": (Beat(0, 200), Beat(100, 200))}, Sharing.MURI: {"groups": ((0, 1),)}}


@pytest.mark.parametrize("sharing", Sharing)
def test_every_sharing_has_a_forecast_between_one_and_two(sharing: Sharing) -> None:
    seen = forecast([EQUAL] * 2, sharing, num_rounds=60, **EXTRA.get(sharing, {}))
    assert 1 - 1e-9 <= seen.gain <= 2 + 1e-9
    assert sum(1 / slowdown for slowdown in seen.slowdowns) == pytest.approx(seen.gain)
    assert 0 < seen.device_busy <= 1
    assert 0 < seen.link_busy <= 1


def test_turns_fill_the_link_and_time_slicing_gains_nothing() -> None:
    assert forecast([EQUAL] * 2, "crossover") == Forecast(200, 2, (1, 1), 1, 1)
    for sharing in ("hold", "exclusive", "naive"):
        assert forecast([EQUAL] * 2, sharing).gain == 1
    assert forecast([EQUAL] * 2, "hold").slowdowns == (2, 2)


@given(ratio=st.floats(0.05, 4))
@settings(max_examples=25, deadline=None)
def test_identical_jobs_follow_the_sweep_without_overlap(ratio: float) -> None:
    shapes = [StepShape.without_overlap(100, 100 * ratio)] * 2
    assert forecast(shapes, "crossover", num_rounds=60).gain == pytest.approx(gain_without_overlap(ratio), rel=1e-6)


@given(ratio=st.floats(0.05, 4), num_jobs=st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_two_jobs_suffice_where_jobs_are_identical(ratio: float, num_jobs: int) -> None:
    shape = StepShape.without_overlap(100, 100 * ratio)
    two, more = (forecast([shape] * count, "crossover", num_rounds=30).gain for count in (2, num_jobs))
    assert more == pytest.approx(two, rel=1e-6)


@given(ratio=st.floats(0.05, 4))
@settings(max_examples=15, deadline=None)
def test_identical_jobs_follow_the_sweep_with_overlap(ratio: float) -> None:
    shapes = [StepShape.even(100, 100 * ratio, forward_s=33, num_buckets=25)] * 2
    # Buckets stand for an even flow: the last one travels after backward, the first is ready 1/25 of backward late.
    expected = gain_with_overlap(ratio, 0.33)
    assert forecast(shapes, "crossover", num_rounds=12).gain == pytest.approx(expected, rel=0.06)


def test_a_pair_of_opposites_gains_everything() -> None:
    shapes = [StepShape.without_overlap(90, 10), StepShape.without_overlap(10, 90)]
    assert forecast(shapes, "crossover").gain == pytest.approx(2)


def test_weights_change_rates_and_the_gain_counts_each_job_by_its_own_step() -> None:
    seen = forecast([EQUAL] * 2, "weighted", shares=(2, 1))
    assert seen.period_s == pytest.approx(400)
    assert seen.slowdowns == pytest.approx((1, 2))
    assert seen.gain == pytest.approx(1.5)


@given(shares=st.tuples(st.integers(1, 4), st.integers(1, 4)))
@settings(max_examples=15, deadline=None)
def test_rates_keep_the_ratio_of_the_shares(shares: tuple[int, int]) -> None:
    first, second = forecast([EQUAL] * 2, "weighted", shares=shares, num_rounds=60).slowdowns
    assert second / first == pytest.approx(shares[0] / shares[1])


def test_groups_follow_each_other_with_one_step_of_each_job() -> None:
    seen = forecast([EQUAL] * 4, "muri", groups=((0, 1), (2, 3)))
    assert seen.period_s == pytest.approx(400)
    assert seen.gain == pytest.approx(2)
    assert seen.slowdowns == pytest.approx((2, 2, 2, 2))
    rest = forecast([EQUAL] * 3, "muri", groups=((0, 1),))
    assert rest.gain == pytest.approx(1.5)


def test_phases_decide_what_naive_sharing_gains() -> None:
    gains = [forecast([EQUAL] * 2, "naive", starts_s=(0, phase)).gain for phase in (0, 50, 100)]
    assert gains == pytest.approx([1, 4 / 3, 2])


def test_handover_costs_only_where_turns_are_taken() -> None:
    assert forecast([EQUAL] * 2, "crossover", handover_s=5).period_s == pytest.approx(210)
    assert forecast([EQUAL] * 2, "naive", handover_s=5).period_s == pytest.approx(400)


def test_interference_slows_the_job_alone_too() -> None:
    shape = StepShape.even(100, 80, forward_s=20, num_buckets=8)
    calm, rough = (forecast([shape] * 2, "crossover", interference=sigma, num_rounds=40) for sigma in (0, 0.25))
    assert rough.period_s == pytest.approx(200 + 160 * 0.25 / 1.25)
    assert rough.gain < calm.gain


def test_jitter_on_many_hosts_slows_all() -> None:
    def stretch(host: int, job: int, round_: int) -> float:
        return 1 + 0.1 * ((host * 7 + job * 3 + round_) % 5)

    shapes = [StepShape.without_overlap(100, 50)] * 2
    still, jittery = (
        forecast(shapes, "crossover", num_hosts=4, num_rounds=60, stretch=each).period_s for each in (None, stretch)
    )
    assert still * 1.15 < jittery < still * 1.4


def test_a_fair_link_is_an_option() -> None:
    shapes = [StepShape.without_overlap(40, 100), StepShape.without_overlap(90, 30)]
    fifo, fair = (
        forecast(shapes, "crossover", link=link).period_s for link in LinkSharing if link is not LinkSharing.ARRIVAL
    )
    assert fifo == pytest.approx(140)
    assert fair > fifo


def test_jobs_that_are_alike_are_slowed_alike() -> None:
    first, *others = forecast([EQUAL] * 3, "crossover").slowdowns
    assert others == pytest.approx([first] * 2)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(Refused, match="beats of all 2 jobs"):
        forecast([EQUAL] * 2, "cassini")
    with pytest.raises(Refused, match="starts_s of all 2 jobs"):
        forecast([EQUAL] * 2, "naive", starts_s=(0,))
    with pytest.raises(Refused, match="once at most"):
        forecast([EQUAL] * 2, "muri", groups=((0, 0),))
    with pytest.raises(ValueError, match="quantum"):
        forecast([EQUAL] * 2, "quantum")
    assert Arrival().awaited
