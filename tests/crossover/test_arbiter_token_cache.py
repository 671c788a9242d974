"""A token's course: what is looked up is what the rules say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossover import tokens
from crossover.arbiter.token_cache import MAX_STATES, TokenCache
from crossover.policies import Beat, Exclusive, Grouped, Naive, SlotBarrier, TimeShifted, Turns
from crossover.tokens import Phase, Policy, Token, new_token

POLICIES: list[Policy] = [
    Naive(),
    Exclusive(),
    Turns(),
    Turns(lead_rounds=1),
    SlotBarrier(),
    Grouped((("a", "b"), ("c",)), SlotBarrier()),
    TimeShifted((("a", Beat(0.0, 1.0)), ("b", Beat(0.5, 1.0)))),
]
JOBS = ("a", "b", "c")


def seated(shares: dict[str, int]) -> Token:
    token = new_token(JOBS, shares)
    for job in JOBS:
        token = tokens.join(token, job)
    return token


def possible(token: Token, job: str) -> list[str]:
    """What may happen to the job now."""
    return {
        Phase.IDLE: ["ask", "ask", "ask", "aside", "skip", "leave", "pass over"],
        Phase.WAITING: ["nothing", "nothing", "leave"],
        Phase.HOLDING: ["release", "release", "leave"],
        Phase.LEFT: ["join"],
    }[token.seat(job).phase]


@settings(max_examples=200, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    shares=st.fixed_dictionaries({job: st.integers(1, 3) for job in JOBS}),
    choices=st.lists(st.tuples(st.sampled_from(JOBS), st.integers(0, 1000)), max_size=120),
)
def test_a_course_gives_what_the_rules_give(
    policy: Policy, shares: dict[str, int], choices: list[tuple[str, int]]
) -> None:
    token, _ = tokens.settle(seated(shares), policy)
    cache = TokenCache(token, policy)
    for step, (job, choice) in enumerate(choices):
        now_s = step / 10
        options = possible(token, job)
        event = options[choice % len(options) if choice < 500 else 0]
        if event == "nothing":
            continue
        if event == "ask":
            token, grants = tokens.settle(tokens.ask(token, job), policy, now_s)
            assert cache.ask(job, now_s) == grants
        elif event == "release":
            token, grants = tokens.settle(tokens.release(token, job, token.seat(job).generation), policy, now_s)
            assert cache.release(job, now_s) == grants
        else:
            other = {
                "aside": lambda token, job: tokens.ask(token, job, aside=True),
                "skip": lambda token, job: tokens.skip(token, job, 2),
                "leave": tokens.leave,
                "pass over": tokens.pass_over,
                "join": tokens.join,
            }[event]
            token, _ = tokens.settle(other(token, job), policy, now_s)
            cache.put(tokens.settle(other(cache.token, job), policy, now_s)[0])
        assert cache.token == token
        assert cache.is_stalled == (
            token.is_open and not token.holders and any(seat.phase is Phase.WAITING for seat in token.seats)
        )


def test_jobs_that_move_apart_for_ever_do_not_fill_the_memory() -> None:
    token, _ = tokens.settle(seated({}), Exclusive())
    cache = TokenCache(token, Exclusive())
    for number in range(MAX_STATES):
        (grant,) = cache.ask("a", 0.0)
        assert (grant.generation, grant.round) == (number + 1, number)
        cache.release("a", 0.0)
        assert len(cache._states) <= MAX_STATES


@pytest.mark.parametrize("policy", [Naive(), Turns(), Turns(lead_rounds=1), SlotBarrier()])
def test_steady_jobs_need_a_handful_of_states(policy: Policy) -> None:
    token, _ = tokens.settle(seated({}), policy)
    cache = TokenCache(token, policy)
    num_states = 0
    for number in range(200):
        for job in JOBS:
            if cache.token.seat(job).phase is Phase.IDLE:
                cache.ask(job, 0.0)
        for job in cache.token.holders:
            cache.release(job, 0.0)
        if number == 50:
            num_states = len(cache._states)
    assert len(cache._states) == num_states < MAX_STATES // 10
