from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_jobs import costs

from crossover import JobCost, Refused
from crossover.planning import TrafficPattern, beats_for, best_shifts, shifts_of
from crossover.planning.cassini import whole_periods
from crossover.planning.profiles import shape_of
from crossover.simulator import StepShape, forecast

HALF = StepShape.without_overlap(0.1, 0.1)


def test_two_jobs_half_on_and_half_off_are_shifted_by_half() -> None:
    found = best_shifts([TrafficPattern(1.0, ((0.5, 0.5),))] * 2)
    assert found.link_score == pytest.approx(1)
    assert [beat.shift_s for beat in found.beats] == pytest.approx([0, 0.5])
    assert [beat.period_s for beat in found.beats] == pytest.approx([1, 1])


def test_jobs_in_phase_would_score_their_mean_excess() -> None:
    """Two that always want the whole link want one link too much, all the time."""
    assert best_shifts([TrafficPattern(1.0, ((0.0, 1.0),))] * 2).link_score == pytest.approx(0)
    assert best_shifts([TrafficPattern(1.0, ((0.0, 0.75),))] * 2).link_score == pytest.approx(0.5)


@pytest.mark.parametrize("num_jobs", [3, 4, 5])
def test_several_jobs_take_their_turns_around_the_circle(num_jobs: int) -> None:
    found = best_shifts([TrafficPattern(0.3, ((0.0, 0.3 / num_jobs),))] * num_jobs)
    assert found.link_score == pytest.approx(1, abs=0.02)
    assert len({round(beat.shift_s, 3) for beat in found.beats}) == num_jobs


def test_a_job_twice_as_long_finds_the_gaps_of_a_short_one() -> None:
    found = best_shifts([TrafficPattern(0.1, ((0.0, 0.05),)), TrafficPattern(0.2, ((0.0, 0.05),))])
    assert found.link_score == pytest.approx(1)
    assert 0.05 <= found.beats[1].shift_s % 0.1 <= 0.05 + 1e-9


def test_shifted_jobs_gain_what_theory_allows() -> None:
    found = shifts_of([HALF, HALF])
    assert (found.link_score, found.device_score) == pytest.approx((1, 1))
    assert [beat.period_s for beat in found.beats] == pytest.approx([0.2, 0.2])
    assert forecast([HALF, HALF], "cassini", beats=found.beats).gain == pytest.approx(2, rel=0.01)


def test_jobs_that_do_not_fit_at_their_own_periods_are_all_stretched() -> None:
    busy = StepShape.without_overlap(0.3, 0.1)
    found = shifts_of([busy, busy])
    assert found.beats[0].period_s == pytest.approx(0.6)
    assert found.device_score == pytest.approx(1)


def test_jobs_whose_own_periods_would_keep_meeting_get_one_period() -> None:
    """0.6 s and 0.74 s have no short common circle; at T* = 0.74 s, or a little more, both go round together."""
    shapes = [StepShape.without_overlap(0.25, 0.35), StepShape.without_overlap(0.4, 0.34)]
    found = shifts_of(shapes)
    assert len({beat.period_s for beat in found.beats}) == 1
    assert 0.74 - 1e-9 <= found.beats[0].period_s <= 0.74 * 1.1 + 1e-9
    assert min(found.link_score, found.device_score) > 0.98
    assert forecast(shapes, "cassini", beats=found.beats).gain > forecast(shapes, "naive").gain


def test_periods_are_rounded_to_a_common_circle_and_never_shortened() -> None:
    assert whole_periods([0.1, 0.2])[0] == (1, 2)
    assert whole_periods([0.2, 0.3])[0] == (2, 3)
    ticks, tick_s = whole_periods([0.1, 0.3171, 1.771])
    assert all(count * tick_s >= period_s for count, period_s in zip(ticks, (0.1, 0.3171, 1.771), strict=True))
    with pytest.raises(Refused, match="no common circle"):
        whole_periods([0.001, 1.0])


@pytest.mark.parametrize("arcs", [((0.5, 0.6),), ((-0.1, 0.2),), ((0.1, -0.2),)])
def test_arcs_outside_their_circle_are_refused(arcs: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(Refused, match="within its period"):
        TrafficPattern(1.0, arcs)


@given(st.lists(costs(), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_shifts_lie_in_their_periods_and_scores_are_at_most_one(jobs: list[JobCost]) -> None:
    found = shifts_of([shape_of(cost) for cost in jobs])
    assert max(found.link_score, found.device_score) <= 1 + 1e-9
    for beat, cost in zip(found.beats, jobs, strict=True):
        assert 0 <= beat.shift_s < beat.period_s
        assert beat.period_s >= cost.solo_s * (1 - 1e-9)


@given(st.lists(st.tuples(st.floats(0.05, 0.5), st.floats(0, 0.5)), min_size=2, max_size=3))
@settings(max_examples=30, deadline=None)
def test_the_best_turns_are_no_worse_than_none(spans: list[tuple[float, float]]) -> None:
    patterns = [TrafficPattern(1.0, ((start_s, length_s),)) for length_s, start_s in spans]
    points = [index / 1000 + 0.0005 for index in range(1000)]
    demand = [sum(start_s <= at_s < start_s + length_s for length_s, start_s in spans) for at_s in points]
    unshifted = 1 - sum(max(0, wanted - 1) for wanted in demand) / len(demand)
    assert best_shifts(patterns).link_score >= unshifted - 0.005  # the sum above is off by its 1000 points


def test_costs_alone_suffice_for_beats() -> None:
    assert [beat.shift_s for beat in beats_for([JobCost(0.1, 0.1, 0.2)] * 2)] == pytest.approx([0, 0.1])
