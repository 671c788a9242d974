"""When a negotiated round begins, near the ends of backward: where the link is what a step waits for, early; else the
last gradient shares a round, and a late one holds nobody up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_ranks import TimedStep, segments

from baselines.api import Message
from baselines.strategy import parse_strategy
from harness.engine.negotiate import NEAR_ROUNDS, all_gather_is_shorter

ROUND_S, MESSAGE_S = 2.4e-3, 0.5e-3  # two ranks take one hop per round
EVEN_S = [1e-3 * (1 + i) for i in range(9)]
FIRST_FREE_S = 1.5e-3 + ROUND_S + MESSAGE_S
"""The first round begins half a cycle after the first gradient; here the link is free again, 4.6 ms before the last."""


def step(
    ready_s: list[float],
    before: TimedStep | None = None,
    *,
    cycle_s: float = 0.001,
    message_s: Callable[[Message], float] = lambda _: MESSAGE_S,
) -> TimedStep:
    """Two ranks whose gradients come at the same time."""
    strategy, layout = parse_strategy(f"tensor-fusion(cycle_s={cycle_s})"), segments(len(ready_s))
    own = TimedStep(strategy, layout, [ready_s] * 2, hop_s=ROUND_S, message_s=message_s, before=before)
    return own.run()


def num_rounds(step: TimedStep) -> int:
    return step.ranks[0].traffic.num_control_rounds


def landed_s(step: TimedStep) -> float:
    return max(step.landed_s.values())


def test_a_round_waits_for_a_last_gradient_that_is_near() -> None:
    """The third round of the first step begins before the last gradient is there, and a fourth ends behind it."""
    first = step(EVEN_S)
    second = step(EVEN_S, before=first)
    assert (num_rounds(first), num_rounds(second)) == (4, 2)
    assert landed_s(first) == pytest.approx(FIRST_FREE_S + MESSAGE_S + 3 * ROUND_S + MESSAGE_S)
    assert landed_s(second) == pytest.approx(EVEN_S[-1] + ROUND_S + MESSAGE_S)


LATEST_S = EVEN_S[-1] + NEAR_ROUNDS * ROUND_S


@pytest.mark.parametrize("late_s", [LATEST_S - 1e-4, LATEST_S + 1e-4, 50e-3])
def test_a_last_gradient_that_is_late_is_waited_for_no_longer_than_some_rounds(late_s: float) -> None:
    late = step([*EVEN_S[:-1], late_s], before=step(EVEN_S))
    of_others = next(message for message in late.ranks[0].sent if any(one.index == 7 for one in message.segments))
    assert late.sent_s[of_others.index] == pytest.approx(min(late_s, LATEST_S) + ROUND_S, abs=1e-8)
    assert num_rounds(late) == (2 if late_s < LATEST_S else 3)


def test_only_the_step_before_says_when_the_last_gradient_is_due() -> None:
    """After a backward of 50 ms none is near in one of 9, which has four rounds once and two again."""
    steps = [step(EVEN_S)]
    for ready_s in ([*EVEN_S[:-1], 50e-3], EVEN_S, EVEN_S):
        steps.append(step(ready_s, before=steps[-1]))
    assert [num_rounds(one) for one in steps[2:]] == [4, 2]


def test_where_messages_travel_longer_than_backward_takes_the_first_goes_half_way_through_it() -> None:
    """45 ms of messages, and half a cycle is 50 ms, but in the first step, which does not know it. What is ready after
    4 of backward's 8 ms goes ahead, and so much is won over one message behind it."""

    def slow(message: Message) -> float:
        return 1e-3 * message.numel

    second = step(EVEN_S, cycle_s=0.1, message_s=slow, before=step(EVEN_S, cycle_s=0.1, message_s=slow))
    assert len(second.sent_s) == 2
    assert landed_s(second) == pytest.approx(EVEN_S[4] + ROUND_S + 45e-3)


def test_messages_that_travel_no_longer_than_backward_takes_do_not_go_ahead() -> None:
    second = step(EVEN_S, cycle_s=0.1, before=step(EVEN_S, cycle_s=0.1))
    assert len(second.sent_s) == 1
    assert landed_s(second) == pytest.approx(EVEN_S[-1] + ROUND_S + MESSAGE_S)


def test_two_or_three_ranks_need_nobody_to_tell_them_what_all_have() -> None:
    assert [world for world in range(1, 65) if all_gather_is_shorter(world)] == [2, 3]
