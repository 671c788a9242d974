"""Claims that are not about one interval a cell: a curve's peak, a trend, equal bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from analysis.cells import OURS
from analysis.claims import ClaimRow, Formula, JudgedCell, Outcome, joint_level, not_measured, outcome_of, text_of
from analysis.sharing.axes import RHO
from analysis.sharing.rows import CROSSOVER, OptimisedRow, OptimiserRow, PairRow, SharingRow, SweepRow
from analysis.stats import Interval, exactly
from analysis.wording import percent, plural

PEAK = (0.5, 2.0)
CONCORDANT = 0.9
TIMED_PACKING = "tensor-fusion"  # packs what is ready when a cycle ends
Point = tuple[float, SharingRow]


def above(one: Interval, other: Interval, level: float) -> bool:
    """Whether the whole of one interval lies above the whole of another, both at this level."""
    return one.covers(level) and other.covers(level) and one.at(level).low > other.at(level).high


def peak_of_sweeps(sweeps: Sequence[SweepRow]) -> ClaimRow:
    """Without overlap inside a job the gain must be greatest where communication and computation are about equal."""
    claim = f"Without overlap inside the jobs the gain peaks near ρ = 1 (between {PEAK[0]:g} and {PEAK[1]:g})"
    rule = "one point inside above every point outside, interval by interval"
    curves = [curve for sweep in sweeps for curve in _curves(sweep)]
    if not curves:
        return not_measured(claim, "No sweep of ρ without overlap has values on both sides.", rule=rule)
    outcomes = [_peak(points) for _, points in curves]
    outcome = next((one for one in (Outcome.MISSED, Outcome.UNDECIDED) if one in outcomes), Outcome.MET)
    best = [(sweep, max(points, key=lambda point: _gain(point[1]).median)) for sweep, points in curves]
    told = [f"{sweep.title}: {text_of(_gain(row), '×')} at ρ = {at:g}" for sweep, (at, row) in best]
    cells = tuple(
        JudgedCell(cell=row.cell, value=_gain(row), outcome=one, of=(_alone(sweep, at), row.record_ids))
        for (sweep, points), one in zip(curves, outcomes, strict=True)
        for at, row in points
    )
    sentence = f"Greatest gain of {'; '.join(told)}."
    return ClaimRow(
        claim=claim, outcome=outcome, sentence=sentence, rule=rule, formula=Formula.GAIN, unit="×", cells=cells
    )


def _curves(sweep: SweepRow) -> Iterator[tuple[SweepRow, list[Point]]]:
    if sweep.axis != RHO or sweep.overlaps:
        return
    for series in (series for series in sweep.series if series.way == CROSSOVER):
        points = [(at, row) for at, row in series.points if row.throughput is not None]
        if {_is_inside(at) for at, _ in points} == {True, False}:
            yield sweep, points


def _is_inside(rho: float) -> bool:
    return PEAK[0] <= rho <= PEAK[1]


def _gain(row: SharingRow) -> Interval:
    assert row.throughput is not None
    return row.throughput


def _alone(sweep: SweepRow, at: float) -> tuple[str, ...]:
    pair = next(pair for pair in sweep.pairs if pair.at == at)
    return next((row.record_ids for row in pair.rows if row.is_reference), ())


def _peak(points: Sequence[Point]) -> Outcome:
    """A comparison of every point with every other side's, all at once."""
    level = joint_level([_gain(row) for _, row in points])
    inside = [_gain(row) for at, row in points if _is_inside(at)]
    outside = [_gain(row) for at, row in points if not _is_inside(at)]
    if any(all(above(own, other, level) for other in outside) for own in inside):
        return Outcome.MET
    beaten = any(all(above(other, own, level) for own in inside) for other in outside)
    return Outcome.MISSED if beaten else Outcome.UNDECIDED


def shrinks_with_exposure(optimised: Sequence[OptimiserRow]) -> ClaimRow:
    """The less communication a strategy leaves exposed, the less crossover may gain on top of it.

    Pairs of strategies with disjoint intervals of their gains can tell.
    """
    claim = "The gain shrinks as the jobs' own optimisers leave less communication exposed"
    rule = f"{percent(CONCORDANT)} of pairs of strategies in order, most and least exposed too, interval by interval"
    if not optimised:
        return not_measured(claim, "No jobs ran with crossover under three or more strategies.", rule=rule)
    outcomes = [_trend(found.rows) for found in optimised]
    outcome = next((one for one in (Outcome.MISSED, Outcome.UNDECIDED) if one in outcomes), Outcome.MET)
    told = [
        f"{found.title}: from {_told(found.rows[0])} to {_told(found.rows[-1])}, {one.value}"
        for found, one in zip(optimised, outcomes, strict=True)
    ]
    cells = tuple(
        JudgedCell(
            cell=f"{found.title}: {row.name}, {percent(row.exposed_share)} exposed",
            value=row.gain,
            outcome=one,
            of=row.of,
        )
        for found, one in zip(optimised, outcomes, strict=True)
        for row in found.rows
    )
    return ClaimRow(
        claim=claim,
        outcome=outcome,
        sentence=f"{'; '.join(told)}.",
        rule=rule,
        formula=Formula.GAIN,
        unit="×",
        cells=cells,
    )


def _told(row: OptimisedRow) -> str:
    return f"{text_of(row.gain, '×')} with {percent(row.exposed_share)} of a step exposed ({row.name})"


def _trend(rows: Sequence[OptimisedRow]) -> Outcome:
    """Rows in order of what is exposed, most first."""
    level, pairs = joint_level([row.gain for row in rows]), list(itertools.combinations(rows, 2))
    right = sum(above(more.gain, less.gain, level) for more, less in pairs)
    wrong = sum(above(less.gain, more.gain, level) for more, less in pairs)
    if len(pairs) - wrong < CONCORDANT * len(pairs) or above(rows[-1].gain, rows[0].gain, level):
        return Outcome.MISSED
    known = right >= CONCORDANT * len(pairs) and above(rows[0].gain, rows[-1].gain, level)
    return Outcome.MET if known else Outcome.UNDECIDED


def same_weights(pairs: Sequence[PairRow]) -> ClaimRow:
    """Synchronous training must end with the very weights of the same job alone, whatever the policy.

    Packing by the clock sums in another order every time, which on more than two workers changes the last bits even of
    two runs alone; such jobs do not count, and the sentence says how many they are.
    """
    claim = "Every job ends with bitwise the weights of its run alone, under every policy"
    compared = [(pair, row) for pair in pairs for row in pair.rows if row.weights_compared]
    rows = [(pair, row) for pair, row in compared if _repeatable(pair)]
    if not rows:
        return not_measured(claim, "No weights were recorded to compare.", rule="every one equal")
    cells = tuple(
        JudgedCell(
            cell=row.cell,
            value=exactly(row.weights_equal / row.weights_compared, row.weights_compared),
            outcome=outcome_of(row.weights_equal == row.weights_compared),
            of=(pair.alone_ids, row.record_ids),
        )
        for pair, row in rows
    )
    holds = all(cell.outcome is Outcome.MET for cell in cells)
    policies = ", ".join(sorted({row.way for _, row in rows}))
    sentence = f"Equal in {_count(rows)} under {policies}.{_left_out([one for one in compared if one not in rows])}"
    differing = tuple(
        f"{row.cell}: {_count([(pair, row)])}" for pair, row in rows if row.weights_equal < row.weights_compared
    )
    return ClaimRow(
        claim=claim,
        outcome=outcome_of(holds),
        sentence=sentence,
        rule="every one equal",
        formula=Formula.WEIGHTS,
        cells=cells,
        details=differing,
    )


def _count(rows: Sequence[tuple[PairRow, SharingRow]]) -> str:
    equal, compared = sum(row.weights_equal for _, row in rows), sum(row.weights_compared for _, row in rows)
    return f"{equal:,} of {plural(compared, 'job run')}"


def _left_out(rows: Sequence[tuple[PairRow, SharingRow]]) -> str:
    return f" Not held to it, packed by the clock on more than two workers: {_count(rows)} equal." if rows else ""


def _repeatable(pair: PairRow) -> bool:
    return pair.key.num_workers <= 2 or all(
        system == OURS and TIMED_PACKING not in strategy for _, system, strategy, _ in pair.work
    )
