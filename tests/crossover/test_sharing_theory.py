"""The bound, and that the scheduler's own policies reach it on a virtual clock."""

from itertools import pairwise
from random import Random

import pytest
from closed_forms import gain_with_overlap, gain_without_overlap
from hypothesis import given, settings
from hypothesis import strategies as st
from steady_period import steady_period_s

from crossover.errors import Refused
from crossover.policies import Exclusive, Extent, Turns
from crossover.simulator import Bucket, Rules, StepShape, simulate
from crossover.theory import (
    JobCost,
    Limit,
    bound,
    predicted,
)

# Whole numbers keep the virtual clock exact.
COMPUTE = st.integers(1, 100)
LINK = st.integers(0, 100)
PLAIN = st.builds(StepShape.without_overlap, COMPUTE, LINK)


@st.composite
def overlapped(draw: st.DrawFn) -> StepShape:
    compute = draw(COMPUTE)
    ready = sorted(draw(st.lists(st.integers(0, compute), min_size=1, max_size=5)))
    return StepShape(compute, tuple(Bucket(at, draw(st.integers(0, 40))) for at in ready))


SHAPES = st.one_of(
    st.lists(PLAIN, min_size=1, max_size=4),
    st.lists(overlapped(), min_size=1, max_size=4),
)


@given(shapes=SHAPES, lead=st.sampled_from([0, 1]), num_hosts=st.integers(1, 3))
def test_a_token_reaches_the_bound(shapes: list[StepShape], lead: int, num_hosts: int) -> None:
    rules = Rules(Turns(lead), orders=(tuple(range(len(shapes))),) * num_hosts)
    period = steady_period_s(shapes, rules, num_rounds=120)
    best = bound([shape.cost() for shape in shapes]).period_s
    # Where two limits nearly agree the start-up may outlast 60 rounds; it is worth a step of each job at most.
    slack = sum(shape.cost().solo_s for shape in shapes) / 60
    assert best - slack <= period <= best + slack


@settings(max_examples=40, deadline=None)
@given(shapes=SHAPES)
def test_no_order_of_turns_beats_the_bound_over_a_whole_run(shapes: list[StepShape]) -> None:
    run = simulate(shapes, [20] * len(shapes))
    best = bound([shape.cost() for shape in shapes]).period_s
    assert 19 * best < run.makespan_s <= 20 * best + sum(shape.cost().solo_s for shape in shapes)


@settings(max_examples=40, deadline=None)
@given(shapes=SHAPES)
def test_holding_the_token_through_communication_gains_nothing(shapes: list[StepShape]) -> None:
    period = steady_period_s(shapes, Rules(extent=Extent.MESSAGES), num_rounds=40)
    assert period == sum(shape.cost().solo_s for shape in shapes)


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, num_rounds=st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_exclusive_takes_the_sum_of_the_solo_runs(shapes: list[StepShape], num_rounds: list[int]) -> None:
    rounds = num_rounds[: len(shapes)]
    run = simulate(shapes, rounds, Rules(Exclusive()))
    assert run.makespan_s == sum(n * shape.cost().solo_s for n, shape in zip(rounds, shapes, strict=True))


@settings(max_examples=40, deadline=None)
@given(shapes=SHAPES, num_hosts=st.integers(1, 3), random=st.randoms(use_true_random=False))
def test_one_job_holds_a_device_and_all_hosts_keep_one_order(
    shapes: list[StepShape], num_hosts: int, random: Random
) -> None:
    rules = Rules(orders=(tuple(range(len(shapes))),) * num_hosts, stretch=lambda *_: random.uniform(0.5, 2))
    turns = simulate(shapes, [5] * len(shapes), rules).turns
    for host in range(num_hosts):
        mine = [turn for turn in turns if turn.host == host]
        assert all(one.end_s <= after.start_s for one, after in pairwise(mine))
        assert [turn.job for turn in mine] == list(range(len(shapes))) * 5


@given(compute=st.floats(1e-3, 1e3), ratio=st.floats(0.05, 4))
def test_two_identical_jobs_gain_one_plus_rho_and_then_one_plus_its_inverse(compute: float, ratio: float) -> None:
    cost = JobCost(compute, ratio * compute, compute + ratio * compute)
    expected = 1 + ratio if ratio <= 1 else 1 + 1 / ratio
    assert bound([cost, cost]).gain == pytest.approx(expected)


@given(shapes=SHAPES)
def test_a_gain_lies_between_one_and_two(shapes: list[StepShape]) -> None:
    assert 1 <= bound([shape.cost() for shape in shapes]).gain <= 2


def test_jobs_that_mostly_wait_for_neither_resource_gain_more_than_two() -> None:
    assert bound([JobCost(0.02, 0.02, 1)] * 4).gain == 4


def test_the_bound_names_what_limits() -> None:
    assert bound([JobCost(3, 1, 4), JobCost(3, 1, 4)]).limiting is Limit.COMPUTE
    assert bound([JobCost(1, 3, 4), JobCost(1, 3, 4)]).limiting is Limit.COMMUNICATION
    assert bound([JobCost(4, 6, 10), JobCost(1, 1, 2)]).limiting is Limit.JOB


def test_a_compute_bound_and_a_communication_bound_job_gain_most() -> None:
    costs = [JobCost(90, 10, 100), JobCost(10, 90, 100)]
    assert bound(costs).gain == 2


def test_a_short_run_shows_the_pipeline_filling() -> None:
    shapes = [StepShape.without_overlap(100, 100)] * 2
    assert simulate(shapes, [8, 8]).makespan_s == 1700  # of 3200 one after the other: 1.88, and 2.00 for ever


def test_the_tail_of_the_longer_job_runs_alone() -> None:
    shapes = [StepShape.without_overlap(100, 100)] * 2
    assert simulate(shapes, [8, 4]).makespan_s == simulate(shapes[:1], [8]).makespan_s


@pytest.mark.parametrize("times", [(-1, 0, 1), (0, 0, 0), (1, float("nan"), 1)])
def test_impossible_costs_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(Refused, match="measure it alone first"):
        JobCost(*times)


def test_shapes_and_runs_that_cannot_be_are_refused() -> None:
    shapes = [StepShape.without_overlap(1, 1)] * 2
    with pytest.raises(Refused, match="at least 1 round"):
        simulate(shapes, [1])
    with pytest.raises(Refused, match="become ready in order"):
        StepShape(1, (Bucket(2, 1),))
    with pytest.raises(Refused, match="at least one job"):
        bound([])


@given(ratio=st.floats(0.05, 4), first=st.floats(0, 1))
def test_overlap_leaves_at_most_the_time_before_the_first_bucket_to_gain(ratio: float, first: float) -> None:
    gain = gain_with_overlap(ratio, first)
    assert 1 <= gain <= 1 + first / max(1, ratio) + 1e-12
    assert gain <= gain_without_overlap(ratio) + 1e-12
    assert gain_with_overlap(1, first) == pytest.approx(1 + first)


def test_handover_and_interference_lower_what_is_predicted() -> None:
    costs = [JobCost(100, 50, 150)] * 3
    assert predicted(costs) == bound(costs)
    assert predicted(costs, handover_s=1, interference=0.25).period_s == pytest.approx(300 + 3 + 150 * 0.2)
    bound_by_link = [JobCost(10, 100, 110)] * 2
    assert predicted(bound_by_link, handover_s=1, interference=0.25) == bound(bound_by_link)


def test_costs_that_cannot_be_are_refused() -> None:
    with pytest.raises(Refused, match="handover_s and interference"):
        predicted([JobCost(1, 1, 2)], handover_s=-1)
