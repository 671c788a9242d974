"""The period of a simulated steady state, measured at job 0."""

from __future__ import annotations

from collections.abc import Sequence

from crossover.simulator import Rules, StepShape, simulate


def steady_period_s(shapes: Sequence[StepShape], rules: Rules | None = None, num_rounds: int = 200) -> float:
    """Mean time of a round of job 0 once the start-up is over: over the second half of `num_rounds`."""
    turns = simulate(shapes, [num_rounds] * len(shapes), rules).turns
    starts_s = [turn.start_s for turn in turns if turn.host == turn.job == 0]
    half = num_rounds // 2
    return (starts_s[-1] - starts_s[half - 1]) / (num_rounds - half)
