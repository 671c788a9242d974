"""Sharing on a virtual clock: devices and links shared at once, turns of every extent, arrivals and disturbances."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steady_period import steady_period_s

from crossover.errors import Refused
from crossover.policies import Beat, Exclusive, Extent, Grouped, Naive, SlotBarrier, TimeShifted, Turns
from crossover.simulator import (
    Arrival,
    Bucket,
    Deadlock,
    LinkSharing,
    Rules,
    StepShape,
    link_policy,
    simulate,
)
from crossover.simulator.fluid import Agenda, Fluid
from crossover.theory import bound

EQUAL = StepShape.without_overlap(100, 100, forward_s=40)


def random_shape(random: Random, *, overlaps: bool) -> StepShape:
    compute = random.randint(1, 100)
    if not overlaps:
        return StepShape.without_overlap(compute, random.randint(0, 100))
    ready = sorted(random.randint(0, compute) for _ in range(random.randint(1, 4)))
    return StepShape(compute, tuple(Bucket(at, random.randint(0, 40)) for at in ready))


def test_a_fluid_server_gives_each_work_its_part_and_reschedules_exactly() -> None:
    agenda = Agenda()
    server = Fluid(agenda)
    ends: dict[str, float] = {}
    agenda.plan(0, lambda: server.add([(30, lambda: ends.update(a=agenda.now_s))]))
    agenda.plan(
        10,
        lambda: server.add([(10, lambda: ends.update(half=agenda.now_s)), (30, lambda: ends.update(b=agenda.now_s))]),
    )
    agenda.plan(60, lambda: server.set_speed(0.5))
    while agenda.advance():
        pass
    # alone to 10, halves to 50 (a has 30, b 20), b alone to 60, where it is done
    assert ends == {"half": 30, "a": 50, "b": 60}
    assert server.busy_s == 60


@given(amounts=st.lists(st.integers(1, 50), min_size=1, max_size=6), starts=st.lists(st.integers(0, 50), min_size=6))
def test_a_fluid_server_neither_loses_nor_invents_work(amounts: list[int], starts: list[int]) -> None:
    agenda = Agenda()
    server = Fluid(agenda)
    ended: list[int] = []
    for amount, start in zip(amounts, starts, strict=False):
        agenda.plan(start, lambda amount=amount: server.add([(amount, lambda: ended.append(amount))]))
    while agenda.advance():
        pass
    assert sorted(ended) == sorted(amounts)
    assert server.busy_s == pytest.approx(sum(amounts))


def test_every_cyclic_order_reaches_the_bound_without_and_with_overlap() -> None:
    random = Random(1)
    for number in range(70):
        shapes = [random_shape(random, overlaps=number % 2 == 1) for _ in range(random.choice((2, 3)))]
        best = bound([shape.cost() for shape in shapes]).period_s
        for rest in permutations(shapes[1:]):
            period = steady_period_s([shapes[0], *rest], num_rounds=24)
            # Where two limits nearly agree the start-up outlasts 12 rounds; it is worth a step of each job at most.
            assert best - sum(shape.cost().solo_s for shape in shapes) / 12 <= period <= best * (1 + 1e-9)


def test_link_turns_equal_an_ideal_first_come_first_served_link() -> None:
    random = Random(2)
    for _ in range(20):
        shapes = [random_shape(random, overlaps=True) for _ in range(3)]
        turns = steady_period_s(shapes, Rules(link=LinkSharing.FIFO), num_rounds=30)
        assert turns == pytest.approx(steady_period_s(shapes, Rules(link=LinkSharing.ARRIVAL), num_rounds=30))


def test_a_fair_link_costs_up_to_one_and_a_half_and_never_gains() -> None:
    random = Random(3)
    ratios = []
    for _ in range(60):
        shapes = [random_shape(random, overlaps=False) for _ in range(2)]
        fair = steady_period_s(shapes, Rules(link=LinkSharing.FAIR), num_rounds=40)
        ratios.append(fair / steady_period_s(shapes, num_rounds=40))
    assert 1.3 < max(ratios) < 1.5
    assert min(ratios) > 0.99
    assert steady_period_s([EQUAL] * 2, Rules(link=LinkSharing.FAIR)) == 200  # identical jobs hide it


def test_a_slot_barrier_equals_the_token_for_two_jobs_and_is_worse_for_more() -> None:
    random = Random(4)
    worst = {2: 1.0, 3: 1.0, 5: 1.0}
    for num_jobs in worst:
        for _ in range(16):
            shapes = [random_shape(random, overlaps=False) for _ in range(num_jobs)]
            barrier = steady_period_s(shapes, Rules(SlotBarrier()), num_rounds=24)
            ratio = barrier / steady_period_s(shapes, num_rounds=24)
            worst[num_jobs] = max(worst[num_jobs], ratio)
    assert worst[2] == pytest.approx(1)
    assert 1.2 < worst[3] < 1.75
    assert 1.2 < worst[5] < 1.75


def test_naive_jobs_in_phase_gain_nothing_and_out_of_phase_all() -> None:
    def period(offset: float) -> float:
        return steady_period_s([EQUAL] * 2, Rules(Naive(), arrivals=(Arrival(0), Arrival(offset))))

    assert period(0) == 400
    assert period(100) == 200
    assert 200 < period(50) < 400


def test_computation_at_once_takes_its_share_of_the_device() -> None:
    run = simulate([StepShape(100, ()), StepShape(50, ())], [1, 1], Rules(Naive()))
    assert [(turn.job, turn.end_s) for turn in run.turns] == [(1, 100), (0, 150)] or [
        (turn.job, turn.end_s) for turn in run.turns
    ] == [(0, 150), (1, 100)]
    assert run.device_busy_s == 150


def test_turns_that_end_with_the_forward_pass_let_the_next_job_begin_then() -> None:
    run = simulate([EQUAL] * 2, [1, 1], Rules(extent=Extent.FORWARD))
    assert [turn.start_s for turn in run.turns] == [0, 40]
    # both share from 40 on: the first has 60 left, the second 100
    assert [turn.end_s for turn in run.turns] == [160, 200]
    with pytest.raises(Refused, match="forward_s"):
        simulate([StepShape.without_overlap(1, 1)], [1], Rules(extent=Extent.FORWARD))


@given(num_jobs=st.integers(2, 4), handover=st.integers(0, 5), interference=st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_handover_and_interference_cost_what_the_closed_form_says(
    num_jobs: int, handover: int, interference: float
) -> None:
    shapes = [StepShape.without_overlap(100, 30)] * num_jobs
    rules = Rules(handover_s=handover, interference=interference)
    slowed = 30 * num_jobs * interference / (1 + interference)
    expected = 100 * num_jobs + handover * num_jobs + slowed
    period = steady_period_s(shapes, rules, num_rounds=60)
    # A device that is handed over while messages travel loses nothing to them meanwhile.
    assert expected - handover * num_jobs * interference <= period <= expected * (1 + 1e-9)
    if not handover:
        assert period == pytest.approx(expected)


def test_opposite_orders_cost_a_communication_on_an_ideal_link_and_deadlock_with_link_turns() -> None:
    same, opposite = ((0, 1), (0, 1)), ((0, 1), (1, 0))
    assert steady_period_s([EQUAL] * 2, Rules(orders=same)) == 200
    assert steady_period_s([EQUAL] * 2, Rules(orders=opposite, link=LinkSharing.ARRIVAL)) == 300
    with pytest.raises(Deadlock, match="host 0's link: job 0 holding, job 1 waiting; host 1's link: job 1 holding"):
        simulate([EQUAL] * 2, [2, 2], Rules(orders=opposite))


def test_holding_in_opposite_orders_deadlocks() -> None:
    rules = Rules(extent=Extent.MESSAGES, orders=((0, 1), (1, 0)))
    with pytest.raises(Deadlock, match=r"deadlock at 100\.0 s: host 0's device: job 0 holding, job 1 waiting"):
        simulate([EQUAL] * 2, [2, 2], rules)


def test_symmetric_hosts_are_simulated_once_and_told_of_each() -> None:
    one, four = (simulate([EQUAL] * 2, [3, 3], Rules(orders=((0, 1),) * hosts)) for hosts in (1, 4))
    assert len(four.turns) == 4 * len(one.turns)
    assert four.messages == one.messages
    assert [turn for turn in four.turns if turn.host == 0] == list(one.turns)
    still = simulate([EQUAL] * 2, [3, 3], Rules(orders=((0, 1),) * 4, stretch=lambda *_: 1))
    assert sorted(map(str, still.turns)) == sorted(map(str, four.turns))


def test_a_straggler_delays_its_own_job_only_as_far_as_the_wait_is_not_hidden() -> None:
    rules = Rules(orders=((0, 1),) * 2, stretch=lambda host, job, _: 1.2 if (host, job) == (0, 0) else 1)
    shapes = [StepShape.without_overlap(100, 50)] * 2
    assert steady_period_s(shapes, rules) == pytest.approx(220)
    alone = Rules(orders=((0,),) * 2, stretch=lambda host, job, _: 1.2 if host == 0 else 1)
    assert steady_period_s(shapes[:1], alone) == pytest.approx(170)


def test_a_stalled_loader_holds_no_turn() -> None:
    rules = Rules(stall=lambda host, job, round_: 30 if job == 0 else 0)
    assert steady_period_s([EQUAL] * 2, rules) == 230  # the job alone: 230, and the other is in its shadow
    assert steady_period_s([EQUAL], rules) == 230


def test_a_job_that_comes_late_enters_at_the_round_that_is_due() -> None:
    rules = Rules(arrivals=(Arrival(), Arrival(1050, awaited=False)))
    run = simulate([EQUAL] * 2, [10, 3], rules)
    late = [turn for turn in run.turns if turn.job == 1]
    assert late[0].round >= 5
    assert late[0].start_s >= 1050
    assert len(late) == 3
    by_round = [(turn.round, turn.job) for turn in run.turns]
    assert by_round == sorted(by_round)


def test_weighted_turns_keep_the_ratio_of_rounds() -> None:
    run = simulate([EQUAL] * 2, [12, 4], Rules(shares=(3, 1)))
    jobs = [turn.job for turn in run.turns]
    assert [jobs[start : start + 4].count(0) for start in range(0, 16, 4)] == [3] * 4


def test_time_shifts_place_the_steps_at_their_beats() -> None:
    policy = TimeShifted((("0", Beat(0, 200)), ("1", Beat(100, 200))))
    run = simulate([EQUAL] * 2, [5, 5], Rules(policy))
    assert [(turn.job, turn.start_s) for turn in run.turns] == [(k % 2, 100 * k) for k in range(10)]


def test_a_link_with_two_messages_a_job_in_flight_shares_between_them() -> None:
    shape = StepShape(10, (Bucket(10, 30), Bucket(10, 10)))
    one, two = (simulate([shape], [1], Rules(in_flight=count)).messages for count in (1, 2))
    assert [(message.bucket, message.end_s) for message in one] == [(0, 40), (1, 50)]
    assert [(message.bucket, message.end_s) for message in two] == [(1, 30), (0, 50)] or [
        (message.bucket, message.end_s) for message in two
    ] == [(0, 50), (1, 30)]


def test_link_turns_follow_the_jobs_that_the_device_lets_in() -> None:
    assert link_policy(SlotBarrier()) == link_policy(Turns(1)) == Turns()
    assert link_policy(Exclusive()) == Exclusive()
    assert link_policy(TimeShifted(())) == link_policy(Naive()) == Naive()
    groups = (("0", "1"), ("2",))
    assert link_policy(Grouped(groups, SlotBarrier())) == Grouped(groups, Turns())
    for policy in (Exclusive(), Grouped(groups, SlotBarrier())):
        assert len(simulate([EQUAL] * 3, [2, 2, 2], Rules(policy)).turns) == 6


def test_jobs_without_messages_take_no_link_turns() -> None:
    run = simulate([EQUAL, StepShape(10, ())], [3, 3])
    assert {message.job for message in run.messages} == {0}
    assert len(run.turns) == 6


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (Rules(shares=(1,)), "give shares to all of 2 jobs"),
        (Rules(arrivals=(Arrival(),)), "give arrivals to all of 2 jobs"),
        (Rules(orders=((0, 0),)), "an order names each of 2 jobs once"),
    ],
)
def test_rules_that_do_not_fit_the_jobs_are_refused(rules: Rules, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        simulate([EQUAL] * 2, [1, 1], rules)


def test_impossible_values_are_refused() -> None:
    with pytest.raises(Refused, match="handover_s must be 0 or more"):
        Rules(handover_s=-1)
    with pytest.raises(Refused, match="in_flight"):
        Rules(in_flight=0)
    with pytest.raises(Refused, match="forward_s must lie within"):
        StepShape(1, (), forward_s=2)
    with pytest.raises(Refused, match="seconds from 0"):
        StepShape(1, (Bucket(1, -1),))
    with pytest.raises(Refused, match="num_buckets"):
        StepShape.even(1, 1, forward_s=0, num_buckets=0)
