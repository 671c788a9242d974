"""What follows from the turns of a host's jobs: hand-overs, the window in which all ran, how busy a resource was."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover import Alone, Extent
from harness.turns import LoggedTurns, Turn, busy_share, common_window, handovers_s, merged, percentiles_s

A = [Turn(0.0, 0.0, 1.0), Turn(1.5, 2.1, 3.0), Turn(5.0, 5.0, 6.0)]
B = [Turn(0.5, 1.25, 2.0), Turn(2.5, 3.5, 4.0)]
INTERVALS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def test_a_hand_over_counts_where_the_next_job_was_waiting() -> None:
    assert handovers_s([A, B]) == pytest.approx([0.25, 0.1, 0.5])


def test_a_job_alone_hands_nothing_over() -> None:
    assert handovers_s([A]) == []
    assert percentiles_s(handovers_s([A])) == (None, None)


def test_the_window_is_that_in_which_all_jobs_ran() -> None:
    assert common_window([A, B]) == (1.25, 4.0)
    assert common_window([A, []]) == (0.0, 0.0)


def test_jobs_that_never_ran_together_have_no_busy_share() -> None:
    one_after_the_other = [[Turn(0, 0, 1)], [Turn(0, 1, 2)]]
    assert busy_share([(0, 2)], common_window(one_after_the_other)) is None


@given(INTERVALS)
def test_a_union_is_disjoint_and_covers_what_it_was_made_of(intervals: list[tuple[float, float]]) -> None:
    union = merged(intervals)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(union))
    assert all(any(a <= start and end <= b for a, b in union) for start, end in intervals)


@given(INTERVALS)
def test_a_busy_share_is_a_share(intervals: list[tuple[float, float]]) -> None:
    share = busy_share(intervals, (2.0, 7.0))
    assert (share is None) is (not intervals)  # nobody noted any
    assert share is None or 0 <= share <= 1


def test_logged_turns_are_the_inner_ones_with_a_log() -> None:
    turns = LoggedTurns(Alone())
    lease = turns.acquire()
    turns.release(lease)
    with turns.turn(aside=True) as aside:
        pass
    assert (lease.round, aside.round, turns.acquire().round) == (0, 1, 1)
    assert turns.extent is Extent.BACKWARD
    assert all(turn.asked_s <= turn.granted_s <= turn.released_s for turn in turns.turns)
    assert len(turns.turns) == 2
