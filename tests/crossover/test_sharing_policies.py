"""Each sharing's own rule: shares, slots, groups, beats, leases aside, and jobs that are passed over."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s

from crossover import tokens
from crossover.errors import Refused
from crossover.policies import Beat, Extent, Grouped, Naive, Sharing, SlotBarrier, TimeShifted, Turns
from crossover.protocol import Resource
from crossover.settings import Settings
from crossover.tokens import Policy, Token, new_token

JOBS = ("a", "b", "c")


def seated(policy: Policy, jobs: tuple[str, ...] = JOBS, shares: dict[str, int] | None = None) -> Token:
    """Everybody has come and asked."""
    token = new_token(jobs, shares)
    for job in jobs:
        token = tokens.join(token, job)
    for job in jobs:
        token = tokens.ask(token, job)
    return tokens.settle(token, policy)[0]


def release(token: Token, policy: Policy, *, again: bool = True, now_s: float = 0.0) -> Token:
    """The holder's turn ends, and it asks for the next one at once."""
    (holder,) = token.holders
    token = tokens.release(token, holder, token.seat(holder).generation)
    token = tokens.settle(token, policy, now_s)[0]
    return tokens.settle(tokens.ask(token, holder), policy, now_s)[0] if again else token


def order(policy: Policy, num_turns: int, shares: dict[str, int] | None = None) -> str:
    token, taken = seated(policy, shares=shares), ""
    for _ in range(num_turns):
        taken += token.holders[0]
        token = release(token, policy)
    return taken


@given(st.tuples(*[st.integers(1, 5)] * 3))
def test_in_every_cycle_each_job_has_its_share_of_turns(shares: tuple[int, ...]) -> None:
    by_job = dict(zip(JOBS, shares, strict=True))
    taken = order(Turns(), 3 * sum(shares), by_job)
    for cycle in range(3):
        assert Counter(taken[cycle * sum(shares) : (cycle + 1) * sum(shares)]) == by_job


def test_a_share_of_three_is_spread_over_the_cycle() -> None:
    assert order(Turns(), 10, {"a": 3, "b": 1, "c": 1}) == "abcaaabcaa"


def test_who_comes_late_enters_at_the_pass_that_is_due_whatever_its_share() -> None:
    token = seated(Turns(), ("a", "b"), {"a": 2, "b": 1})
    token = tokens.leave(token, "b")
    for _ in range(7):
        token = release(token, Turns())
    late = tokens.join(token, "b")
    assert late.seat("b").next_pass >= late.seat("a").next_pass
    assert late.seat("b").next_round == 4


def test_a_slot_ends_when_the_job_before_has_its_messages() -> None:
    policy = SlotBarrier()
    token = release(seated(policy), policy, again=False)  # a sends, b has the device
    assert token.holders == ("b",)
    token = release(token, policy, again=False)  # b sends as well: a must be done first
    assert token.holders == ()
    token = tokens.settle(tokens.ask(token, "a"), policy)[0]
    assert token.holders == ("c",)


def test_a_group_has_the_device_until_all_of_it_has_left() -> None:
    policy = Grouped((("a", "c"), ("b",)), Turns())
    token = seated(policy)
    taken = [token.holders[0]]
    for _ in range(3):
        token = release(token, policy)
        taken.append(token.holders[0])
    assert taken == ["a", "c", "a", "c"]
    for job in ("c", "a"):
        token = tokens.settle(tokens.leave(token, job), policy)[0]
    assert token.holders == ("b",)


def test_jobs_of_no_group_come_after_the_groups() -> None:
    policy = Grouped((("c",),), Turns())
    token = seated(policy)
    assert token.holders == ("c",)
    token = tokens.settle(tokens.leave(token, "c"), policy)[0]
    assert token.holders == ("a",)


BEATS = TimeShifted((("a", Beat(0.0, 1.0)), ("b", Beat(0.5, 1.0))))


def test_shifted_jobs_start_at_their_own_phase() -> None:
    token = seated(BEATS, ("a", "b"))
    assert token.holders == ("a",)
    assert BEATS.wake_s(token, 0.2) == pytest.approx(0.5)
    assert tokens.settle(token, BEATS, 0.49)[0].holders == ("a",)
    assert tokens.settle(token, BEATS, 0.5)[0].holders == ("a", "b")


@pytest.mark.parametrize(("now_s", "goes"), [(1.0, True), (1.4, True), (1.6, False), (1.9999999, True), (0.9, False)])
def test_a_job_that_is_early_or_far_adrift_waits_for_its_beat(now_s: float, goes: bool) -> None:
    token = seated(BEATS, ("a", "b"))
    token = tokens.release(token, "a", token.seat("a").generation)
    token = tokens.ask(token, "a")
    assert ("a" in tokens.settle(token, BEATS, now_s)[0].holders) is goes


@given(st.floats(0, 50), st.floats(0.1, 5), st.floats(0, 5))
def test_a_beat_is_never_further_than_a_period_or_the_shift(now_s: float, period_s: float, shift_s: float) -> None:
    policy = TimeShifted((("a", Beat(shift_s, period_s)),))
    token = tokens.settle(tokens.join(new_token(("a",)), "a"), policy)[0]
    wake_s = policy.wake_s(tokens.ask(token, "a"), now_s)
    assert now_s <= wake_s <= now_s + max(period_s, shift_s) + 1e-9


def test_a_lease_aside_moves_no_round() -> None:
    token = seated(Turns())
    token = tokens.release(token, "a", token.seat("a").generation)
    before = token.seat("b").next_round
    token = tokens.leave(tokens.leave(token, "b"), "c")
    token = tokens.settle(tokens.ask(token, "a", aside=True), Turns())[0]
    assert token.seat("a").aside
    token = tokens.release(token, "a", token.seat("a").generation)
    assert (token.seat("a").next_round, before, token.last) == (1, 0, "a")


def test_a_lease_aside_waits_for_the_holder_and_lets_the_front_job_go_first() -> None:
    token = release(seated(Turns()), Turns(), again=False)
    token = tokens.settle(tokens.ask(token, "a", aside=True), Turns())[0]
    assert token.holders == ("b",)
    token = release(token, Turns(), again=False)
    assert token.holders == ("c",)
    token = release(token, Turns(), again=False)  # a is in front now
    assert (token.holders, token.seat("a").aside) == (("a",), True)


def test_an_evaluation_may_come_before_all_jobs_are_there() -> None:
    token = tokens.ask(tokens.join(new_token(JOBS), "b"), "b", aside=True)
    assert tokens.settle(token, Turns())[0].holders == ("b",)


def test_a_job_that_is_passed_over_is_not_waited_for_and_comes_back_at_the_pass_that_is_due() -> None:
    token = release(seated(Turns(), ("a", "b")), Turns(), again=False)
    token = release(token, Turns())
    assert token.holders == ()  # b waits, a is in front and not ready
    token = tokens.settle(tokens.pass_over(token, "a"), Turns())[0]
    for _ in range(5):
        assert token.holders == ("b",)
        token = release(token, Turns())
    token = tokens.settle(tokens.ask(token, "a"), Turns())[0]
    assert token.seat("a").next_round == 7  # b is in its turn number 6
    assert "a" in release(token, Turns(), again=False).holders


def test_leases_aside_of_a_job_passed_over_alternate_with_the_others_turns() -> None:
    token = release(seated(Turns(), ("a", "b")), Turns(), again=False)
    token = tokens.settle(tokens.pass_over(token, "a"), Turns())[0]
    taken = ""
    for _ in range(6):
        token = (
            tokens.settle(tokens.ask(token, "a", aside=True), Turns())[0] if token.seat("a").phase == "idle" else token
        )
        (holder,) = token.holders
        taken += holder
        token = tokens.release(token, holder, token.seat(holder).generation)
        if holder == "b":
            token = tokens.ask(token, "b")
        token = tokens.settle(token, Turns())[0]
    assert taken == "bababa"


def test_only_an_idle_job_is_passed_over() -> None:
    with pytest.raises(Refused, match="while holding"):
        tokens.pass_over(seated(Turns()), "a")


def test_skipped_rounds_are_nobodys() -> None:
    token = release(seated(Turns(), ("a", "b")), Turns(), again=False)
    token = tokens.settle(tokens.skip(token, "a", 2), Turns())[0]
    taken = ""
    for _ in range(3):
        taken += token.holders[0]
        token = release(token, Turns())
    assert taken == "bbb"


def test_every_sharing_says_what_a_turn_lasts_until() -> None:
    extents = {sharing: sharing.extent for sharing in Sharing if sharing.extent is not Extent.BACKWARD}
    assert extents == {Sharing.HOLD: Extent.MESSAGES, Sharing.TICK_TOCK: Extent.FORWARD}


@pytest.mark.parametrize(
    "settings",
    [
        Settings(jobs=("a", "b")),
        Settings(jobs=("a", "b"), sharing=Sharing.WEIGHTED, shares=(2, 1), lead_rounds=1),
        Settings(jobs=("a", "b"), sharing=Sharing.MURI, groups=(("a",), ("b",)), lease_limit_s=patience_s(2.0)),
        Settings(jobs=("a", "b"), sharing=Sharing.CASSINI, beats=(Beat(0.0, 1.0), Beat(0.5, 1.0))),
    ],
)
def test_settings_travel_as_json(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "cannot be used"),
        ('{"jobs": ["a"], "colour": 1}', "cannot be used"),
        ('{"jobs": ["a", "a"]}', "different names"),
        ('{"jobs": ["a"], "sharing": "fair"}', "cannot be used"),
        ('{"jobs": ["a", "b"], "shares": [1, 2]}', "give them to weighted"),
        ('{"jobs": ["a", "b"], "sharing": "weighted", "shares": [1]}', "one a job"),
        ('{"jobs": ["a", "b"], "sharing": "weighted", "shares": [1, 1000]}', "shares must be 1 to"),
        ('{"jobs": ["a", "b"], "sharing": "cassini"}', "needs beats"),
        ('{"jobs": ["a"], "sharing": "muri", "groups": [["z"]]}', "not ."),
        ('{"jobs": ["a"], "lease_limit_s": -1}', "positive number of seconds"),
        ('{"jobs": ["a"], "gather_limit_s": null}', "positive number of seconds, not None"),
        (f'{{"jobs": ["a"], "idle_limit_s": {10**400}}}', "cannot be used"),
        (f'{{"jobs": ["a"], "sharing": "cassini", "beats": [{{"shift_s": {10**400}, "period_s": 1}}]}}', "cannot be"),
        ('{"jobs": ["a"], "lead_rounds": 2}', "lead_rounds must be 0"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Settings.from_json(text)


def test_link_turns_are_strict_among_the_jobs_that_the_device_lets_in() -> None:
    muri = Settings(jobs=("a", "b"), sharing=Sharing.MURI, groups=(("a", "b"),))
    naive = Settings(jobs=("a", "b"), sharing=Sharing.NAIVE)
    barrier = Settings(jobs=("a", "b"), sharing=Sharing.SLOT_BARRIER)
    assert muri.policy(Resource.LINK) == Grouped((("a", "b"),), Turns())
    assert (naive.policy(Resource.LINK), barrier.policy(Resource.LINK)) == (Naive(), Turns())
