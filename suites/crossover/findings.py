"""Claims that are not about one interval a cell: a curve's peak, a trend, equal bits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from analysis.axes import RHO
from analysis.cells import OURS
from analysis.claims import outcome_of
from analysis.sharing.rows import CROSSOVER, ClaimRow, OptimiserRow, Outcome, PairRow, SeriesRow, SweepRow
from analysis.wording import factor, percent, plural

PEAK = (0.5, 2.0)
FEWEST_POINTS = 3
FEWEST_REPEATS = 3
CONCORDANT = 0.9
TIMED_PACKING = "tensor-fusion"  # packs what is ready when a cycle ends


def peak_of_sweeps(sweeps: Sequence[SweepRow]) -> ClaimRow:
    """Without overlap inside a job the gain must be greatest where communication and computation are about equal."""
    claim = f"Without overlap inside the jobs the gain peaks near ρ = 1 (between {PEAK[0]:g} and {PEAK[1]:g})"
    found = [
        (sweep, max(series.points, key=lambda point: point[1].throughput.median if point[1].throughput else 0.0))
        for sweep in sweeps
        if sweep.axis == RHO and not sweep.overlaps
        for series in sweep.series
        if series.way == CROSSOVER and len(series.points) >= FEWEST_POINTS and _often_enough(series)
    ]
    if not found:
        return ClaimRow(
            claim=claim,
            outcome=Outcome.NOT_MEASURED,
            sentence=f"No sweep of ρ without overlap was run {FEWEST_REPEATS} times.",
        )
    met = all(PEAK[0] <= at <= PEAK[1] for _, (at, _) in found)
    told = [f"{sweep.title}: {factor(row.throughput)} at ρ = {at:g} ({row.cell})" for sweep, (at, row) in found]
    return ClaimRow(claim=claim, outcome=outcome_of(met), sentence=f"Greatest gain of {'; '.join(told)}.")


def shrinks_with_exposure(optimised: Sequence[OptimiserRow]) -> ClaimRow:
    """The less communication a strategy leaves exposed, the less crossover may gain on top of it.

    Of all pairs of strategies, the share in which the one that leaves more exposed gains more.
    """
    claim = "The gain shrinks as the jobs' own optimisers leave less communication exposed"
    counted = [found for found in optimised if all(row.gain.n >= FEWEST_REPEATS for row in found.rows)]
    if not counted:
        sentence = f"No jobs ran with crossover under three or more strategies, {FEWEST_REPEATS} times each."
        return ClaimRow(claim=claim, outcome=Outcome.NOT_MEASURED, sentence=sentence)
    told, met = [], True
    for found in counted:
        share = _concordant([(row.exposed_share, row.gain.median) for row in found.rows])
        most, least = found.rows[0], found.rows[-1]
        met = met and share >= CONCORDANT and most.gain.median > least.gain.median
        told.append(
            f"{found.title}: from {factor(most.gain)} with {percent(most.exposed_share)} of a step exposed "
            f"({most.name}) to {factor(least.gain)} with {percent(least.exposed_share)} ({least.name}); "
            f"{percent(share)} of the pairs of {len(found.rows)} strategies in this order"
        )
    details = tuple(
        f"{row.name}: exposed {percent(row.exposed_share)}, gain {factor(row.gain)} (n = {row.gain.n})"
        for found in counted
        for row in found.rows
    )
    return ClaimRow(claim=claim, outcome=outcome_of(met), sentence=f"{'; '.join(told)}.", details=details)


def _often_enough(series: SeriesRow) -> bool:
    return all(row.throughput is not None and row.throughput.n >= FEWEST_REPEATS for _, row in series.points)


def _concordant(points: Sequence[tuple[float, float]]) -> float:
    signs = [(a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in itertools.combinations(points, 2)]
    return sum(signs) / len(signs)


def same_weights(pairs: Sequence[PairRow]) -> ClaimRow:
    """Synchronous training must end with the very weights of the same job alone, whatever the policy.

    Packing by the clock sums in another order every time, which on more than two workers changes the last bits even of
    two runs alone; such jobs do not count.
    """
    claim = "Every job ends with bitwise the weights of its run alone, under every policy"
    rows = [row for pair in pairs if _repeatable(pair) for row in pair.rows if row.weights_compared]
    if not rows:
        return ClaimRow(claim=claim, outcome=Outcome.NOT_MEASURED, sentence="No weights were recorded to compare.")
    equal, compared = sum(row.weights_equal for row in rows), sum(row.weights_compared for row in rows)
    policies = ", ".join(sorted({row.way for row in rows}))
    differing = [row for row in rows if row.weights_equal < row.weights_compared]
    sentence = f"Equal in {equal:,} of {plural(compared, 'job run')} under {policies}."
    details = tuple(
        f"{row.cell}: {row.weights_equal} of {plural(row.weights_compared, 'job run')}" for row in differing
    )
    return ClaimRow(claim=claim, outcome=outcome_of(not differing), sentence=sentence, details=details)


def _repeatable(pair: PairRow) -> bool:
    return pair.key.num_hosts <= 2 or all(
        system == OURS and TIMED_PACKING not in strategy for _, system, strategy, _ in pair.work
    )
