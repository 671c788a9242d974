"""Laws of the pure rules, under any order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover import tokens
from crossover.errors import LeaseLost, Refused
from crossover.policies import Exclusive, Extent, Grouped, Naive, Sharing, SlotBarrier, TimeShifted, Turns, policy_of
from crossover.tokens import Grant, Phase, Policy, Token, new_token

JOBS = ("a", "b", "c")
TURN_POLICIES = st.sampled_from([Turns(0), Turns(1), Exclusive()])
EVENTS = st.lists(st.tuples(st.sampled_from(["join", "ask", "release", "leave"]), st.sampled_from(JOBS)), max_size=80)


@dataclass
class Played:
    """A token driven by events; those that a job in its phase cannot cause are passed over."""

    policy: Policy
    token: Token = field(default_factory=lambda: new_token(JOBS))
    grants: list[Grant] = field(default_factory=list)

    def happen(self, event: str, job: str) -> None:
        phase = self.token.seat(job).phase
        possible = {
            "join": phase in (Phase.ABSENT, Phase.LEFT),
            "ask": phase is Phase.IDLE,
            "release": phase is Phase.HOLDING,
            "leave": phase not in (Phase.ABSENT, Phase.LEFT),
        }
        if not possible[event]:
            return
        match event:
            case "join":
                token = tokens.join(self.token, job)
            case "ask":
                token = tokens.ask(self.token, job)
            case "release":
                token = tokens.release(self.token, job, self.token.seat(job).generation)
            case _:
                token = tokens.leave(self.token, job)
        self.token, grants = tokens.settle(token, self.policy)
        self.grants += grants


def everybody_waits(policy: Policy, jobs: tuple[str, ...] = JOBS) -> Played:
    played = Played(policy, new_token(jobs))
    for job in jobs:
        played.happen("join", job)
    for job in jobs:
        played.happen("ask", job)
    return played


@given(policy=TURN_POLICIES, events=EVENTS)
def test_at_most_one_job_holds_the_token(policy: Policy, events: list[tuple[str, str]]) -> None:
    played = Played(policy)
    for event in events:
        played.happen(*event)
        assert len(played.token.holders) <= 1


@given(policy=st.one_of(TURN_POLICIES, st.just(Naive())), events=EVENTS)
def test_generations_only_grow(policy: Policy, events: list[tuple[str, str]]) -> None:
    played = Played(policy)
    for event in events:
        played.happen(*event)
    assert [grant.generation for grant in played.grants] == list(range(1, len(played.grants) + 1))


@given(policy=TURN_POLICIES, events=EVENTS)
def test_any_history_drains_when_every_waiting_job_takes_its_turn_and_leaves(
    policy: Policy, events: list[tuple[str, str]]
) -> None:
    played = Played(policy)
    for event in events:
        played.happen(*event)
    for job in JOBS:
        played.happen("join", job)
    for job in JOBS:
        played.happen("ask", job)
    for _ in JOBS:
        (holder,) = played.token.holders
        played.happen("leave", holder)
    assert {seat.phase for seat in played.token.seats} == {Phase.LEFT}


@given(st.lists(st.sampled_from(JOBS), min_size=9, max_size=60))
def test_strict_turns_go_round_in_seat_order_whoever_is_ready_first(readiness: list[str]) -> None:
    played = everybody_waits(Turns())
    for job in readiness:
        played.happen("release", job)
        played.happen("ask", job)
    order = "".join(grant.job for grant in played.grants)
    assert ("abc" * len(order)).startswith(order)


@given(lead=st.sampled_from([0, 1]), readiness=st.lists(st.sampled_from(JOBS), min_size=9, max_size=80))
def test_no_job_gets_further_ahead_than_the_lead_allows(lead: int, readiness: list[str]) -> None:
    played = everybody_waits(Turns(lead))
    for job in readiness:
        played.happen("release", job)
        played.happen("ask", job)
        rounds = [seat.next_round for seat in played.token.seats]
        assert max(rounds) - min(rounds) <= 1 + lead


def test_a_late_job_is_passed_once_and_then_waited_for() -> None:
    strict, loose = everybody_waits(Turns(0), ("a", "b")), everybody_waits(Turns(1), ("a", "b"))
    for played in (strict, loose):
        played.happen("release", "a")  # a is late from here on
        for _ in range(3):
            played.happen("release", "b")
            played.happen("ask", "b")
    assert [grant.job for grant in strict.grants] == ["a", "b"]
    assert [grant.job for grant in loose.grants] == ["a", "b", "b"]


def test_turns_wait_until_every_declared_job_has_come() -> None:
    played = Played(Turns())
    for job in ("b", "c"):
        played.happen("join", job)
        played.happen("ask", job)
    assert not played.grants
    played.happen("join", "a")
    assert not played.grants
    played.happen("ask", "a")
    assert [grant.job for grant in played.grants] == ["a"]


def test_the_others_go_on_when_the_holder_dies() -> None:
    played = everybody_waits(Turns())
    played.happen("leave", "a")
    assert played.token.holders == ("b",)


@given(st.lists(st.sampled_from(["a", "b"]), max_size=20))
def test_a_job_that_comes_and_goes_does_not_starve_the_other(restless: list[str]) -> None:
    played = everybody_waits(Turns(), ("a", "b"))
    for job in [*restless, "a", "b", "a", "b"]:
        for event in ("release", "leave", "join", "ask"):
            played.happen(event, job)
    rounds = [seat.next_round for seat in played.token.seats]
    assert max(rounds) - min(rounds) <= 1
    assert played.token.holders


def test_exclusive_runs_one_job_after_the_other_in_seat_order() -> None:
    played = Played(Exclusive())
    played.happen("join", "b")
    played.happen("ask", "b")
    assert not played.grants
    played.happen("join", "a")
    for _ in range(3):
        played.happen("ask", "a")
        played.happen("release", "a")
    played.happen("leave", "a")
    assert [grant.job for grant in played.grants] == ["a", "a", "a", "b"]


def test_naive_lends_to_everybody_at_once() -> None:
    assert everybody_waits(Naive()).token.holders == JOBS


def test_a_stale_release_is_fenced_and_changes_nothing() -> None:
    played = everybody_waits(Turns())
    before = played.token
    with pytest.raises(LeaseLost, match="lease 7 of job 'a'"):
        tokens.release(before, "a", 7)
    with pytest.raises(LeaseLost):
        tokens.release(before, "b", before.generation)


@given(events=EVENTS, job=st.sampled_from(JOBS))
@settings(max_examples=50)
def test_an_event_is_refused_exactly_when_the_job_cannot_cause_it(events: list[tuple[str, str]], job: str) -> None:
    played = Played(Turns())
    for event in events:
        played.happen(*event)
    seat = played.token.seat(job)
    if seat.phase is not Phase.IDLE:
        with pytest.raises(Refused, match=f"job '{job}' asked for a turn while {seat.phase}"):
            tokens.ask(played.token, job)
    if seat.phase not in (Phase.ABSENT, Phase.LEFT):
        with pytest.raises(Refused, match=f"job '{job}' has its seat already"):
            tokens.join(played.token, job)


@pytest.mark.parametrize("first_round", [-1, 1001, 2**60])
def test_a_round_out_of_reach_is_refused(first_round: int) -> None:
    with pytest.raises(Refused, match="agree on one from 0 to 1000"):
        tokens.join(new_token(JOBS), "a", first_round)


def test_an_undeclared_job_is_refused() -> None:
    with pytest.raises(Refused, match=r"unknown job 'd'.*a, b, c"):
        tokens.join(new_token(JOBS), "d")


@pytest.mark.parametrize("jobs", [(), ("a", "a"), tuple(str(number) for number in range(65))])
def test_a_token_needs_different_jobs_and_not_too_many(jobs: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="1 to 64 different names"):
        new_token(jobs)


def test_every_sharing_has_a_policy_and_only_hold_keeps_its_turn() -> None:
    assert [sharing for sharing in Sharing if sharing.extent is Extent.MESSAGES] == [Sharing.HOLD]
    assert {type(policy_of(sharing)) for sharing in Sharing} == {
        Naive,
        Exclusive,
        Turns,
        SlotBarrier,
        Grouped,
        TimeShifted,
    }


def test_a_lead_of_two_rounds_is_refused() -> None:
    with pytest.raises(Refused, match="not 2"):
        Turns(2)
