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
from analysis.stats import FEWEST_FOR_LEVEL, NOISE, Interval, ratio_by_repeat
from analysis.steps.rows import ErrorRow, Setting, StepRow, on_fabric
from analysis.wording import percent, plural

Select = Callable[[Sequence[StepRow]], Iterator[CellValue]]
Accepts = Callable[[StepRow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClaim(Level):
    """A level that step times have to reach, with the cells that it is about."""

    select: Select
    formula: Formula = Formula.SPEED_UP


@dataclass(frozen=True, slots=True)
class PredictionLevel:
    """How close predictions are claimed to come: the median and the 95th percentile of errors, and Kendall's τ."""

    median: float
    p95: float
    tau: float


# Modelled links leave little but the model to be wrong; on sockets the machine's noise is in what is measured.
PREDICTED = {"paced": PredictionLevel(0.01, 0.03, 0.95), "emulated": PredictionLevel(0.05, 0.08, 0.9)}


def step_claims(
    asked: Sequence[StepClaim], rows: Sequence[StepRow], errors: Sequence[ErrorRow]
) -> tuple[ClaimRow, ...]:
    """Every claim with its outcome, those about predictions first."""
    judged = (judge(claim, list(claim.select(rows))) for claim in asked)
    return (*prediction_claims(errors), *judged)


def prediction_claims(errors: Sequence[ErrorRow]) -> Iterator[ClaimRow]:
    """How far predictions are off and whether their order is right, by the fabric that cells were measured on."""
    by_name = {row.of: row for row in errors}
    for fabric, level in PREDICTED.items():
        row = by_name.get(on_fabric(fabric))
        yield _prediction_errors(fabric, level, row)
        yield _prediction_order(fabric, level, row)


def _prediction_errors(fabric: str, level: PredictionLevel, every: ErrorRow | None) -> ClaimRow:
    """How large errors are; intervals are over cells, each of which needs repeats enough for its own."""
    claim = (
        f"Predicted step times, {fabric}: median error at most {percent(level.median)}, "
        f"95th percentile at most {percent(level.p95)}"
    )
    rule = f"both ends over cells; every cell of {FEWEST_FOR_LEVEL} repeats or more"
    if every is None:
        return not_measured(claim, "No measured cell has a prediction.", rule=rule)
    sides = (side(every.median, high=level.median), side(every.p95, high=level.p95))
    outcome = next((one for one in (Outcome.MISSED, Outcome.UNDECIDED) if one in sides), Outcome.MET)
    sentence = (
        f"Over {plural(every.num_cells, 'measured cell')}: median {text_of(every.median.times(100), ' %')}, "
        f"95th percentile {text_of(every.p95.times(100), ' %')}, worst {percent(every.worst)}, with its sign in the "
        f"median {percent(every.bias)}.{_thin(every)}"
    )
    cells = tuple(
        JudgedCell(cell=name, value=value.times(100), outcome=one, of=every.cells)
        for name, value, one in zip(("median error", "95th percentile"), (every.median, every.p95), sides, strict=True)
    )
    return ClaimRow(
        claim=claim,
        outcome=Outcome.UNDECIDED if _thin(every) else outcome,
        sentence=sentence,
        rule=rule,
        formula=Formula.ERROR,
        unit=" %",
        cells=cells,
    )


def _prediction_order(fabric: str, level: PredictionLevel, every: ErrorRow | None) -> ClaimRow:
    """Whether what is predicted to be faster is faster, where measurements can tell."""
    claim = (
        f"Predicted order of methods, {fabric}: Kendall's τ at least {level.tau:g} over pairs that differ by more than "
        f"{percent(NOISE)}"
    )
    rule = f"interval over cells at least {level.tau:g}; every cell of {FEWEST_FOR_LEVEL} repeats or more"
    if every is None or every.tau is None:
        return not_measured(claim, "No two methods with predictions differ by so much.", rule=rule)
    outcome = Outcome.UNDECIDED if _thin(every) else decide([every.tau], low=level.tau)
    return ClaimRow(
        claim=claim,
        outcome=outcome,
        sentence=f"τ = {text_of(every.tau)} over {plural(every.num_pairs, 'pair')}.{_thin(every)}",
        rule=rule,
        formula=Formula.ERROR,
        cells=(JudgedCell(cell="all", value=every.tau, outcome=outcome, of=every.cells),),
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
    return ratio_by_repeat(dict(other.by_repeat), dict(own.by_repeat))


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
