"""Claims about step times, for any suite: what is compared with what in one place, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.claims import (
    CellValue,
    ClaimRow,
    Formula,
    JudgedCell,
    Level,
    Outcome,
    decide,
    judge,
    not_measured,
    side,
    text_of,
)
from analysis.stats import FEWEST_FOR_LEVEL, Interval, bootstrap_interval
from analysis.steps.rows import ErrorRow, Setting, StepRow
from analysis.wording import number, percent, plural

PREDICTED_MEDIAN, PREDICTED_P95, PREDICTED_TAU = 0.03, 0.08, 0.9
Select = Callable[[Sequence[StepRow]], Iterator[CellValue]]
Accepts = Callable[[StepRow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim(Level):
    """A level that step times have to reach, with the cells that it is about."""

    select: Select
    formula: Formula = Formula.SPEED_UP


def step_claims(
    asked: Sequence[StepClaim], rows: Sequence[StepRow], errors: Sequence[ErrorRow]
) -> tuple[ClaimRow, ...]:
    """Every claim with its outcome, those about predictions first."""
    judged = (judge(claim, list(claim.select(rows))) for claim in asked)
    return (prediction_errors(errors), prediction_order(errors), *judged)


def prediction_errors(errors: Sequence[ErrorRow]) -> ClaimRow:
    """How large errors are; intervals are over cells, each of which needs repeats enough for its own."""
    claim = (
        f"Predicted step times: median error at most {percent(PREDICTED_MEDIAN)}, "
        f"95th percentile at most {percent(PREDICTED_P95)}"
    )
    rule = f"both ends over cells; every cell of {FEWEST_FOR_LEVEL} repeats or more"
    if not errors:
        return not_measured(claim, "No measured cell has a prediction.", rule=rule)
    every = errors[0]
    sides = (side(every.median, high=PREDICTED_MEDIAN), side(every.p95, high=PREDICTED_P95))
    outcome = next((one for one in (Outcome.MISSED, Outcome.UNDECIDED) if one in sides), Outcome.MET)
    sentence = (
        f"Over {plural(every.num_cells, 'measured cell')}: median {text_of(every.median.times(100), ' %')}, "
        f"95th percentile {text_of(every.p95.times(100), ' %')}, worst {percent(every.worst)}, with its sign in the "
        f"median {percent(every.bias)}.{_thin(every)}"
    )
    details = tuple(
        f"{row.of}: median {percent(row.median.median)}, 95th percentile {percent(row.p95.median)}, "
        f"{plural(row.num_cells, 'cell')}"
        for row in errors[1:]
    )
    cells = tuple(
        JudgedCell(cell=name, value=value.times(100), outcome=one, of=every.cells)
        for name, value, one in zip(("median error", "95th percentile"), (every.median, every.p95), sides, strict=True)
    )
    outcome = Outcome.UNDECIDED if _thin(every) else outcome
    return ClaimRow(
        claim=claim,
        outcome=outcome,
        sentence=sentence,
        rule=rule,
        formula=Formula.ERROR,
        unit=" %",
        cells=cells,
        details=details,
    )


def prediction_order(errors: Sequence[ErrorRow]) -> ClaimRow:
    """Whether what is predicted to be faster is faster, where measurements can tell."""
    claim = f"Predicted order of methods: Kendall's τ at least {PREDICTED_TAU:g} over pairs with disjoint intervals"
    rule = f"interval over cells at least {PREDICTED_TAU:g}; every cell of {FEWEST_FOR_LEVEL} repeats or more"
    if not errors or errors[0].tau is None:
        return not_measured(claim, "No pair of methods with predictions has disjoint intervals.", rule=rule)
    every, tau = errors[0], errors[0].tau
    details = tuple(
        f"{row.of}: τ = {number(row.tau.median)} over {plural(row.num_pairs, 'pair')}"
        for row in errors[1:]
        if row.tau is not None
    )
    outcome = Outcome.UNDECIDED if _thin(every) else decide([tau], low=PREDICTED_TAU)
    return ClaimRow(
        claim=claim,
        outcome=outcome,
        sentence=f"τ = {text_of(tau)} over {plural(every.num_pairs, 'pair')}.{_thin(every)}",
        rule=rule,
        formula=Formula.ERROR,
        cells=(JudgedCell(cell="all", value=tau, outcome=outcome, of=every.cells),),
        details=details,
    )


def _thin(every: ErrorRow) -> str:
    if every.fewest_repeats >= FEWEST_FOR_LEVEL:
        return ""
    return f" Some cells have {every.fewest_repeats} repeats, fewer than {FEWEST_FOR_LEVEL}: a range decides nothing."


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

    def select(rows: Sequence[StepRow]) -> Iterator[CellValue]:
        for place, here in by_place(rows).items():
            for row in (row for row in here if where(place) and own(row)):
                rival = fastest(one for one in here if one is not row and other(row, one))
                ratio = speedup(row, rival) if rival is not None else None
                if rival is not None and ratio is not None:
                    name = f"{row.name} over {rival.name} ({place.describe()})"
                    yield CellValue(name, ratio, (rival.ids, row.ids))

    return select
