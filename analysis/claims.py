"""A claim and what records say of it: met, missed, or not measured.

A claim selects one interval a cell and a level that each has to reach; every number in its sentence comes from the
records. Suites declare theirs in `suites/<name>/study.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.sharing.rows import ClaimRow, Outcome
from analysis.stats import Interval
from analysis.wording import interval, number, plural

Measured = tuple[str, Interval]  # cell and what was measured there


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is claimed: in every cell the judged end of the interval lies between `low` and `high`.

    Cells with fewer than `fewest` repeats do not count. `quantity` says in words what is measured, `unit` multiplies
    it for people.
    """

    claim: str
    quantity: str
    low: float | None = None
    high: float | None = None
    fewest: int = 5
    judged: Callable[[Interval], float] = lambda value: value.median
    scale: float = 1.0
    unit: str = ""


def judge(claim: Level, measured: Sequence[Measured]) -> ClaimRow:
    """The outcome of one claim over the cells it selects."""
    counted = [(cell, value) for cell, value in measured if value.n >= claim.fewest]
    thin = len(measured) - len(counted)
    left_out = f" {plural(thin, 'cell')} with fewer than {claim.fewest} repeats left out." if thin else ""
    if not counted:
        return ClaimRow(claim=claim.claim, outcome=Outcome.NOT_MEASURED, sentence=f"No cell shows it.{left_out}")
    missed = [(cell, value) for cell, value in counted if not _reaches(claim, value)]
    outcome = Outcome.MISSED if missed else Outcome.MET
    sentence = f"{claim.quantity}: {_spread(claim, counted)} {_tally(claim, counted, missed)}{left_out}"
    worst_first = sorted(counted, key=lambda one: claim.judged(one[1]), reverse=claim.low is None)
    details = tuple(_detail(claim, *one, missed=one in missed) for one in worst_first)
    return ClaimRow(claim=claim.claim, outcome=outcome, sentence=sentence, details=details)


def _reaches(claim: Level, value: Interval) -> bool:
    judged = claim.judged(value)
    return (claim.low is None or judged >= claim.low) and (claim.high is None or judged <= claim.high)


def _spread(claim: Level, counted: Sequence[Measured]) -> str:
    medians = [value.median for _, value in counted]
    lowest = min(counted, key=lambda one: one[1].median)
    highest = max(counted, key=lambda one: one[1].median)
    if len(counted) == 1:
        return f"{_text(claim, lowest[1])} in {lowest[0]}."
    middle = number(statistics.median(medians) * claim.scale)
    return (
        f"median of {len(counted)} cells {middle}{claim.unit}, lowest {_text(claim, lowest[1])} in {lowest[0]}, "
        f"highest {_text(claim, highest[1])} in {highest[0]}."
    )


def _tally(claim: Level, counted: Sequence[Measured], missed: Sequence[Measured]) -> str:
    reached = len(counted) - len(missed)
    every = "" if not missed else f" Missed in {', '.join(cell for cell, _ in missed)}."
    return f"{reached} of {plural(len(counted), 'cell')} as claimed.{every}"


def _detail(claim: Level, cell: str, value: Interval, *, missed: bool) -> str:
    return f"{cell}: {_text(claim, value)}{' (missed)' if missed else ''}"


def _text(claim: Level, value: Interval) -> str:
    """`0.97 [0.96, 0.98], n = 5`."""
    return f"{interval(value, claim.scale)}{claim.unit} (n = {value.n})"


def high_end(value: Interval) -> float:
    """The upper bound, or the median where there is none."""
    return value.high if value.has_bounds else value.median


def low_end(value: Interval) -> float:
    """The lower bound, or the median where there is none."""
    return value.low if value.has_bounds else value.median


def outcome_of(holds: bool) -> Outcome:
    """Met where it holds."""
    return Outcome.MET if holds else Outcome.MISSED


def not_measured(claim: str, sentence: str) -> ClaimRow:
    """A claim that no record bears on, with the reason."""
    return ClaimRow(claim=claim, outcome=Outcome.NOT_MEASURED, sentence=sentence)
