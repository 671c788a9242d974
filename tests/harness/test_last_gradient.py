"""Negotiated rounds near the end of backward: the last gradient shares a round, and a late one holds nobody up."""

from __future__ import annotations

import pytest
from simulated_ranks import TimedStep, segments

from baselines.strategy import parse_strategy

STRATEGY = parse_strategy("tensor-fusion(cycle_s=0.001)")
HOP_S, ROUND_S, MESSAGE_S = 2e-3, 4e-3, 0.5e-3
EVEN_S = [1e-3 * (1 + i) for i in range(9)]
FIRST_FREE_S = 1.5e-3 + ROUND_S + MESSAGE_S
"""The first round begins half a cycle after the first gradient; here the link is free again, 3 ms before the last."""


def step(ready_s: list[float], before: TimedStep | None = None) -> TimedStep:
    """Two ranks whose gradients come at the same time."""
    layout = segments(len(ready_s))
    own = TimedStep(STRATEGY, layout, [ready_s] * 2, hop_s=HOP_S, message_s=lambda _: MESSAGE_S, before=before)
    return own.run()


def num_rounds(step: TimedStep) -> int:
    return step.ranks[0].traffic.num_control_rounds


def test_a_round_waits_for_a_last_gradient_that_is_near() -> None:
    first = step(EVEN_S)
    second = step(EVEN_S, before=first)
    assert (num_rounds(first), num_rounds(second)) == (3, 2)
    assert max(first.landed_s.values()) == pytest.approx(FIRST_FREE_S + 2 * ROUND_S + MESSAGE_S)
    assert max(second.landed_s.values()) == pytest.approx(EVEN_S[-1] + ROUND_S + MESSAGE_S)


@pytest.mark.parametrize("late_s", [12.9e-3, 13.1e-3, 50e-3])
def test_a_last_gradient_that_is_late_is_waited_for_no_longer_than_a_round(late_s: float) -> None:
    """Expected after 9 ms, it may share a round until 13; then the others go without it."""
    latest_s = EVEN_S[-1] + ROUND_S
    late = step([*EVEN_S[:-1], late_s], before=step(EVEN_S))
    of_others = next(message for message in late.ranks[0].sent if any(one.index == 7 for one in message.segments))
    assert late.sent_s[of_others.index] == pytest.approx(min(late_s, latest_s) + ROUND_S, abs=1e-8)
    assert num_rounds(late) == (2 if late_s < latest_s else 3)


def test_only_the_step_before_says_when_the_last_gradient_is_due() -> None:
    """After a backward of 50 ms none is near in one of 9, which has three rounds once and two again."""
    steps = [step(EVEN_S)]
    for ready_s in ([*EVEN_S[:-1], 50e-3], EVEN_S, EVEN_S):
        steps.append(step(ready_s, before=steps[-1]))
    assert [num_rounds(one) for one in steps[2:]] == [3, 2]
