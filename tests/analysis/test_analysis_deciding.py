"""One rule decides every verdict: by the ends of intervals, never by a range, corrected where cells are many."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.claims import (
    CellValue,
    Level,
    Outcome,
    decide,
    fewest_among,
    joint_level,
    judge,
    out_of_reach,
    side,
    surely_above,
    text_of,
)
from analysis.stats import LEVEL, Interval, exactly, median_interval
from analysis.wording import factor

repeats = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=14)


def spread(middle: float, n: int = 6, width: float = 0.02) -> Interval:
    """Repeats evenly around a value."""
    return median_interval([middle + width * (place / (n - 1) - 0.5) for place in range(n)])


@pytest.mark.parametrize(
    ("middle", "expected"), [(1.05, Outcome.MET), (0.95, Outcome.MISSED), (1.0, Outcome.UNDECIDED)]
)
def test_the_whole_interval_must_lie_on_one_side(middle: float, expected: Outcome) -> None:
    assert side(spread(middle), low=1.0) is expected
    assert decide([spread(middle)], low=1.0) is expected
    assert decide([spread(2 - middle)], high=1.0) is expected


def test_a_band_is_met_inside_it_and_missed_outside_it() -> None:
    outcomes = [side(spread(middle), low=0.97, high=1.03) for middle in (1.0, 1.03, 1.1, 0.9)]
    assert outcomes == [Outcome.MET, Outcome.UNDECIDED, Outcome.MISSED, Outcome.MISSED]


def test_five_repeats_are_a_range_that_decides_nothing_and_an_exact_value_decides_alone() -> None:
    thin = spread(2.0, n=5)
    assert decide([thin], low=1.0) is Outcome.UNDECIDED
    assert decide([exactly(2.0, 1)], low=1.0) is Outcome.MET
    assert (factor(thin), factor(exactly(2.0, 1))) == ("2.00× (1.99 to 2.01)", "2.00×")
    assert (text_of(thin), text_of(exactly(2.0, 1))) == ("2.00 (1.99 to 2.01) (n = 5)", "2.00 (exact)")


def test_every_cell_may_meet_it_at_95_percent_and_one_alone_that_misses_it_needs_more() -> None:
    good, bad = [spread(1.1)] * 13, spread(0.9)
    assert decide([*good, spread(1.1)], low=1.0) is Outcome.MET
    assert decide([*good, bad], low=1.0) is Outcome.UNDECIDED  # six repeats of one cell among fourteen
    assert decide([*good, spread(0.9, n=10)], low=1.0) is Outcome.MISSED
    assert decide([bad], low=1.0) is Outcome.MISSED


def test_of_some_cell_it_is_the_other_way_round() -> None:
    bad = [spread(0.9)] * 13
    assert decide(bad, low=1.0, some=True) is Outcome.MISSED
    assert decide([*bad, spread(1.1)], low=1.0, some=True) is Outcome.UNDECIDED
    assert decide([*bad, spread(1.1, n=10)], low=1.0, some=True) is Outcome.MET
    told = judge(
        Level(claim="c", quantity="q", low=1.0, some=True),
        [CellValue("a", exactly(0.9, 1)), CellValue("b", exactly(2.0, 1))],
    )
    assert told.outcome is Outcome.MET
    assert told.sentence.endswith("1 of 2 cells as claimed, and one is enough. Not in a.")


def test_six_repeats_decide_in_the_order_that_was_fixed_before_any_was_measured() -> None:
    good, bad = spread(1.1), spread(0.9)
    assert surely_above([good, *[bad] * 4], 1.0) == [True, *[False] * 4]
    assert surely_above([good, good, bad, good], 1.0) == [True, True, False, False]  # what one leaves goes to the next
    assert surely_above([*[bad] * 4, spread(1.1, n=8)], 1.0)[-1] is False
    assert surely_above([*[bad] * 4, spread(1.1, n=9)], 1.0)[-1] is True
    assert surely_above([exactly(2.0, 1), exactly(1.0, 1), good, bad], 1.5) == [True, False, False, False]
    assert surely_above([exactly(0.5, 1), good, bad], 1.0) == [False, True, False]
    assert surely_above([good], 1.0) == [True]
    assert surely_above([], 1.0) == []


@pytest.mark.parametrize("num_rivals", [2, 5, 8])
def test_the_fewest_repeats_among_rivals_are_those_that_one_of_them_needs(num_rivals: int) -> None:
    bad = [spread(0.9)] * (num_rivals - 1)
    fewest = fewest_among([*bad, spread(1.1), exactly(2.0, 1)])  # an exact value takes no part of the level
    assert surely_above([*bad, spread(1.1, n=fewest)], 1.0)[-1]
    assert not surely_above([*bad, spread(1.1, n=fewest - 1)], 1.0)[-1]


@pytest.mark.parametrize("n", [6, 9])
def test_where_nothing_is_above_one_of_many_is_found_above_in_at_most_5_percent(n: int) -> None:
    numbers, num_runs = np.random.default_rng(0), 400
    # The reference's repeats are shared, so that the cells depend on each other as they do in a run.
    wrong = 0
    for _ in range(num_runs):
        reference = numbers.normal(1.0, 0.01, n)
        cells = [(reference / numbers.normal(1.0, 0.01, n)).tolist() for _ in range(4)]
        wrong += any(surely_above([median_interval(cell) for cell in cells], 1.0))
    assert wrong / num_runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_runs)


def test_exact_values_need_no_correction() -> None:
    assert joint_level([exactly(1.0, 1)] * 100) == LEVEL
    assert joint_level([spread(1.0), spread(1.0), exactly(1.0, 1)]) == pytest.approx(1 - 0.05 / 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(repeats, min_size=1, max_size=4), st.floats(0.6, 1.8), st.booleans())
def test_a_threshold_and_its_opposite_are_never_both_met(cells: list[list[float]], at: float, some: bool) -> None:
    values = [median_interval(values) for values in cells]
    above, below = decide(values, low=at, some=some), decide(values, high=at, some=not some)
    assert not (above is below is Outcome.MET) or any(value.low == value.high == at for value in values)
    assert (above is Outcome.MISSED) <= (below is not Outcome.MISSED)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=12), st.floats(1.0, 4.0))
def test_a_busier_machine_widens_and_never_turns_a_verdict_round(values: list[float], factor_of: float) -> None:
    middle = statistics.median(values)
    wider = [middle + factor_of * (value - middle) for value in values]
    verdicts = {decide([median_interval(sample)], low=1.0) for sample in (values, wider)}
    assert {Outcome.MET, Outcome.MISSED} != verdicts


def test_a_sentence_names_cells_by_side_and_says_what_is_thin() -> None:
    cells = [CellValue("a", spread(1.1, n=10)), CellValue("b", spread(0.9, n=10)), CellValue("c", spread(1.1, n=3))]
    row = judge(Level(claim="x", quantity="Gain", low=1.0, unit="×"), cells)
    assert row.outcome is Outcome.MISSED
    assert row.rule == "every cell at least 1×"
    assert [cell.cell for cell in row.cells] == ["b", "a", "c"] or [cell.cell for cell in row.cells] == ["b", "c", "a"]
    for text in ("1 of 3 cells", "Missed in b.", "Undecided in c.", "1 cell with fewer than 6", "98.33"):
        assert text in row.sentence


def test_a_sentence_names_the_worst_few_cells_and_counts_the_rest() -> None:
    cells = [CellValue(f"c{place}", spread(0.5 + place / 100, n=20)) for place in range(5)]
    row = judge(Level(claim="x", quantity="Gain", low=1.0), cells)
    assert "Missed in c0, c1, c2, and 2 cells more." in row.sentence
    assert len(row.cells) == 5


def test_without_cells_nothing_is_measured_and_what_cannot_be_had_says_why() -> None:
    assert judge(Level(claim="x", quantity="Gain", low=1.0), []).outcome is Outcome.NOT_MEASURED
    far = out_of_reach("512 workers", "No such cluster is here.")
    assert (far.outcome, far.sentence) == (Outcome.OUT_OF_REACH, "No such cluster is here.")
