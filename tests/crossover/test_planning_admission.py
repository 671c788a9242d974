from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_jobs import costs, job

from crossover import JobCost, Refused, Sharing, bound
from crossover.planning import JobProfile, Plan, Terms, Verdict, memory_of, plan, profile_of
from crossover.settings import Settings
from crossover.simulator import LinkSharing

FREE = Terms(link=LinkSharing.FIFO, handover_s=0)
BALANCED = (job("a", 0.1, 0.1), job("b", 0.1, 0.1))


def texts(found: Plan, verdict: Verdict) -> str:
    return "\n".join(reason.text for reason in found.reasons if reason.verdict is verdict)


def test_balanced_jobs_are_admitted_at_twice_the_throughput() -> None:
    found = plan(BALANCED, FREE)
    assert found.verdict is Verdict.ADMIT
    assert found.gain == pytest.approx(2)
    assert [outlook.slowdown for outlook in found.jobs] == pytest.approx([1, 1])
    assert [outlook.of_fair_share for outlook in found.jobs] == pytest.approx([2, 2])
    assert (found.device_busy, found.link_busy) == pytest.approx((1, 1))
    assert found.settings == Settings(jobs=("a", "b"))


@given(st.lists(costs(), min_size=2, max_size=3))
@settings(max_examples=25, deadline=None)
def test_without_costs_of_sharing_the_plan_is_the_bound_of_theory(some: list[JobCost]) -> None:
    profiles = [
        JobProfile(name=f"job{number}", compute_s=c.compute_s, communication_s=c.communication_s, solo_s=c.solo_s)
        for number, c in enumerate(some)
    ]
    found = plan(profiles, FREE)
    assert found.bound == bound(some)
    assert found.period_s == pytest.approx(found.bound.period_s, rel=0.01)  # a steady state is measured over turns
    assert found.verdict is not Verdict.REFUSE
    for outlook, cost in zip(found.jobs, some, strict=True):
        assert outlook.step_s == pytest.approx(outlook.slowdown * cost.solo_s)
        assert outlook.rate_hz * outlook.step_s == pytest.approx(1)


def test_jobs_that_would_be_faster_one_after_the_other_are_refused_with_both_times() -> None:
    found = plan([job("a", 0.1, 0.01, 0.1), job("b", 0.1, 0.01, 0.1)], Terms(handover_s=0.002))
    assert found.verdict is Verdict.REFUSE
    assert "204.000 ms together, 200.000 ms in a row" in texts(found, Verdict.REFUSE)
    assert "hide their communication themselves" in texts(found, Verdict.REFUSE)


def test_next_to_no_gain_is_warned_about() -> None:
    found = plan([job("a", 0.1, 0.01, 0.101), job("b", 0.1, 0.01, 0.101)], FREE)
    assert found.verdict is Verdict.WARN
    assert "gains 1.0 %" in texts(found, Verdict.WARN)


def test_interference_lowers_the_gain() -> None:
    profiles = [job("a", 0.2, 0.1), job("b", 0.2, 0.1)]
    undisturbed = plan(profiles, FREE)
    disturbed = plan(profiles, Terms(handover_s=0, interference=0.25))
    assert disturbed.gain < undisturbed.gain


def test_a_short_job_that_starves_is_warned_about_and_weighted_sharing_helps_it() -> None:
    profiles = [job("short", 0.05, 0.02, 0.06), job("long", 0.25, 0.1, 0.3)]
    found = plan(profiles, FREE)
    assert found.verdict is Verdict.WARN
    assert "short takes 5.00 times as long as alone, its fair share would be 2; weighted" in texts(found, Verdict.WARN)
    mended = plan(profiles, replace(FREE, sharing=Sharing.WEIGHTED))
    assert min(outlook.of_fair_share for outlook in mended.jobs) >= 0.999
    assert mended.settings.shares[0] > mended.settings.shares[1]
    assert "linear programme" in mended.notes[0]


def test_flows_share_the_link_unless_link_turns_are_asked_for_and_gain_less_than_these() -> None:
    profiles = [job("a", 0.1, 0.2), job("b", 0.3, 0.2)]
    shared = plan(profiles, Terms(handover_s=0))
    assert shared == plan(profiles, Terms(link=LinkSharing.FAIR, handover_s=0))
    assert shared.gain < 0.95 * plan(profiles, FREE).gain


@pytest.mark.parametrize("sharing", Sharing)
def test_link_turns_are_only_for_the_rules_that_have_them(sharing: Sharing) -> None:
    profiles = [
        JobProfile(name=name, compute_s=c, communication_s=0.2, solo_s=c + 0.2, forward_s=0.04)
        for name, c in (("a", 0.1), ("b", 0.3))
    ]
    turns, shared = (plan(profiles, Terms(sharing, link)) for link in (LinkSharing.FIFO, LinkSharing.FAIR))
    assert turns.terms.fair_link is not sharing.gates_link
    assert (turns.gain == shared.gain) is not sharing.gates_link


def test_hold_gains_nothing_by_design() -> None:
    found = plan(BALANCED, Terms(Sharing.HOLD, handover_s=0))
    assert found.gain == pytest.approx(1)
    assert "by design" in texts(found, Verdict.WARN)


@pytest.mark.parametrize("sharing", Sharing)
def test_every_sharing_can_be_planned_and_its_settings_start_arbiters(sharing: Sharing) -> None:
    profiles = [
        JobProfile(name=name, compute_s=0.1, communication_s=0.1, solo_s=0.2, forward_s=0.04) for name in ("a", "b")
    ]
    found = plan(profiles, Terms(sharing))
    assert Settings.from_json(found.settings.to_json()) == found.settings
    assert found.settings.sharing is sharing
    assert 0.9 < found.gain <= 2 + 1e-6
    assert max(found.device_busy, found.link_busy) <= 1 + 1e-6


def memory_job(name: str) -> JobProfile:
    more = {"parameters_bytes": 10, "gradients_bytes": 10, "optimizer_bytes": 20, "activations_bytes": 60}
    return job(name, 0.1, 0.1, **more)


def test_activations_count_once_in_turns_and_all_where_jobs_compute_at_once() -> None:
    profiles = [memory_job("a"), memory_job("b")]
    assert memory_of(profiles, Sharing.CROSSOVER).needed_bytes == 40 + 40 + 60
    assert memory_of(profiles, Sharing.NAIVE).needed_bytes == 40 + 40 + 60 + 60
    assert memory_of(profiles, Sharing.TICK_TOCK).needed_bytes == 40 + 40 + 60 + 60


@pytest.mark.parametrize(
    ("device_bytes", "verdict"), [(200, Verdict.ADMIT), (199, Verdict.WARN), (140, Verdict.WARN), (139, Verdict.REFUSE)]
)
def test_memory_decides(device_bytes: int, verdict: Verdict) -> None:
    found = plan([memory_job("a"), memory_job("b")], FREE, device_memory_bytes=device_bytes)
    assert found.verdict is verdict


def test_memory_that_is_not_known_is_said_where_it_was_asked_for() -> None:
    assert "memory of a, b is not" in texts(plan(BALANCED, FREE, device_memory_bytes=100), Verdict.WARN)


def test_jobs_of_different_numbers_of_workers_are_warned_about() -> None:
    found = plan([job("a", 0.1, 0.1, world=2), job("b", 0.1, 0.1, world=4)], FREE)
    assert "a 2, b 4" in texts(found, Verdict.WARN)


def test_where_only_time_off_the_device_is_known_the_gain_may_err_either_way() -> None:
    """Jobs that wait 60 of 80 ms without a link lose nothing by sharing, and messages of 60 ms each do."""
    idle = [profile_of(name, turns_s=[0.02] * 3, steps_s=[0.08] * 3) for name in ("a", "b")]
    found = plan(idle, FREE)
    assert found.gain == pytest.approx(160 / 120)
    assert found.bound.gain == pytest.approx(2)
    assert found.notes == (
        "the gain may err either way: all time of a, b off the device counts as messages; it is up to 2.00 where that "
        "is latency or loading, and less where computation hides more messages",
    )


def test_muri_says_its_groups_and_cassini_its_scores() -> None:
    profiles = [*BALANCED, job("c", 0.2, 0.001, 0.2)]
    assert plan(profiles, Terms(Sharing.MURI)).notes == ("groups, one after the other: a + b; c",)
    assert plan(BALANCED, Terms(Sharing.CASSINI)).notes == (
        "compatibility: link 1.000, device 1.000; periods 200.0, 200.0 ms",
    )


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(Refused, match="two or more jobs"):
        plan(BALANCED[:1])
    with pytest.raises(Refused, match="different names"):
        plan([BALANCED[0]] * 2)
    with pytest.raises(Refused, match="weighted"):
        plan(BALANCED, weights=(1, 2))
    with pytest.raises(Refused, match="hand-over"):
        Terms(handover_s=-1)
    with pytest.raises(Refused, match="interference"):
        Terms(interference=float("nan"))
