"""Jobs for the tests of planning."""

from __future__ import annotations

from hypothesis import strategies as st

from crossover import JobCost
from crossover.planning import JobProfile

times_s = st.integers(1, 400).map(lambda milliseconds: milliseconds / 1000)


@st.composite
def costs(draw: st.DrawFn) -> JobCost:
    """A job whose step takes from the longer of its parts (all hidden) to their sum (nothing hidden)."""
    compute_s, communication_s = draw(times_s), draw(times_s)
    hidden_s = draw(st.floats(0, 1)) * min(compute_s, communication_s)
    return JobCost(compute_s, communication_s, compute_s + communication_s - hidden_s)


def job(name: str, compute_s: float, communication_s: float, solo_s: float | None = None, **more: int) -> JobProfile:
    """A profile; without overlap if `solo_s` is not given."""
    alone_s = compute_s + communication_s if solo_s is None else solo_s
    return JobProfile(name=name, compute_s=compute_s, communication_s=communication_s, solo_s=alone_s, **more)
