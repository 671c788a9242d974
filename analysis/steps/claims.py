"""Claims about step times, for any suite: what is compared with what in one place, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.claims import Level, Measured, judge, not_measured, outcome_of
from analysis.sharing.rows import ClaimRow
from analysis.stats import Interval, bootstrap_interval
from analysis.steps.rows import ErrorRow, Setting, StepRow
from analysis.wording import factor, number, percent, plural

FEW = 3
PREDICTED_MEDIAN, PREDICTED_P95, PREDICTED_TAU = 0.03, 0.08, 0.9
Select = Callable[[Sequence[StepRow]], Iterator[Measured]]
Accepts = Callable[[StepRow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim(Level):
    """A level that step times have to reach. `up_to`: it is enough that one cell does."""

    select: Select
    up_to: bool = False
    fewest: int = FEW


def step_claims(
    asked: Sequence[StepClaim], rows: Sequence[StepRow], errors: Sequence[ErrorRow]
) -> tuple[ClaimRow, ...]:
    """Every claim with its outcome, those about predictions first."""
    judged = (_judged(claim, list(claim.select(rows))) for claim in asked)
    return (prediction_errors(errors), prediction_order(errors), *judged)


def _judged(claim: StepClaim, measured: Sequence[Measured]) -> ClaimRow:
    """As any claim; one with `up_to` by its best cell."""
    counted = [one for one in measured if one[1].n >= claim.fewest]
    if not claim.up_to or not counted:
        return judge(claim, measured)
    best = max(counted, key=lambda one: one[1].median)
    row = judge(claim, [best])
    others = tuple(f"{cell}: {factor(value)} (n = {value.n})" for cell, value in counted)
    return ClaimRow(claim=row.claim, outcome=row.outcome, sentence=f"Best cell. {row.sentence}", details=others)


def prediction_errors(errors: Sequence[ErrorRow]) -> ClaimRow:
    claim = (
        f"Predicted step times: median error at most {percent(PREDICTED_MEDIAN)}, "
        f"95th percentile at most {percent(PREDICTED_P95)}"
    )
    if not errors or errors[0].fewest_repeats < FEW:
        return _too_few(claim, "a prediction", errors)
    every = errors[0]
    met = every.median <= PREDICTED_MEDIAN and every.p95 <= PREDICTED_P95
    sentence = (
        f"Over {plural(every.num_cells, 'measured cell')}: median {percent(every.median)}, 95th percentile "
        f"{percent(every.p95)}, worst {percent(every.worst)}, with its sign in the median {percent(every.bias)}."
    )
    details = tuple(
        f"{row.of}: median {percent(row.median)}, 95th percentile {percent(row.p95)}, {plural(row.num_cells, 'cell')}"
        for row in errors[1:]
    )
    return ClaimRow(claim=claim, outcome=outcome_of(met), sentence=sentence, details=details)


def prediction_order(errors: Sequence[ErrorRow]) -> ClaimRow:
    claim = f"Predicted order of methods: Kendall's τ at least {PREDICTED_TAU:g} over pairs with disjoint intervals"
    if not errors or errors[0].tau is None or errors[0].fewest_repeats < FEW:
        return _too_few(claim, "a pair of methods with disjoint intervals and predictions", errors)
    every = errors[0]
    assert every.tau is not None
    sentence = f"τ = {number(every.tau)} over {plural(every.num_pairs, 'pair')}."
    details = tuple(
        f"{row.of}: τ = {number(row.tau)} over {plural(row.num_pairs, 'pair')}"
        for row in errors[1:]
        if row.tau is not None
    )
    return ClaimRow(claim=claim, outcome=outcome_of(every.tau >= PREDICTED_TAU), sentence=sentence, details=details)


def _too_few(claim: str, what: str, errors: Sequence[ErrorRow]) -> ClaimRow:
    thin = f" Some cells have fewer than {FEW} repeats." if errors and errors[0].fewest_repeats < FEW else ""
    sentence = f"No {FEW} repeats of measured cells with {what}.{thin}"
    return not_measured(claim, sentence)


def by_place(rows: Iterable[StepRow]) -> dict[Setting, list[StepRow]]:
    """Measured rows by place."""
    found: dict[Setting, list[StepRow]] = {}
    for row in rows:
        if row.step_time_s is not None:
            found.setdefault(row.place, []).append(row)
    return found


def speedup(own: StepRow, other: StepRow) -> Interval | None:
    """The other's step over this one, repeat by repeat; None where no repeat is shared."""
    theirs = dict(other.by_repeat)
    ratios = [theirs[repeat] / step_s for repeat, step_s in own.by_repeat if repeat in theirs]
    return bootstrap_interval(ratios) if ratios else None


def fastest(rows: Iterable[StepRow]) -> StepRow | None:
    """The row with the shortest median step."""
    return min(rows, key=lambda row: row.step_time_s.median if row.step_time_s else float("inf"), default=None)


def over(own: Accepts, other: Callable[[StepRow, StepRow], bool], where: Callable[[Setting], bool]) -> Select:
    """Speed-up of each row that `own` accepts over the fastest that `other` accepts beside it in its place."""

    def select(rows: Sequence[StepRow]) -> Iterator[Measured]:
        for place, here in by_place(rows).items():
            for row in (row for row in here if where(place) and own(row)):
                rival = fastest(one for one in here if one is not row and other(row, one))
                ratio = speedup(row, rival) if rival is not None else None
                if rival is not None and ratio is not None:
                    yield f"{row.name} over {rival.name} ({place.describe()})", ratio

    return select
